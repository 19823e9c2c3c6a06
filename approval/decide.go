package approval

import "fmt"

// Request is what a call says about the rights that it wants.
type Request struct {
	// SandboxPermissions is the call's sandbox_permissions; empty means that it was not given.
	SandboxPermissions string
	// Justification is the call's justification for asking for more.
	Justification string
	// PrefixRule is the call's suggestion of a rule that would allow it next time.
	PrefixRule []string
}

// Verdict says what happens to a command.
type Verdict string

// The verdicts.
const (
	// Run runs the command in its sandbox.
	Run Verdict = "Run"
	// Refuse runs nothing.
	Refuse Verdict = "Refuse"
)

// Reason is a machine-readable reason of a Decision.
type Reason string

// The reasons.
const (
	// ReasonDefault means that nothing beyond the sandbox was asked for.
	ReasonDefault Reason = "Default"
	// ReasonEscalationNever means that the policy refuses every request for more.
	ReasonEscalationNever Reason = "EscalationNever"
	// ReasonInvalid means that the request contradicts itself or holds an unknown value.
	ReasonInvalid Reason = "InvalidRequest"
)

// Decision is what happens to a command, and why.
type Decision struct {
	Verdict Verdict
	Reason  Reason
	// Message says the reason to whoever asked; empty when the verdict is Run.
	Message string
	// Err is a *FieldError when the request itself is at fault.
	Err error
}

// FieldError says that a value of a request or a policy is not acceptable.
type FieldError struct {
	Field  string
	Value  string
	Reason string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: value %q: %s", e.Field, e.Value, e.Reason)
}

// Decide says what happens to a command. It is a pure function of its input.
func Decide(policy Policy, request Request) Decision {
	switch request.SandboxPermissions {
	case "", "use_default":
		return Decision{Verdict: Run, Reason: ReasonDefault}
	}
	return Decision{Verdict: Refuse, Reason: ReasonEscalationNever, Message: "this session's policy grants nothing beyond its sandbox"}
}
