package approval

import "fmt"

// Escalation says whether a command may ask for more than its sandbox allows.
type Escalation string

// EscalationNever refuses every request for more.
const EscalationNever Escalation = "Never"

// Policy is the part of a profile about which commands run.
type Policy struct {
	Escalation Escalation `json:"escalation"`
}

// Validate returns a *FieldError for the first value that is not acceptable.
func (p Policy) Validate() error {
	if p.Escalation == EscalationNever {
		return nil
	}
	return &FieldError{Field: "escalation", Value: string(p.Escalation), Reason: "must be " + string(EscalationNever)}
}

// FieldError says that a value of a request or a policy is not acceptable.
type FieldError struct {
	// Field is the name of the field as a document or a call spells it.
	Field string
	// Value is the value that was refused.
	Value string
	// Reason says what the field takes.
	Reason string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: value %q: %s", e.Field, e.Value, e.Reason)
}
