package unifiedexec

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// stdio is the descriptors of a start: the child's are closed once it runs, ours become the process's files.
type stdio struct {
	// null is the engine's /dev/null, which nobody closes.
	null  descriptor
	child []descriptor
	ours  []end
}

// end is our end of a stream; feeding is the one that the process reads.
type end struct {
	descriptor
	stream Stream
}

const feeding Stream = 0

func (s *stdio) closeChild() {
	for _, d := range slices.Compact(s.child) { // A terminal is there three times.
		if d != noDescriptor && d != s.null {
			_ = unix.Close(int(d)) // The process has its own copies.
		}
	}
	s.child = nil
}

func (s *stdio) closeAll() {
	s.closeChild()
	for _, e := range s.ours {
		_ = unix.Close(int(e.descriptor)) // It was never used.
	}
	s.ours = nil
}

// open makes the descriptors of a plan.
func (p *plan) open() (s stdio, err error) {
	s.null = p.null
	defer func() {
		if err != nil {
			s.closeAll()
		}
	}()
	if p.tty {
		err = s.openTerminal(p.size)
	} else {
		err = s.openPipes(p.stdin)
	}
	for _, w := range []struct {
		number int
		text   string
	}{{preambleFD, p.preamble}, {scriptFD, p.script}} {
		if err == nil && w.text != "" {
			err = s.openScript(w.number, w.text)
		}
	}
	if err == nil && p.report != nil {
		err = s.openReport(p.report)
	}
	return s, err
}

func (s *stdio) openTerminal(size Size) error {
	master, slave, err := pty.Open()
	if err != nil {
		return &StartError{Op: "pty", Errno: errnoOf(err)}
	}
	defer master.Close()
	defer slave.Close()
	theirs, err := duplicate(slave)
	if err != nil {
		return &StartError{Op: "pty", Errno: errnoOf(err)}
	}
	_ = unix.SetNonblock(int(theirs), false) // The child must not find a terminal that says EAGAIN.
	s.child = []descriptor{theirs, theirs, theirs}
	if err := pty.Setsize(master, &pty.Winsize{Rows: size.Rows, Cols: size.Columns}); err != nil {
		return &StartError{Op: "pty", Errno: errnoOf(err)}
	}
	// Package pty made its file blocking, and a file of package os stays so for good: a second
	// descriptor is needed for one that waits in the poller.
	ours, err := duplicate(master)
	if err != nil {
		return &StartError{Op: "pty", Errno: errnoOf(err)}
	}
	s.ours = []end{{ours, StreamTTY}}
	return nil
}

func (s *stdio) openPipes(mode StdinMode) error {
	const mostChild, mostOurs = scriptFD + 1, 3
	s.child, s.ours = make([]descriptor, 0, mostChild), make([]end, 0, mostOurs)
	if mode == StdinNull {
		s.child = append(s.child, s.null)
	} else {
		read, write, err := pipe()
		if err != nil {
			return err
		}
		s.child = append(s.child, read)
		s.ours = append(s.ours, end{write, feeding})
	}
	for _, stream := range []Stream{StreamStdout, StreamStderr} {
		read, write, err := pipe()
		if err != nil {
			return err
		}
		s.ours = append(s.ours, end{read, stream})
		s.child = append(s.child, write)
	}
	return nil
}

// place gives the child a descriptor at a number, the highest so far. What is between is closed.
func (s *stdio) place(number int, d descriptor) {
	for len(s.child) < number {
		s.child = append(s.child, noDescriptor)
	}
	s.child = append(s.child, d)
}

// openScript puts a text where the shell reads it.
func (s *stdio) openScript(number int, script string) error {
	fd, err := unix.MemfdCreate("script", unix.MFD_CLOEXEC)
	if err != nil {
		return &StartError{Op: "memfd", Errno: errnoOf(err)}
	}
	f := os.NewFile(uintptr(fd), "script")
	defer f.Close()
	end, err := duplicate(f)
	if err != nil {
		return &StartError{Op: "memfd", Errno: errnoOf(err)}
	}
	s.place(number, end)
	if _, err := f.WriteString(script); err != nil {
		return &StartError{Op: "memfd", Errno: errnoOf(err)}
	}
	if _, err := f.Seek(0, 0); err != nil {
		return &StartError{Op: "memfd", Errno: errnoOf(err)}
	}
	return nil
}

