package sandbox

import (
	"errors"
	"runtime"
	"unsafe"

	llsyscall "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Probe asks the kernel what it offers. It changes nothing that lasts: whether a
// supervisor is possible is tried on a thread that ends with the attempt.
func Probe() Capabilities {
	caps := Capabilities{Arch: runtime.GOARCH, UID: unix.Geteuid()}
	if abi, err := llsyscall.LandlockGetABIVersion(); err == nil {
		caps.LandlockABI = abi
	}
	if errata, err := llsyscall.LandlockGetErrata(); err == nil && errata > 0 {
		caps.LandlockErrata = uint32(errata)
	}
	_, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	caps.NoNewPrivs = err == nil
	_, known := architectures[runtime.GOARCH]
	caps.Seccomp = known && actionAvailable(unix.SECCOMP_RET_ERRNO) && actionAvailable(unix.SECCOMP_RET_KILL_PROCESS)
	if caps.Seccomp && actionAvailable(unix.SECCOMP_RET_USER_NOTIF) {
		flags, err := listenerFlags()
		caps.UserNotify, caps.NotifyFlags = err == nil, flags
		caps.NotifyTaken = errors.Is(err, unix.EBUSY)
	}
	if fd, err := loopbackSocket(unix.AF_INET, 0, 0); err == nil {
		caps.BindToDevice = unix.Close(fd) == nil
	}
	if sets, err := threadCapabilities(); err == nil {
		caps.EffectiveCaps = uint64(sets[0].Effective) | uint64(sets[1].Effective)<<32
	}
	return caps
}

func actionAvailable(action uint32) bool {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	return errno == 0
}

func threadCapabilities() (sets [2]unix.CapUserData, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	err = unix.Capget(&header, &sets[0])
	return sets, err
}

// dropThreadCapabilities gives up the calling thread's capabilities. Ambient ones go with the others.
func dropThreadCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return unix.Capset(&header, &none[0])
}
