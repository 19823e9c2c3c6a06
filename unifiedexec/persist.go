package unifiedexec

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// persisted is what the last command of the tool left for the next, under PersistEnvironment.
type persisted struct {
	mu    sync.Mutex
	state *shellState
}

func (s *persisted) get() *shellState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *persisted) set(state *shellState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
}

// reportFD is where a shell leaves its state when it ends.
const reportFD = 28

// report is a shell's last word: a file in memory that the shell writes when it ends.
type report struct {
	file      *os.File
	separator string
}

// reportOnExit makes a shell leave its state at its end; a trap of the script's own takes the place.
func reportOnExit(separator string) string {
	return fmt.Sprintf("trap %s EXIT\n", quote(fmt.Sprintf("{ %s; } >&%d 2>/dev/null", reportScript(separator), reportFD)))
}

func newReport(separator string) (*report, error) {
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, &StartError{Op: "memfd", Errno: errnoOf(err)}
	}
	return &report{file: os.NewFile(uintptr(fd), "state"), separator: separator}, nil
}

func (r *report) state() (*shellState, bool) {
	buf := make([]byte, maxShellState+1)
	n, _ := r.file.ReadAt(buf, 0) // What is not whole is not taken.
	return parseShellState(string(buf[:n]), r.separator)
}

func (r *report) close() { r.file.Close() }

// prepare decides how a script's shell gets what was there before it, and whether it leaves something.
func (e *Engine) prepare(p *plan, s *settings, c Command, tool bool) error {
	if p.shell.path == "" {
		return nil
	}
	defer p.finish()
	if p.shell.kind == kindBash && s.Shell.Persistence == PersistEnvironment && tool {
		return e.prepareState(p, s, c)
	}
	if !p.shell.readsStartupFiles(p.login) {
		return nil
	}
	var state *shellState
	if p.shell.kind == kindBash && s.Shell.Snapshot {
		state = e.snapshot(s, p.shell)
	}
	return p.startUp(s, c, state)
}

// startUp lets a shell read its start-up files, or gives it what they left when they were read before, and settles what
// holds above that.
func (p *plan) startUp(s *settings, c Command, state *shellState) error {
	if err := checkSizes(p.program, c.Env); err != nil {
		return err
	}
	env := p.env
	p.env = s.environ(p.shell.path, p.dir, atStart(c.Env))
	if state == nil {
		p.preamble = s.settle(p.shell, env, c.Env, nil)
		return nil
	}
	p.preamble = state.restore(p.env, s.settle(p.shell, env, c.Env, state.exported), p.dir)
	p.login = false
	return nil
}

func (e *Engine) prepareState(p *plan, s *settings, c Command) error {
	separator := newSeparator()
	if state := e.persisted.get(); state != nil {
		if err := checkSizes(p.program, c.Env); err != nil {
			return err
		}
		if c.Workdir == "" {
			if checkDir(state.dir) == nil {
				p.dir = state.dir
			} else {
				p.notices = append(p.notices, fmt.Sprintf("the folder %q of the last command is gone; this one runs in %q", state.dir, p.dir))
			}
		}
		settled := settleOwn(p.shell, p.env, c.Env)
		p.env = s.environ(p.shell.path, p.dir, atStart(c.Env))
		p.preamble, p.login = state.restore(p.env, settled, p.dir), false
	} else if p.shell.readsStartupFiles(p.login) {
		if err := p.startUp(s, c, nil); err != nil {
			return err
		}
	}
	p.preamble += reportOnExit(separator)
	var err error
	p.report, err = newReport(separator)
	return err
}

// keepState takes over what a command left. One that goes on in the background leaves nothing.
func (e *Engine) keepState(p *Process, ended bool) {
	if p.report == nil {
		return
	}
	if ended {
		if state, ok := p.report.state(); ok {
			e.persisted.set(state)
		}
	}
	p.report.close()
	p.report = nil
}
