package ledger

import "time"

// Version is the version of the records that this package reads and writes.
const Version = 1

// MaxRecordBytes is the most that one record takes, its newline included.
const MaxRecordBytes = 8192

// Type tells what a record is about.
type Type string

// The types of records. A reader skips types that it does not know.
const (
	// TypeStatus carries the whole current state.
	TypeStatus Type = "status"
	// TypeStarted says that a command started.
	TypeStarted Type = "started"
	// TypeExited says that a command ended, and how.
	TypeExited Type = "exited"
	// TypePolicy says that the policy was taken over or became invalid.
	TypePolicy Type = "policy"
	// TypeRefused says that a command was not started, and why.
	TypeRefused Type = "refused"
	// TypeDenied says what the sandbox refused to a command that runs.
	TypeDenied Type = "denied"
)

// Record is one line. Exactly the pointer that belongs to its type is set.
type Record struct {
	Version int       `json:"v"`
	Boot    string    `json:"boot"`
	Seq     uint64    `json:"seq"`
	Time    time.Time `json:"time"`
	Type    Type      `json:"type"`

	Status  *Status  `json:"status,omitempty"`
	Started *Started `json:"started,omitempty"`
	Exited  *Exited  `json:"exited,omitempty"`
	Policy  *Policy  `json:"policy,omitempty"`
	Refused *Refused `json:"refused,omitempty"`
	Denied  *Denied  `json:"denied,omitempty"`
}

// Status is the whole current state: the newest one is all that a reader needs.
type Status struct {
	AgentVersion string    `json:"agentVersion"`
	StartTime    time.Time `json:"startTime"`
	// Stopping is true once agentd was told to end.
	Stopping  bool      `json:"stopping,omitempty"`
	Sandbox   Sandbox   `json:"sandbox"`
	Policy    Policy    `json:"policy"`
	Processes Processes `json:"processes"`
	// Denied counts the calls of commands that the sandbox refused, also those that no record tells.
	Denied uint64 `json:"denied,omitempty"`
	// LastActivity is when a command last started, ended, read or wrote.
	LastActivity time.Time `json:"lastActivity,omitzero"`
	// DroppedRecords counts records that could not be written.
	DroppedRecords uint64 `json:"droppedRecords,omitempty"`
	// Journal is set when something is wrong with what shall outlive a kill of agentd.
	Journal *Journal `json:"journal,omitempty"`
	// SpillFailures counts commands of this boot whose output could not be kept on disk up to its limit.
	SpillFailures uint64 `json:"spillFailures,omitempty"`
	// OOMScoresKept counts commands of this boot that the kernel, short of memory, does not prefer to agentd: it did not let
	// agentd raise their score, as of programs that may not be read.
	OOMScoresKept uint64 `json:"oomScoresKept,omitempty"`
}

// Journal is the state of the file in which starts and ends are noted.
type Journal struct {
	// Lost counts records that could not be written, Skipped those of earlier runs that could not be read.
	Lost    uint64 `json:"lost,omitempty"`
	Skipped uint64 `json:"skipped,omitempty"`
	// Problem says what is wrong now; it is empty again once the file holds everything.
	Problem string `json:"problem,omitempty"`
}

// Sandbox is what the kernel enforces for commands under the current policy.
type Sandbox struct {
	LandlockABI int  `json:"landlockABI"`
	Seccomp     bool `json:"seccomp"`
	// Denials says that denials are observed: none told means none made by the filter.
	Denials     bool     `json:"denials"`
	Network     string   `json:"network,omitempty"`
	Enforced    bool     `json:"enforced"`
	NotEnforced []string `json:"notEnforced,omitempty"`
}

// Policy is the state of the signed documents.
type Policy struct {
	Valid bool `json:"valid"`
	// Reason is a CamelCase word, empty when valid.
	Reason          string `json:"reason,omitempty"`
	Message         string `json:"message,omitempty"`
	ProfileHash     string `json:"profileHash,omitempty"`
	SessionRevision int64  `json:"sessionRevision,omitempty"`
}

// Processes counts commands of this boot.
type Processes struct {
	Running int    `json:"running"`
	Exited  uint64 `json:"exited"`
}

// Started says what was started.
type Started struct {
	ID int32 `json:"id"`
	// Program is the base name of the program, or of the shell for a script.
	Program string `json:"program"`
	// Digest is "sha256:" and the hex digest of the command.
	Digest string `json:"digest"`
	// Command is the whole command, cut to fit, and only when the profile says Full.
	Command string `json:"command,omitempty"`
	TTY     bool   `json:"tty,omitempty"`
}

// Exited says how a command ended.
type Exited struct {
	ID int32 `json:"id"`
	// Reason is one of the wire's exit reasons in CamelCase: Exited, Signaled, TimedOut, Stopped,
	// OutOfMemory, Policy, EngineStopped.
	Reason      string    `json:"reason"`
	ExitCode    int32     `json:"exitCode"`
	Signal      string    `json:"signal,omitempty"`
	StartTime   time.Time `json:"startTime"`
	EndTime     time.Time `json:"endTime"`
	OutputBytes uint64    `json:"outputBytes"`
	// Message says more where the reason alone does not: of a command that an earlier agentd started, for one, how
	// much is known of its end.
	Message string `json:"message,omitempty"`
}

// Refused says why a command was not started.
type Refused struct {
	// Reason is one of the wire's error reasons.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Digest  string `json:"digest,omitempty"`
}
