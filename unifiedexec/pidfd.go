package unifiedexec

import (
	"errors"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childStatus is the part of siginfo_t that waitid fills in for a child; the layout is the same on
// every 64-bit Linux.
type childStatus struct {
	signo, errno, code int32
	_                  int32
	pid                int32
	uid                uint32
	status             int32
}

// Values of childStatus.code.
const (
	cldExited = 1
	cldDumped = 3
)

func waitid(idType, id, options int, usage *unix.Rusage) (childStatus, error) {
	var info unix.Siginfo
	for {
		err := unix.Waitid(idType, id, &info, options, usage)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return *(*childStatus)(unsafe.Pointer(&info)), err
	}
}

// awaitPidfd waits until the process of a pidfd ended. It reports false when the deadline came first.
func awaitPidfd(f *os.File, deadline time.Time) bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	if err := f.SetReadDeadline(deadline); err != nil {
		return false
	}
	err = conn.Read(func(fd uintptr) bool { return pidfdEnded(int(fd)) })
	return err == nil
}

// pidfdEnded asks without waiting whether a process ended.
func pidfdEnded(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&unix.POLLIN != 0
}
