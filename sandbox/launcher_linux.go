package sandbox

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	llsyscall "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Launcher starts processes that are confined by one compiled policy. It may be
// used from several goroutines at once.
type Launcher struct {
	noNewPrivs bool
	program    []unix.SockFilter
	report     Report

	// mu is held for reading while a start uses the rules' descriptor.
	mu     sync.RWMutex
	closed bool
	rules  *ruleset
}

// started is what a start ended with.
type started struct {
	pid int
	err error
}

// Start starts a confined process, like syscall.ForkExec: attr.Sys.PidFD is
// honoured. The error is a *SetupError when the sandbox could not be set up, and a
// bare syscall.Errno when the program could not be executed.
func (l *Launcher) Start(argv0 string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	if err := checkAttributes(attr); err != nil {
		return 0, &SetupError{Stage: StageAttributes, Err: err}
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return 0, &SetupError{Stage: StageLauncher, Err: os.ErrClosed}
	}
	result := make(chan started, 1)
	go onSpareThread(result, func() started {
		if err := l.confineThread(); err != nil {
			return started{err: err}
		}
		pid, err := syscall.ForkExec(argv0, argv, attr)
		return started{pid: pid, err: err}
	})
	end := <-result
	return end.pid, end.err
}

// Report says what this launcher enforces.
func (l *Launcher) Report() Report { return l.report }

// Close releases the rules. Processes that were started stay confined; a start afterwards fails.
func (l *Launcher) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	return l.rules.close()
}

// onSpareThread runs fn on a thread that ends with it: the goroutine never
// unlocks its thread, so Go destroys it instead of giving it to other goroutines. The one
// thread that Go cannot destroy is the main one. Whoever lands there holds it until another
// goroutine, which then cannot land there, has done the work.
func onSpareThread(result chan<- started, fn func() started) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		result <- fn()
		return
	}
	inner := make(chan started, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			runtime.UnlockOSThread()
			inner <- started{err: &SetupError{Stage: StageThread, Err: errors.New("the main thread cannot be confined")}}
			return
		}
		inner <- fn()
	}()
	result <- <-inner
	runtime.UnlockOSThread()
}

// confineThread restricts the calling thread for good, the filter last because it
// refuses some of what comes before it.
func (l *Launcher) confineThread() error {
	if err := dropThreadCapabilities(); err != nil {
		return &SetupError{Stage: StageCapabilities, Err: err}
	}
	if !l.noNewPrivs {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return &SetupError{Stage: StageNoNewPrivs, Err: err}
	}
	if l.rules.fd >= 0 {
		if err := llsyscall.LandlockRestrictSelf(l.rules.fd, l.rules.flags); err != nil {
			return &SetupError{Stage: StageLandlock, Err: err}
		}
	}
	if len(l.program) == 0 {
		return nil
	}
	if err := installFilter(l.program); err != nil {
		return &SetupError{Stage: StageSeccomp, Err: err}
	}
	return nil
}

func installFilter(program []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return errno
	}
	return nil
}

// checkAttributes refuses what cannot work on a confined thread that ends after the start.
func checkAttributes(attr *syscall.ProcAttr) error {
	if attr == nil || attr.Sys == nil {
		return nil
	}
	sys := attr.Sys
	refused := []struct {
		field string
		set   bool
		why   string
	}{
		{"Pdeathsig", sys.Pdeathsig != 0, "would fire as soon as the thread that starts the process ends"},
		{"Ptrace", sys.Ptrace, "is refused by the filter"},
		{"Chroot", sys.Chroot != "", "is refused by the filter"},
		{"Cloneflags", sys.Cloneflags != 0, "new namespaces are refused by the filter"},
		{"Unshareflags", sys.Unshareflags != 0, "new namespaces are refused by the filter"},
		{"UseCgroupFD", sys.UseCgroupFD, "needs clone3, whose arguments a filter cannot read"},
		{"AmbientCaps", len(sys.AmbientCaps) > 0, "a sandboxed process has no capabilities"},
		{"Credential", sys.Credential != nil, "a sandboxed process keeps the agent's user"},
	}
	for _, r := range refused {
		if r.set {
			return &FieldError{Field: "attr.Sys." + r.field, Value: "set", Reason: r.why}
		}
	}
	return nil
}
