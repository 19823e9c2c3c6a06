package sandbox

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	llsyscall "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Launcher starts processes that are confined by one compiled policy. It may be
// used from several goroutines at once.
type Launcher struct {
	noNewPrivs bool
	program    []unix.SockFilter
	// observed is the same filter with a supervisor; empty where none can be had.
	observed    []unix.SockFilter
	notifyFlags uintptr
	decisions   ruleIndex
	names       map[uint32]string
	access      broker
	// brokered says that every start needs a supervisor, watched or not: some rule asks it.
	brokered bool
	// limiter is nil when every limit is inherited.
	limiter *limiter
	report  Report

	// mu is held for reading while a start uses the rules' descriptor.
	mu     sync.RWMutex
	closed bool
	// rules are applied one above the other: what all of them allow is allowed.
	rules   []*ruleset
	threads threads
	// made is what this was compiled from.
	made origin
}

// origin is what a launcher is compiled from.
type origin struct {
	policy Policy
	layout Layout
	caps   Capabilities
	gaps   []Gap
}

// Start starts a confined process, like syscall.ForkExec: attr.Sys.PidFD is
// honoured. The error is a *SetupError when the sandbox could not be set up, and a
// bare syscall.Errno when the program could not be executed.
func (l *Launcher) Start(argv0 string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	return l.start(argv0, argv, attr, nil)
}

// StartWatched is Start, and tells what the process and its descendants are refused.
// Where the kernel has no supervisor for us (Report.Denials is false), it tells nothing.
func (l *Launcher) StartWatched(argv0 string, argv []string, attr *syscall.ProcAttr, watch Watch) (pid int, err error) {
	pid, err = l.start(argv0, argv, attr, &watch)
	if watch.OnEnd != nil && (err != nil || len(l.observed) == 0) {
		watch.OnEnd()
	}
	return pid, err
}

// Prepare makes a thread ready for StartWatched, as is done for the next one after each.
func (l *Launcher) Prepare() {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if !l.closed {
		l.threads.prepare(len(l.observed) > 0, l.confineThread)
	}
}

func (l *Launcher) start(argv0 string, argv []string, attr *syscall.ProcAttr, watch *Watch) (pid int, err error) {
	if err := checkAttributes(attr); err != nil {
		return 0, &SetupError{Stage: StageAttributes, Err: err}
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return 0, &SetupError{Stage: StageLauncher, Err: os.ErrClosed}
	}
	if watch == nil && l.brokered {
		watch = &Watch{}
	}
	supervised := watch != nil && len(l.observed) > 0
	begin := func() started {
		return l.launch(start{argv0: argv0, argv: argv, attr: attr, result: make(chan started, 1)}, supervised)
	}
	var wall *signalWall
	var end started
	if supervised && l.access.scopes {
		wall = l.newWall(attr)
		wall.mark, end = marks.start(begin)
	} else {
		end = begin()
	}
	if end.listener >= 0 {
		s := newSupervisor(end.listener, l, wall, *watch)
		go func() { // ends with the last process that has the filter
			s.run()
			time.Sleep(endDelay)
			l.threads.prepare(supervised, l.confineThread)
		}()
	}
	return end.pid, end.err
}

// launch starts a process, through the limiter if there are limits to set.
func (l *Launcher) launch(s start, supervised bool) started {
	if l.limiter == nil {
		return l.threads.start(s, supervised, l.confineThread)
	}
	wrapped, w, err := l.limiter.wrap(s)
	if err != nil {
		return started{listener: -1, err: err}
	}
	return w.finish(l.threads.start(wrapped, supervised, l.confineThread))
}

func (l *Launcher) newWall(attr *syscall.ProcAttr) *signalWall {
	return &signalWall{
		agent:       os.Getpid(),
		ownSession:  attr != nil && attr.Sys != nil && attr.Sys.Setsid,
		answerFirst: l.notifyFlags&unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV == 0,
	}
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
	l.threads.close()
	err := l.limiter.close()
	for _, rules := range l.rules {
		err = errors.Join(err, rules.close())
	}
	return err
}

// confineThread restricts the calling thread for good, the filter last because it
// refuses some of what comes before it. It returns the supervisor's listener, or -1.
func (l *Launcher) confineThread(supervised bool) (listener int, err error) {
	if err := dropThreadCapabilities(); err != nil {
		return -1, &SetupError{Stage: StageCapabilities, Err: err}
	}
	if !l.noNewPrivs {
		return -1, nil
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, &SetupError{Stage: StageNoNewPrivs, Err: err}
	}
	for _, rules := range l.rules {
		if rules.fd < 0 {
			continue
		}
		if err := llsyscall.LandlockRestrictSelf(rules.fd, rules.flags); err != nil {
			return -1, &SetupError{Stage: StageLandlock, Err: err}
		}
	}
	switch {
	case supervised:
		listener, err = installListener(l.observed, l.notifyFlags)
	case len(l.program) > 0:
		listener, err = -1, installFilter(l.program)
	default:
		listener = -1
	}
	if err != nil {
		return -1, &SetupError{Stage: StageSeccomp, Err: err}
	}
	return listener, nil
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
