//go:build amd64 || arm64

package sandbox

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// heldTasks are threads that do nothing but hold a task each. Unlike Go's own, one that the kernel refuses is an answer, so
// that they tell whether there is room; and they end by themselves, one after the other, whatever becomes of Go meanwhile.
type heldTasks struct {
	// word is 0 as long as they are held.
	word uint32
	// most says how long each is held at most.
	most [maxHeldTasks]unix.Timespec
	n    int
}

const (
	maxHeldTasks = 64
	// firstEnd is after a filling, and then one ends in every step; Go gives up, and ends the program, 0.2 s after the
	// kernel refused it a thread for the first time.
	firstEnd = 20 * time.Millisecond
	endStep  = 4 * time.Millisecond
)

// holdTask makes a thread that waits until the word is not 0 any more, but not longer than that, and ends. It returns
// the thread's number or the negative errno. Go knows nothing of the thread: it must not be hit by a signal.
//
//go:noescape
func holdTask(word *uint32, most *unix.Timespec) int

// hold makes n threads that end by themselves, or none and false.
func (h *heldTasks) hold(n int) bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return false
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }() // it was this one a moment ago
	atomic.StoreUint32(&h.word, 0)
	for h.n = 0; h.n < min(n, maxHeldTasks); h.n++ {
		h.most[h.n] = unix.NsecToTimespec(int64(firstEnd + time.Duration(h.n)*endStep))
		if holdTask(&h.word, &h.most[h.n]) < 0 {
			h.release()
			return false
		}
	}
	return true
}

// releaseOne ends one of them.
func (h *heldTasks) releaseOne() { h.wake(1) }

// release ends all of them.
func (h *heldTasks) release() {
	atomic.StoreUint32(&h.word, 1)
	h.wake(h.n)
}

func (h *heldTasks) wake(n int) {
	const futexWake, private = 1, 128
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&h.word)), futexWake|private, uintptr(n), 0, 0, 0) //nolint:dogsled // waking cannot fail
}
