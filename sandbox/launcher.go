package sandbox

import (
	"errors"
	"syscall"
)

// Launcher starts processes that are confined by one compiled policy. It may be
// used from several goroutines at once.
type Launcher struct {
	report Report
}

// Compile turns a policy into a Launcher for this layout and kernel. The error is
// a *FieldError for a value that is not acceptable and a *NotEnforceableError
// when enforcement is Required and something cannot be enforced.
func Compile(policy Policy, layout Layout, caps Capabilities) (*Launcher, error) {
	return nil, &NotEnforceableError{Gaps: []Gap{{Field: "filesystem.mode", Value: string(policy.Filesystem.Mode), Reason: "the compiler is not linked into this build"}}}
}

// Start starts a confined process, like syscall.ForkExec: attr.Sys.PidFD is
// honoured. The error is a *SetupError when the sandbox could not be set up, and a
// bare syscall.Errno when the program could not be executed.
func (l *Launcher) Start(argv0 string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	return 0, &SetupError{Stage: StageThread, Err: errors.ErrUnsupported}
}

// Report says what this launcher enforces.
func (l *Launcher) Report() Report { return l.report }

// Close releases the rules. Processes that were started stay confined; Start fails afterwards.
func (l *Launcher) Close() error { return nil }
