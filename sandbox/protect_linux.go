package sandbox

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// ProtectSelf makes the calling process harder to reach for the commands it
// starts, and for a neighbour of the same user who is in no sandbox: it is not
// dumpable, which closes its memory and its /proc entries, it and its children dump no
// core, and no descriptor above 2 reaches a child by accident. Call it once, early.
func ProtectSelf() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("protecting the agent: clearing dumpable: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: noCore, Max: noCore}); err != nil {
		return fmt.Errorf("protecting the agent: forbidding core dumps: %w", err)
	}
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("protecting the agent: marking descriptors: %w", err)
	}
	return nil
}

// noCore is the limit under which the kernel writes no core dump. Where a node hands dumps to a program, it does so
// under any limit, 0 included, but this one; and no file is as small.
const noCore = 1

// DropCapabilities gives up every capability of the whole process, on all its
// threads and for good, also for what it executes. Without capabilities it does nothing.
// Call it before the first start: threads that are confined cannot follow.
func DropCapabilities() error {
	sets, err := threadCapabilities()
	if err != nil {
		return fmt.Errorf("dropping capabilities: reading them: %w", err)
	}
	if sets[0].Effective&(1<<unix.CAP_SETPCAP) != 0 {
		if err := dropBounds(); err != nil {
			return fmt.Errorf("dropping capabilities: %w", err)
		}
	}
	if err := everyThreadPrctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL); err != nil {
		return fmt.Errorf("dropping capabilities: clearing the ambient set: %w", err)
	}
	if err := clearSets(); err != nil {
		return fmt.Errorf("dropping capabilities: clearing the sets: %w", err)
	}
	return nil
}

// dropBounds empties the bounding set and takes from user 0 its right to gain
// capabilities by executing a program.
func dropBounds() error {
	for capability := uintptr(0); ; capability++ {
		present, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, capability, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // behind the last one that the kernel knows
		}
		if err != nil {
			return fmt.Errorf("reading the bounding set: %w", err)
		}
		if present == 0 {
			continue
		}
		if err := everyThreadPrctl(unix.PR_CAPBSET_DROP, capability); err != nil {
			return fmt.Errorf("dropping %d from the bounding set: %w", capability, err)
		}
	}
	const bits = secbitNoRoot | secbitNoRootLocked | secbitNoCapAmbientRaise | secbitNoCapAmbientRaiseLocked
	if err := everyThreadPrctl(unix.PR_SET_SECUREBITS, bits); err != nil {
		return fmt.Errorf("setting the secure bits: %w", err)
	}
	return nil
}

// From linux/securebits.h, which x/sys does not have.
const (
	secbitNoRoot                  = 1 << 0
	secbitNoRootLocked            = 1 << 1
	secbitNoCapAmbientRaise       = 1 << 6
	secbitNoCapAmbientRaiseLocked = 1 << 7
)

// everyThreadPrctl runs on all threads: capabilities belong to threads, and one
// that kept them would be enough. psx works with and without cgo.
func everyThreadPrctl(option, value uintptr) error {
	if _, _, errno := psx.Syscall6(unix.SYS_PRCTL, option, value, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func clearSets() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(&header)
	pinner.Pin(&none)
	_, _, errno := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
