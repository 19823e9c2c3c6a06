package approval

// Escalation says whether a command may ask for more than its sandbox allows.
type Escalation string

// EscalationNever refuses every request for more.
const EscalationNever Escalation = "Never"

// Policy is the part of a profile about which commands run.
type Policy struct {
	Escalation Escalation `json:"escalation"`
}
