package ledger

import "time"

// SourceEnforced marks a denial that is a fact: the sandbox itself answered the calls.
const SourceEnforced = "Enforced"

// Denied says what the sandbox refused to a command that runs. One record stands for
// Count calls that differ in nothing told here.
type Denied struct {
	// ID is the command; 0 where that is not known, as of what the proxy refused.
	ID int32 `json:"id"`
	// Source says what the record is worth; so far it is always SourceEnforced.
	Source string `json:"source"`
	// Rule is the identifier of the rule, such as socket, mounts or policy; egress is the proxy's.
	Rule string `json:"rule"`
	// Syscall is the call; Arguments and Address are what it wanted, as far as a reader needs it.
	Syscall   string `json:"syscall,omitempty"`
	Arguments string `json:"arguments,omitempty"`
	Address   string `json:"address,omitempty"`
	// Errno is the name of what the calls failed with; the proxy answers with a reason, in Arguments, instead.
	Errno string `json:"errno,omitempty"`
	// Program is the path of the program and PID the process that made the first of them.
	Program string `json:"program,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Count   uint64 `json:"count"`
	// Mixed says that calls of more kinds than are told apart were counted together, by their rule alone.
	Mixed     bool      `json:"mixed,omitempty"`
	FirstTime time.Time `json:"firstTime"`
	LastTime  time.Time `json:"lastTime"`
}