// openReport gives the shell two descriptors of the file that the engine reads later.
func (s *stdio) openReport(r *report) error {
	for _, number := range []int{reportFD, witnessFD} {
		end, err := duplicate(r.file)
		if err != nil {
			return &StartError{Op: "memfd", Errno: errnoOf(err)}
		}
		s.place(number, end)
	}
	return nil
}

// descriptor is one end of a pipe, a terminal or a file: bare for a child, since a file of package os costs
// some system calls more.
type descriptor int

// noDescriptor is a number that is closed in the child.
const noDescriptor descriptor = -1

// pipe is made by hand because os.Pipe would make the child's end non-blocking too.
func pipe() (read, write descriptor, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return 0, 0, &StartError{Op: "pipe", Errno: errnoOf(err)}
	}
	return descriptor(fds[0]), descriptor(fds[1]), nil
}

func duplicate(f *os.File) (descriptor, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return descriptor(fd), err
}

// pollable is the descriptor as a file that waits in the poller. It was just made and has no flags to keep.
func (d descriptor) pollable() *os.File {
	_, _ = unix.FcntlInt(uintptr(d), unix.F_SETFL, unix.O_NONBLOCK) // It cannot fail on such a descriptor.
	return os.NewFile(uintptr(d), "descriptor")
}

// launched is a process that runs and is not watched yet.
type launched struct {
	pid   int
	mark  uint64
	pidfd *os.File
	// input is nil when the process reads /dev/null, terminal when it has none.
	input    *os.File
	terminal *os.File
	outputs  []output
}

type output struct {
	file   *os.File
	stream Stream
}

// take makes files of our ends.
func (l *launched) take(s stdio) {
	for _, e := range s.ours {
		file := e.pollable()
		if e.stream == feeding {
			l.input = file
			continue
		}
		if e.stream == StreamTTY {
			l.terminal = file
		}
		l.outputs = append(l.outputs, output{file: file, stream: e.stream})
	}
}

// launch starts a plan's program as the leader of a session of its own.
func (p *plan) launch(start StartFunc) (launched, error) {
	s, err := p.open()
	if err != nil {
		return launched{}, err
	}
	defer s.closeChild()
	pidfd := -1
	attr := &syscall.ProcAttr{Dir: p.dir, Env: p.env, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: p.tty, PidFD: &pidfd}}
	attr.Files = make([]uintptr, 0, len(s.child))
	for _, d := range s.child {
		attr.Files = append(attr.Files, uintptr(d))
	}
	mark, pid, err := marks.start(func() (int, error) { return start(p.program, p.argv, attr) })
	if err != nil {
		s.closeAll()
		return launched{}, p.startError(err)
	}
	if pid <= 1 {
		// A signal to such a number would reach the engine's own group, or everybody.
		s.closeAll()
		return launched{}, fmt.Errorf("starting %q: the starter returned process id %d", p.program, pid)
	}
	l := launched{pid: pid, mark: mark}
	if pidfd < 0 {
		pidfd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		// Nobody could ever wait for it, so it must not go on.
		_ = unix.Kill(-pid, unix.SIGKILL)
		_, _ = waitid(unix.P_PID, pid, unix.WEXITED, nil)
		s.closeAll()
		return launched{}, fmt.Errorf("watching process %d: %w", pid, err)
	}
	// Only now: what it costs, it costs beside the child. In the poller, to wait for a process costs a goroutine and no thread.
	l.pidfd = descriptor(pidfd).pollable()
	l.take(s)
	return l, nil
}

// startError says what the kernel refused. It does not tell the folder from the program, so both are looked at.
func (p *plan) startError(err error) error {
	var errno syscall.Errno
	var already *StartError
	switch {
	case errors.As(err, &already):
		return err
	case !isErrno(err, &errno):
		return fmt.Errorf("starting %q: %w", p.program, err)
	case errno == syscall.EAGAIN || errno == syscall.ENOMEM:
		return &StartError{Op: "fork", Errno: errno}
	}
	if checkErr := p.check(); checkErr != nil {
		return checkErr
	}
	failed := &StartError{Op: "exec", Path: p.program, Errno: errno}
	if errno == syscall.ENOENT {
		failed.Detail = "the program is there, its interpreter or loader is not"
	}
	if errno == syscall.E2BIG {
		failed.Detail = p.tooBig()
	}
	return failed
}

// isErrno is whether an error is the kernel's bare answer and not the starter's own, which may wrap one.
func isErrno(err error, errno *syscall.Errno) bool {
	bare, ok := err.(syscall.Errno) //nolint:errorlint // a wrapped errno is another error on purpose
	*errno = bare
	return ok
}
