package sandbox

// Capabilities are what the kernel offers to a sandbox. It is a plain value: a
// test that wants an older kernel lowers LandlockABI before it calls Compile.
type Capabilities struct {
	// Arch is the architecture of the filter: amd64 or arm64.
	Arch string
	// LandlockABI is the ABI of Landlock; 0 means that there is none.
	LandlockABI int
	// LandlockErrata are the fixes that the kernel reports, one bit each.
	LandlockErrata uint32
	// NoNewPrivs says that no_new_privs can be set.
	NoNewPrivs bool
	// Seccomp says that a process may install filters.
	Seccomp bool
	// UserNotify says that a filter may hand calls to a supervisor in this process.
	UserNotify bool
	// NotifyTaken says that it may not because a supervisor above this process does that already.
	NotifyTaken bool
	// NotifyFlags are the flags that filters with a supervisor are installed with.
	NotifyFlags uintptr
	// BindToDevice says that a socket may be bound to the loopback device.
	BindToDevice bool
	// UID is the effective user id.
	UID int
	// EffectiveCaps are the effective capabilities, one bit each.
	EffectiveCaps uint64
}
