package sandbox

// FilesystemMode says what a process may write.
type FilesystemMode string

// The filesystem modes.
const (
	// ReadOnly allows reading and executing; only device files such as /dev/null are writable.
	ReadOnly FilesystemMode = "ReadOnly"
	// WorkspaceWrite adds writing to the workspace, the temporary folders and the writable roots.
	WorkspaceWrite FilesystemMode = "WorkspaceWrite"
	// FullAccess allows what file permissions allow, except what protects the agent itself.
	FullAccess FilesystemMode = "FullAccess"
)

// NetworkMode says what a process may reach.
type NetworkMode string

// The network modes.
const (
	// NoNetwork allows Unix sockets and reading the list of interfaces.
	NoNetwork NetworkMode = "None"
	// LoopbackNetwork adds TCP within the loopback interface.
	LoopbackNetwork NetworkMode = "Loopback"
	// ProxyNetwork adds TCP to the agent's filtering proxy (Layout.Proxy), and to nothing else.
	ProxyNetwork NetworkMode = "Proxy"
	// OpenNetwork adds TCP and UDP.
	OpenNetwork NetworkMode = "Open"
)

// Enforcement says what happens when a part of the policy cannot be enforced.
type Enforcement string

// The enforcements.
const (
	// Required refuses to run anything.
	Required Enforcement = "Required"
	// BestEffort runs and reports what is missing.
	BestEffort Enforcement = "BestEffort"
)

// Policy says what a process may touch. The zero value is invalid: a policy is
// always complete, so that a field that was forgotten can not widen it.
type Policy struct {
	Filesystem  Filesystem  `json:"filesystem"`
	Network     Network     `json:"network"`
	Process     Process     `json:"process"`
	Enforcement Enforcement `json:"enforcement"`
	// MinLandlockABI is the oldest Landlock ABI that may enforce the policy; 0 leaves it to the compiler.
	MinLandlockABI int `json:"minLandlockABI,omitempty"`
}

// Filesystem is the part of a Policy about files. Paths are absolute and clean.
type Filesystem struct {
	Mode          FilesystemMode `json:"mode"`
	WritableRoots []string       `json:"writableRoots,omitempty"`
	// ReadOnlyPaths cannot be changed. Below a folder that commands write they have to be read-only mounts.
	ReadOnlyPaths []string `json:"readOnlyPaths,omitempty"`
	// DeniedPaths cannot be read either. With *, ? or [ one is a pattern: as filepath.Match takes them, between two
	// slashes, where ** stands for any number of folders. It is looked up when the policy is compiled.
	DeniedPaths []string `json:"deniedPaths,omitempty"`
}

// Network is the part of a Policy about sockets.
type Network struct {
	Mode NetworkMode `json:"mode"`
	// AllowedDomains, DeniedDomains and Methods (Limited or Full) are for the proxy of ProxyNetwork, and
	// empty in every other mode. Package egress says what they mean, and checks them.
	AllowedDomains []string `json:"allowedDomains,omitempty"`
	DeniedDomains  []string `json:"deniedDomains,omitempty"`
	Methods        string   `json:"methods,omitempty"`
}

// Process is the part of a Policy about processes.
type Process struct {
	// Limits are resource limits by name (nofile, fsize, cpu, as, nproc, core) in the kernel's units.
	Limits map[string]uint64 `json:"limits,omitempty"`
	// DeniedSyscalls are names of system calls that fail with EPERM beyond the baseline.
	DeniedSyscalls []string `json:"deniedSyscalls,omitempty"`
}
