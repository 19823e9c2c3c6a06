package approval

import "strings"

// The values of sandbox_permissions.
const (
	// UseDefault runs the command in its sandbox.
	UseDefault = "use_default"
	// RequireEscalated asks to run the command outside of its sandbox.
	RequireEscalated = "require_escalated"
	// WithAdditionalPermissions asks for a wider sandbox.
	WithAdditionalPermissions = "with_additional_permissions"
)

// Request is what a call says about the rights that it wants.
type Request struct {
	// SandboxPermissions is the call's sandbox_permissions; empty means that it was not given.
	SandboxPermissions string
	// Justification is the call's justification for asking for more.
	Justification string
	// PrefixRule is the call's suggestion of a rule that would allow it next time.
	// It means something only together with RequireEscalated.
	PrefixRule []string
	// Beyond says, for people, what else the call asks for that its sandbox does not allow; empty when that is nothing.
	Beyond string
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
	// ReasonInvalidRequest means that the request contradicts itself or holds an unknown value.
	ReasonInvalidRequest Reason = "InvalidRequest"
	// ReasonInvalidPolicy means that the policy itself is not acceptable; nothing runs under it.
	ReasonInvalidPolicy Reason = "InvalidPolicy"
)

// Decision is what happens to a command, and why.
type Decision struct {
	Verdict Verdict
	Reason  Reason
	// Message says the reason to whoever asked; empty when the verdict is Run.
	Message string
	// Err is a *FieldError when the request or the policy is at fault, else nil.
	Err error
}

// Decide says what happens to a command. It is a pure function of its input.
func Decide(policy Policy, request Request) Decision {
	if err := policy.Validate(); err != nil {
		return invalid(ReasonInvalidPolicy, err)
	}
	if err := request.validate(); err != nil {
		return invalid(ReasonInvalidRequest, err)
	}
	escalated := request.SandboxPermissions != "" && request.SandboxPermissions != UseDefault
	switch {
	case !escalated && request.Beyond == "":
		return Decision{Verdict: Run, Reason: ReasonDefault}
	case !escalated:
		return Decision{
			Verdict: Refuse,
			Reason:  ReasonEscalationNever,
			Message: request.Beyond + "; the profile of this session never grants more than its sandbox allows (escalation " + string(policy.Escalation) + ")",
		}
	}
	return Decision{
		Verdict: Refuse,
		Reason:  ReasonEscalationNever,
		Message: "sandbox_permissions " + request.SandboxPermissions + " is refused: the profile of this session never grants more than its sandbox allows " +
			"(escalation " + string(policy.Escalation) + "); call again without sandbox_permissions and justification to run the command inside of it",
	}
}

func (r Request) validate() error {
	switch r.SandboxPermissions {
	case UseDefault, RequireEscalated, WithAdditionalPermissions:
		return nil
	case "":
	default:
		return &FieldError{
			Field:  "sandbox_permissions",
			Value:  r.SandboxPermissions,
			Reason: "must be one of " + strings.Join([]string{UseDefault, RequireEscalated, WithAdditionalPermissions}, ", "),
		}
	}
	if r.Justification == "" {
		return nil
	}
	return &FieldError{
		Field:  "justification",
		Value:  r.Justification,
		Reason: "is for a request for more rights: set sandbox_permissions to " + RequireEscalated + " as well, or leave justification out",
	}
}

func invalid(reason Reason, err error) Decision {
	return Decision{Verdict: Refuse, Reason: reason, Message: err.Error(), Err: err}
}
