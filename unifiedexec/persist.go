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

// reportFD and witnessFD are where a shell leaves its state when it ends. Both are the same file: when they no longer are, the
// script put something else there, which must not be written to. Bash marks no descriptor as one to be closed, so the
// programs of a script inherit both.
const (
	reportFD  = 28
	witnessFD = 29
)

// report is a shell's last word: a file in memory that the shell writes when it ends.
type report struct {
	file      *os.File
	separator string
}

// reportOnExit makes a shell leave its state at its end; a trap of the script's own takes the place. What the trap says is
// short, because a shell that echoes its input echoes it too.
func reportOnExit(separator string) string {
	return fmt.Sprintf("%s() { [ %s -ef %s ] && { \\builtin unset -f %s; %s; } >&%d; }\ntrap '{ %s; } >/dev/null 2>&1' EXIT\n",
		leaving, descriptorFile(reportFD), descriptorFile(witnessFD), leaving, reportScript(separator), reportFD, leaving)
}

// leaving is a function of the shell's, which leaves its state.
const leaving = "_execsession_leave"

func newReport(separator string) (*report, error) {
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, &StartError{Op: "memfd", Errno: errnoOf(err)}
	}
	return &report{file: os.NewFile(uintptr(fd), "state"), separator: separator}, nil
}

// state reads what a shell left; otherwise why says what is known of the reason.
func (r *report) state(rec ExitRecord) (state *shellState, why string) {
	buf := make([]byte, maxShellState+1)
	n, _ := r.file.ReadAt(buf, 0) // What is not whole is not taken.
	state, ok := parseShellState(string(buf[:n]), r.separator)
	switch {
	case ok:
		return state, ""
	case n > maxShellState:
		return nil, fmt.Sprintf("it is larger than %d bytes", maxShellState)
	case rec.Signal != "" || rec.Reason != ReasonExited:
		return nil, "the shell did not end by itself"
	}
	return nil, fmt.Sprintf("the script has an exit trap of its own, replaced its shell (exec), or used descriptor %d or %d", reportFD, witnessFD)
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
		settled := settleOwn(p.shell, p.env, c.Env) + reportOnExit(separator)
		p.env = s.environ(p.shell.path, p.dir, atStart(c.Env))
		p.preamble, p.login = state.restore(p.env, settled, p.dir), false
	} else {
		if p.shell.readsStartupFiles(p.login) {
			if err := p.startUp(s, c, nil); err != nil {
				return err
			}
		}
		p.preamble += quietly(reportOnExit(separator))
	}
	var err error
	p.report, err = newReport(separator)
	return err
}

// keepState takes over what a command left. One that goes on in the background leaves nothing. The notice says that one
// that ended did not either.
func (e *Engine) keepState(p *Process, ended *ExitRecord) (notice string) {
	if p.report == nil {
		return ""
	}
	if ended != nil {
		state, why := p.report.state(*ended)
		if state != nil {
			e.persisted.set(state)
		} else {
			notice = "the shell's state was not kept: " + why
		}
	}
	p.report.close()
	p.report = nil
	return notice
}
