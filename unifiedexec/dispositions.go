package unifiedexec

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigIgnore is SIG_IGN.
const sigIgnore = 1

// untouchedSignals are those that Go's runtime neither handles nor lets a program ask for: they belong to the C
// library's threads.
var untouchedSignals = []uintptr{32, 33, 34}

// sigaction is the kernel's, of 64-bit machines.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// defaultDispositions makes commands start with every signal at its default. A signal that whoever started this process
// ignored stays ignored over exec: nohup does that to SIGHUP, and glibc's posix_spawn, which make starts programs
// with, to signal 32. This process goes on not to be ended by them.
func defaultDispositions() error {
	for _, s := range []os.Signal{unix.SIGHUP, unix.SIGINT} {
		if signal.Ignored(s) {
			// A handler is not inherited. Nobody reads the channel: Notify does not wait.
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	for _, number := range untouchedSignals {
		var action sigaction
		if err := rtSigaction(number, nil, &action); err != nil {
			return fmt.Errorf("reading what signal %d does: %w", number, err)
		}
		if action.handler != sigIgnore {
			continue
		}
		if err := rtSigaction(number, &sigaction{}, nil); err != nil {
			return fmt.Errorf("giving signal %d its default: %w", number, err)
		}
	}
	return nil
}

func rtSigaction(number uintptr, set, old *sigaction) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, number,
		uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(set.mask), 0, 0)
	runtime.KeepAlive(set)
	runtime.KeepAlive(old)
	if errno != 0 {
		return errno
	}
	return nil
}
