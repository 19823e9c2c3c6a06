package unifiedexec

import (
	"syscall"
	"time"
)

// StartFunc starts a program like syscall.ForkExec and must honour attr.Sys.PidFD. An error
// that is a syscall.Errno is the kernel's word on the program; any other error is
// passed through, wrapped.
type StartFunc func(argv0 string, argv []string, attr *syscall.ProcAttr) (pid int, err error)

// Config is what an engine is made with. Its zero value works: it runs commands in the current
// folder with the caller's environment under the default policy.
type Config struct {
	// Settings are the first settings; Configure replaces them.
	Settings Settings
	// Environ is the environment that commands inherit from, as os.Environ returns it; nil means os.Environ().
	Environ []string
	// Subreaper makes this process adopt orphaned descendants (PR_SET_CHILD_SUBREAPER), so
	// that Stop reaches them. Process id 1 does that anyway.
	Subreaper bool
	// ReapOrphans collects every child of this process that the engine did not start. It
	// takes exits away from os/exec, so set it only where nothing else starts processes.
	ReapOrphans bool
	// StopGrace is the time between asking (SIGTERM) and killing; 0 means 3 seconds.
	StopGrace time.Duration
	// DrainGrace is how long an exit record waits for output that a descendant still holds
	// open, after everything that was already written is in the log; 0 means 50 milliseconds.
	DrainGrace time.Duration
	// OOMScoreAdj is what commands get as oom_score_adj, so that the kernel ends them before the
	// engine when memory is short; 0 leaves them as the engine is.
	OOMScoreAdj int
	// MemoryEvents is the memory.events file of the engine's memory group, by which a kill of the
	// out-of-memory killer is told from others; empty means the container's own.
	MemoryEvents string
	// Spill says where output goes that leaves memory.
	Spill SpillConfig
	// Journal is told starts and ends before anybody else is; nil means that nothing outlives the engine.
	Journal Journal
	// OnStart and OnExit are told every start and every exit, in order for each process,
	// by one goroutine at a time, without any lock held; a slow one delays only later callbacks.
	OnStart func(Info)
	OnExit  func(Info)
}

// Settings may change while the engine runs; running commands keep what they started with.
type Settings struct {
	// Start starts programs; nil means syscall.ForkExec.
	Start StartFunc
	// Environment says what commands inherit.
	Environment EnvironmentPolicy
	// Shell says what runs scripts.
	Shell ShellSettings
	// Workdir is where commands run unless they say otherwise; empty means the current folder.
	Workdir string
	// Home and TempDir become HOME and TMPDIR unless the policy's Set or the command says otherwise;
	// empty means as inherited, or the passwd entry's home and /tmp.
	Home, TempDir string
	// PathPrepend goes before everything else in PATH, also what a shell's start-up files put there.
	PathPrepend []string
	// Limits bound the table and the results; zero fields mean the defaults.
	Limits Limits
}

// Inherit says which inherited variables a command starts with.
type Inherit string

// The inheritances. Empty means InheritAll.
const (
	InheritAll  Inherit = "All"
	InheritCore Inherit = "Core"
	InheritNone Inherit = "None"
)

// EnvironmentPolicy says which variables commands get. Patterns match whole names, ignoring
// case, with * and ?. The order is Inherit, the secret excludes, Exclude, Set, IncludeOnly. A shell's start-up files come
// before: what they export is kept out by the same patterns, and Set is above it.
type EnvironmentPolicy struct {
	Inherit Inherit
	// KeepSecrets keeps names that look like secrets (*KEY*, *SECRET*, *TOKEN*), which are dropped by default.
	KeepSecrets bool
	Exclude     []string
	Set         map[string]string
	IncludeOnly []string
}

// Login says whether scripts may run in a login shell.
type Login string

// The logins. Empty means LoginAllowed.
const (
	// LoginAllowed: a script's shell is a login shell unless the command says otherwise.
	LoginAllowed Login = "Allowed"
	// LoginForbidden: it never is, and asking for one is an error.
	LoginForbidden Login = "Forbidden"
)

// Persistence says what one script leaves for the next.
type Persistence string

// The persistences. Empty means PersistNone.
const (
	PersistNone        Persistence = "None"
	PersistEnvironment Persistence = "Environment"
)

// ShellSettings say what runs scripts.
type ShellSettings struct {
	// Path is the shell's program; empty means the passwd entry's shell, bash, zsh or /bin/sh, whichever is there first.
	Path  string
	Login Login
	// Persistence is for scripts of ExecCommand and ExecOneShot that bash runs; the others neither take nor leave anything. A
	// shell leaves its state at descriptors 28 and 29, which its programs inherit, in its exit trap. A script that needs
	// any of these itself leaves nothing, and the result has a notice.
	Persistence Persistence
	// Snapshot keeps in memory what a login bash's start-up files do, so that a login costs what a plain shell
	// costs. A script then runs in a shell that is no login shell but has what one would have. Start-up files that set limits
	// or traps are not kept: every login reads them.
	Snapshot bool
}

// Limits bound the table and the results.
type Limits struct {
	// MaxProcesses is how many processes the table holds whose end was not delivered; 0 means 64.
	MaxProcesses int
	// ProtectedProcesses is how many of the most recently used are never ended to make room; 0 means 8.
	ProtectedProcesses int
	// BackgroundPollMax is the longest wait of an empty poll; 0 means 5 minutes, and less than 5 seconds means 5 seconds.
	BackgroundPollMax time.Duration
	// MaxOutputTokens caps the budget of every result; 0 means no cap.
	MaxOutputTokens int64
	// OutputBytes is how much output is kept in memory for each process, half of it from the
	// start and half from the end; 0 means 1 MiB.
	OutputBytes int
	// EndedProcesses, EndedBytes and EndedTime say how many ended processes are kept for List and for
	// readers, how much output they may hold together, and for how long; 0 means 64, 8 MiB and 10 minutes.
	EndedProcesses int
	EndedBytes     int
	EndedTime      time.Duration
}
