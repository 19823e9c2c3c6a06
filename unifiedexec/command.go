package unifiedexec

import "time"

// StdinMode says what a process finds on its standard input.
type StdinMode int

// The stdin modes. A process on a terminal always reads the terminal and takes only StdinNull.
const (
	// StdinNull is /dev/null; on a terminal, the terminal.
	StdinNull StdinMode = iota
	// StdinOpen is a pipe that stays open until CloseStdin.
	StdinOpen
	// StdinData is Command.StdinData and then end of file.
	StdinData
)

// Size is a terminal's size in characters.
type Size struct {
	Rows, Columns uint16
}

// Command says what to run. Exactly one of Script and Argv is set.
type Command struct {
	// Script is shell text, run by the session's shell. It may be larger than one argument
	// of the kernel can be.
	Script string
	// Argv is a program and its arguments, run without a shell.
	Argv []string
	// Workdir is absolute, or relative to Settings.Workdir; empty means Settings.Workdir.
	Workdir string
	// Env is laid over the environment that the policy gives, and over what a shell's start-up files make of it. They do
	// not see it: with another HOME than the session's they are the session's still.
	Env map[string]string
	// TTY runs the command on a terminal of its own.
	TTY bool
	// Size is the terminal's size; zero means 24 rows and 80 columns.
	Size Size
	// Stdin says what the command reads; StdinData is for StdinMode StdinData.
	Stdin     StdinMode
	StdinData []byte
	// Timeout is the process's own life, apart from any wait; 0 means no limit.
	Timeout time.Duration
	// Shell is, for scripts, the kind of shell (bash, sh, zsh) or a path whose base name says
	// the kind; empty means the session's.
	Shell string
	// Login says, for scripts, whether the shell is a login shell; nil means as the settings allow.
	Login *bool
	// Start starts this command; nil means Settings.Start.
	Start StartFunc
}

// ExecCommandRequest is a command and how long to wait for it.
type ExecCommandRequest struct {
	Command Command
	// YieldTimeMS is how long the call waits for the end; nil means 10000. It is clamped to
	// 250..30000, with a notice.
	YieldTimeMS *int64
	// MaxOutputTokens bounds Result.Output; nil means 10000.
	MaxOutputTokens *int64
}

// WriteStdinRequest feeds or polls a process that ExecCommand left running.
type WriteStdinRequest struct {
	ProcessID int32
	// Chars is what to write; empty only polls. On pipes a single U+0003 interrupts the
	// process group, whether stdin is open or not.
	Chars string
	// CloseStdin ends the process's input after Chars; it needs a pipe that was opened with StdinOpen.
	CloseStdin bool
	// YieldTimeMS is how long the call waits; nil means 250. It is clamped, with a notice: with
	// input to 250..30000, without to 5000..Limits.BackgroundPollMax.
	YieldTimeMS     *int64
	MaxOutputTokens *int64
}

// Result answers ExecCommand and WriteStdin.
type Result struct {
	// ChunkID is six lower-case hex digits, new for every result.
	ChunkID string
	// WallTime is how long the call waited.
	WallTime time.Duration
	// ProcessID names the process for WriteStdin while it runs; 0 once it ended.
	ProcessID int32
	// Exit is set once the process ended.
	Exit *ExitRecord
	// OriginalTokenCount counts the output before any cut, at four bytes a token.
	OriginalTokenCount int64
	// Output is what the process wrote since the previous result: valid UTF-8, cut to the token budget.
	Output string
	// Notices tell clamps and other remarks, a sentence each.
	Notices []string
}

// ExitReason says what ended a process.
type ExitReason string

// The exit reasons, spelled as the ledger spells them.
const (
	// ReasonExited: the process ended by itself.
	ReasonExited ExitReason = "Exited"
	// ReasonSignaled: a signal that the engine did not send ended it.
	ReasonSignaled ExitReason = "Signaled"
	// ReasonTimedOut: Command.Timeout was over and the engine ended it; the code is 124.
	ReasonTimedOut ExitReason = "TimedOut"
	// ReasonStopped: somebody asked the engine to stop it.
	ReasonStopped ExitReason = "Stopped"
	// ReasonOutOfMemory: the kernel's out-of-memory killer ended it.
	ReasonOutOfMemory ExitReason = "OutOfMemory"
	// ReasonPolicy: the policy ended it.
	ReasonPolicy ExitReason = "Policy"
	// ReasonEngineStopped: the engine closed while it ran.
	ReasonEngineStopped ExitReason = "EngineStopped"
)

// ExitRecord is the one truth about a process's end.
type ExitRecord struct {
	Reason ExitReason
	// Code is the process's code, or 128 and the signal's number. With ReasonTimedOut it is 124, whatever the process made
	// of the signal: one that ends with 0 when it is asked to did not do what it was started for.
	Code int
	// Signal is SIGKILL and so on when a signal ended it, also after a timeout.
	Signal    string
	StartTime time.Time
	EndTime   time.Time
	// Message says more where the reason alone does not.
	Message string
	// UserTime, SystemTime and MaxRSS (in bytes) are the process's own use and that of the children it waited for. The
	// kernel counts into MaxRSS what the process shared with the engine before it became its program.
	UserTime, SystemTime time.Duration
	MaxRSS               int64
}

// State is where a process is in its life.
type State int

// The states.
const (
	StateRunning State = iota + 1
	StateExited
)

// Info is what List and the callbacks tell about a process.
type Info struct {
	ID    int32
	State State
	// Command is the script as given, or the arguments quoted for a shell.
	Command string
	// Program is the path that was executed: the shell for a script.
	Program string
	Workdir string
	TTY     bool
	// StdinOpen is whether Write can still work.
	StdinOpen bool
	StartTime time.Time
	// PID is the kernel's process id. Mark names the process and its descendants for good or, when there are no marks,
	// PIDStart together with PID, for a journal: its start in clock ticks since the machine's.
	PID            int
	PIDStart, Mark uint64
	// OutputBytes is the newest offset; DroppedBytes counts bytes that are no longer kept.
	OutputBytes  uint64
	DroppedBytes uint64
	// SpilledBytes is how much of it is in a file; SpillProblem is why no more goes there, if that was not the limit.
	SpilledBytes uint64
	SpillProblem string
	// OOMScoreKept says that the kernel did not let the engine raise the process's oom_score_adj.
	OOMScoreKept bool
	// OutputLost says that the process ran under an earlier engine, which nobody can ask how much it had written.
	OutputLost bool
	// OutputOpen is whether somebody still holds the output: the process or a descendant.
	OutputOpen bool
	// Exit is set once the process ended.
	Exit *ExitRecord
	// Descendants counts living processes that belong to it, itself not counted. Only List fills it in.
	Descendants int
	// Told says that a result told the end. Only Kept fills it in.
	Told bool
}
