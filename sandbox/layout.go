package sandbox

import "net/netip"

// Layout says where the parts of a session lie on this machine. Paths are absolute
// and clean, and must not pass through a symbolic link: a link inside a writable
// folder could be turned elsewhere by a command before the next compilation.
type Layout struct {
	// Workspace is the folder that commands work in; it must exist.
	Workspace string
	// Writable are further folders that commands may write in WorkspaceWrite
	// mode: their home, their temporary folder, a pod's shared memory. A missing one grants nothing and is noted.
	Writable []string
	// Hidden are folders that protect the agent: its configuration and its journal.
	// In no mode can a command read, execute, create, change or remove anything in
	// them. They may be missing. None may lie in or around a writable folder.
	Hidden []string
	// Proxy is where the agent's own proxy listens on the loopback interface: all that
	// commands reach in Proxy mode. It must listen before the first start.
	Proxy netip.AddrPort
}

// Report says what a Launcher enforces.
type Report struct {
	// LandlockABI is the ABI that the rules were made for; 0 means no Landlock.
	LandlockABI int `json:"landlockABI"`
	// Seccomp says that the filter is installed.
	Seccomp bool `json:"seccomp"`
	// Denials says that what the filter refuses is observed, so that a command about which
	// there is no Denial was refused nothing by it.
	Denials bool `json:"denials"`
	// Network is the network mode that holds; it is never wider than the policy's unless NotEnforced says so.
	Network string `json:"network"`
	// Enforced says that every part of the policy is enforced.
	Enforced bool `json:"enforced"`
	// NotEnforced lists, one sentence each, what is not.
	NotEnforced []string `json:"notEnforced,omitempty"`
	// Notes lists, one sentence each, what is enforced by other means than the
	// newest kernel's, with which consequence, and what grants nothing because it is missing.
	Notes []string `json:"notes,omitempty"`
}
