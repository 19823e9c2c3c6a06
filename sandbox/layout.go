package sandbox

// Layout says where the parts of a session lie on this machine. Paths are absolute and clean.
type Layout struct {
	// Workspace is the folder that commands work in; it must exist.
	Workspace string
	// Writable are further folders that commands may write in WorkspaceWrite
	// mode: their home and their temporary folder. Missing ones are reported.
	Writable []string
	// Hidden are folders that no command may read, list, execute from or write
	// in any mode: the agent's configuration and its journal. They may be missing.
	Hidden []string
}

// Report says what a Launcher enforces.
type Report struct {
	// LandlockABI is the ABI that the rules were made for; 0 means no Landlock.
	LandlockABI int `json:"landlockABI"`
	// Seccomp says that the filter is installed.
	Seccomp bool `json:"seccomp"`
	// Network is the network mode that is enforced.
	Network string `json:"network"`
	// Enforced says that every part of the policy is enforced.
	Enforced bool `json:"enforced"`
	// NotEnforced lists, one sentence each, what is not.
	NotEnforced []string `json:"notEnforced,omitempty"`
	// Substitutes lists what is enforced by other means than the newest kernel's, and with which consequence.
	Substitutes []string `json:"substitutes,omitempty"`
}
