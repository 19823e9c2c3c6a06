package sandbox

import (
	"fmt"
	"strings"
)

// FieldError says that a value of a policy or a layout is not acceptable.
type FieldError struct {
	// Field is the path of the field as a document spells it, such as filesystem.writableRoots[1].
	Field string
	// Value is the value that was refused.
	Value string
	// Reason says what the field takes.
	Reason string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: value %q: %s", e.Field, e.Value, e.Reason)
}

// Gap is one part of a policy that cannot be enforced here.
type Gap struct {
	// Field is the path of the policy's field; landlockABI and seccomp stand for what the kernel lacks.
	Field string
	// Value is the value that cannot be enforced: a mode, a path, the value of a limit.
	Value string
	// Reason says what is missing.
	Reason string
}

func (g Gap) String() string {
	return fmt.Sprintf("%s %q: %s", g.Field, g.Value, g.Reason)
}

// NotEnforceableError lists everything that a policy with Required enforcement
// asks for and that this version, kernel or layout cannot enforce.
type NotEnforceableError struct {
	Gaps []Gap
}

func (e *NotEnforceableError) Error() string {
	return "policy is not enforceable: " + strings.Join(sentences(e.Gaps), "; ")
}

func sentences(gaps []Gap) []string {
	if len(gaps) == 0 {
		return nil
	}
	list := make([]string, len(gaps))
	for i, gap := range gaps {
		list[i] = gap.String()
	}
	return list
}

// SetupError says that the sandbox of one process could not be set up, so that
// the process was never started. It is never an error of the program itself:
// those are returned as a bare syscall.Errno.
type SetupError struct {
	// Stage is one of the Stage constants.
	Stage string
	// Err is the cause, mostly a syscall.Errno.
	Err error
}

// The stages of a SetupError, in their order.
const (
	// StageLauncher means that the launcher is closed.
	StageLauncher = "launcher"
	// StageNarrowing means that the rules of a narrowing could not be made, or not all of them.
	StageNarrowing = "narrowing"
	// StageAttributes means that the process attributes ask for what a sandboxed start cannot do.
	StageAttributes = "attributes"
	// StageMark means that the process could not be given a mark, by which signals are kept within its sandbox.
	StageMark = "mark"
	// StageThread means that no thread could be had that may be confined.
	StageThread = "thread"
	// StageCapabilities means that the thread could not give up its capabilities.
	StageCapabilities = "capabilities"
	// StageNoNewPrivs means that no_new_privs could not be set.
	StageNoNewPrivs = "no_new_privs"
	// StageLandlock means that the Landlock rules could not be applied.
	StageLandlock = "landlock"
	// StageSeccomp means that the filter could not be installed.
	StageSeccomp = "seccomp"
	// StageLimits means that the process could not set its limits before it executed the program.
	StageLimits = "limits"
)

func (e *SetupError) Error() string {
	return fmt.Sprintf("setting up the sandbox: %s: %v", e.Stage, e.Err)
}

// Unwrap returns the cause.
func (e *SetupError) Unwrap() error { return e.Err }
