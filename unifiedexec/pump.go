package unifiedexec

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pumpBuffer = 64 << 10
	// outputPipe is how much a process that writes much may write before it waits for the engine. More than the default
	// saves turns of the scheduler.
	outputPipe = 256 << 10
)

var pumpBuffers = sync.Pool{New: func() any { return new([pumpBuffer]byte) }}

// pump moves one descriptor's bytes into the log. Its goroutine waits in the poller and
// holds no buffer while it waits; it ends, and closes the descriptor, when nobody can write any more.
type pump struct {
	file   *os.File
	stream Stream
	log    *outputLog
	// leading is set on a terminal while its session's leader lives. Nobody may have the terminal open then, as in the
	// moment before the end of a program that closes its output itself; but the leader can open it again, and closing
	// the master would hang it up and so kill the leader.
	leading atomic.Bool
	// ended is closed by run.
	ended chan struct{}

	mu sync.Mutex
	// wide is set once the pipe was asked to hold more.
	wide bool
	// taken counts bytes that left the descriptor, stored those that are in the log.
	taken, stored uint64
	// target, once wanted, closes reached when stored gets there.
	target  uint64
	reached chan struct{}
}

func newPump(f *os.File, s Stream, l *outputLog) *pump {
	p := &pump{file: f, stream: s, log: l, ended: make(chan struct{})}
	p.leading.Store(s == StreamTTY)
	return p
}

// leaderEnded lets a terminal's pump take the end of its output for the end.
func (p *pump) leaderEnded() {
	if p.leading.Swap(false) {
		_ = p.file.SetReadDeadline(time.Unix(1, 0)) // A closed file has no reader to wake.
	}
}

func (p *pump) run() {
	defer p.file.Close() // The last, because the end of the command waits for ended.
	defer close(p.ended)
	defer p.log.closeStream()
	conn, err := p.file.SyscallConn()
	if err != nil {
		return
	}
	for p.once(conn) {
	}
}

// once waits for bytes and moves them; false at the end.
func (p *pump) once(conn syscall.RawConn) bool {
	var buf *[pumpBuffer]byte
	n := 0
	err := conn.Read(func(fd uintptr) bool {
		buf = pumpBuffers.Get().(*[pumpBuffer]byte)
		var again bool
		n, again = p.read(int(fd), buf[:])
		if again {
			pumpBuffers.Put(buf)
			buf = nil
			p.log.flush()
		}
		return !again
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// The leader ended, and what is left is looked at once more.
		return p.file.SetReadDeadline(time.Time{}) == nil
	}
	if buf == nil {
		return false
	}
	defer pumpBuffers.Put(buf)
	if err != nil || n <= 0 {
		return false
	}
	p.log.append(p.stream, buf[:n])
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stored += uint64(n)
	p.reachLocked()
	return true
}

// read counts under the lock what it takes, so that taken and what the descriptor still holds
// always add up. An error is the end: on a terminal EIO says that the last slave was closed.
func (p *pump) read(fd int, buf []byte) (n int, again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EIO) && p.leading.Load() {
			return 0, true
		}
		p.taken += uint64(max(n, 0))
		if n == len(buf) && !p.wide && p.stream != StreamTTY {
			p.wide = true
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, outputPipe) // A user who has many pipes is refused.
		}
		return n, false
	}
}

// drained returns a channel that is closed once everything that is in the descriptor now is in the log.
func (p *pump) drained() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	pending := 0
	if conn, err := p.file.SyscallConn(); err == nil {
		// A descriptor that is closed already holds nothing: pending stays 0.
		_ = conn.Control(func(fd uintptr) {
			if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
				pending = n
			}
		})
	}
	p.target = p.taken + uint64(pending)
	p.reached = make(chan struct{})
	reached := p.reached
	p.reachLocked()
	return reached
}

func (p *pump) reachLocked() {
	if p.reached != nil && p.stored >= p.target {
		close(p.reached)
		p.reached = nil
	}
}
