package sandbox

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is the kernel's struct seccomp_notif: one call that waits for an answer.
type notification struct {
	id uint64
	// thread is the thread that called, as this process's pid namespace numbers it.
	thread uint32
	flags  uint32
	number int32
	arch   uint32
	ip     uint64
	args   [6]uint64
}

// answer is the kernel's struct seccomp_notif_resp.
type answer struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// gift is the kernel's struct seccomp_notif_addfd: a descriptor for the caller.
type gift struct {
	id      uint64
	flags   uint32
	source  uint32
	target  uint32
	fdFlags uint32
}

// notifySizes is the kernel's struct seccomp_notif_sizes.
type notifySizes struct{ notification, answer, data uint16 }

// installListener installs the filter on the calling thread and returns the
// descriptor at which its notifications arrive. It is close-on-exec.
func installListener(program []unix.SockFilter, flags uintptr) (int, error) {
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// receive takes the next call that waits. Who called may be gone by then: ENOENT.
func receive(listener int, into *notification) error {
	*into = notification{} // the kernel insists on zeroes
	_, err := waitingControl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(into))
	return err
}

// reply ends the call. ENOENT means that it has ended without us: nobody was told anything.
func reply(listener int, with answer) error {
	return shortControl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&with))
}

// hand puts a copy of a descriptor into the caller's table and returns its number there.
//
// It does not use SECCOMP_ADDFD_FLAG_SEND, which would end the call in the same step: the
// kernel waits for the caller's thread to take the descriptor, and a signal to us during that wait,
// as Go sends itself many, takes it back but leaves the call answered, with descriptor 0.
func hand(listener int, id uint64, fd int, fdFlags uint32) (int, error) {
	given := gift{id: id, source: uint32(fd), fdFlags: fdFlags}
	for {
		number, err := waitingControl(listener, unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&given))
		if !errors.Is(err, unix.EINTR) {
			return number, err
		}
	}
}

// stillWaits says that the call waits yet, so that what was read about its thread
// was read about the caller and not about whoever got its number.
func stillWaits(listener int, id uint64) bool {
	return shortControl(listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id)) == nil
}

// shortControl is for what waits at most for a lock. A signal interrupts even that, and
// an answer that was not sent would leave the caller hanging.
func shortControl(listener int, request uintptr, argument unsafe.Pointer) error {
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(listener), request, uintptr(argument))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// waitingControl is for what may wait for the caller.
func waitingControl(listener int, request uintptr, argument unsafe.Pointer) (int, error) {
	result, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), request, uintptr(argument))
	if errno != 0 {
		return -1, errno
	}
	return int(result), nil
}

// listenerFlags tries on a spare thread whether a filter with a listener can be had,
// and with which flags. EBUSY means that a supervisor above this process has taken the only one.
func listenerFlags() (flags uintptr, err error) {
	var sizes notifySizes
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES, 0, uintptr(unsafe.Pointer(&sizes)))
	if errno != 0 {
		return 0, errno
	}
	if uintptr(sizes.notification) != unsafe.Sizeof(notification{}) || uintptr(sizes.answer) != unsafe.Sizeof(answer{}) {
		return 0, fmt.Errorf("the kernel's notifications have %d and %d bytes", sizes.notification, sizes.answer)
	}
	result := make(chan error, 1)
	go onSpareThread(func() { result <- tryListener(&flags) })
	err = <-result
	return flags, err
}

// tryListener gives the calling thread a filter that allows everything.
func tryListener(flags *uintptr) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	harmless := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(allow)}}
	*flags = unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, err := installListener(harmless, *flags)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.19
		*flags = 0
		fd, err = installListener(harmless, *flags)
	}
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
