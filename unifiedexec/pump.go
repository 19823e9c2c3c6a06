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
	// ended is closed once nothing more can come.
	ended chan struct{}

	// moving is held from a read until what it brought is in the log.
	moving sync.Mutex
	mu     sync.Mutex
	// over is set with ended.
	over bool
	// wide is set once the pipe was asked to hold more.
	wide bool
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
	defer p.end()
	conn, err := p.file.SyscallConn()
	if err != nil {
		return
	}
	for p.once(conn) {
	}
}

func (p *pump) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.over = true
		p.log.closeStream()
		close(p.ended)
	}
}

// once waits for bytes and moves them; false at the end.
func (p *pump) once(conn syscall.RawConn) bool {
	var buf *[pumpBuffer]byte
	var n int
	err := conn.Read(func(fd uintptr) bool {
		p.moving.Lock()
		var again bool
		if buf, n, again = p.take(int(fd)); again {
			p.moving.Unlock()
		}
		return !again
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// The leader ended, and what is left is looked at once more.
		return p.file.SetReadDeadline(time.Time{}) == nil
	}
	if err != nil {
		return false
	}
	defer p.moving.Unlock()
	return p.store(buf, n)
}

// terminalHolds is more than a terminal holds of what was written to it.
const terminalHolds = 64 << 10

// finish moves what the descriptor holds by now into the log, without waiting for the goroutine to be woken. It answers
// whether nothing more can come. It does not go on for somebody who writes all the time.
func (p *pump) finish() bool {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return false
	}
	p.moving.Lock()
	defer p.moving.Unlock()
	for left := p.held(conn); left >= 0; {
		var buf *[pumpBuffer]byte
		n, again := 0, true
		// A descriptor that is closed was at its end, and ended tells.
		_ = conn.Control(func(fd uintptr) { buf, n, again = p.take(int(fd)) })
		if again {
			return false
		}
		if !p.store(buf, n) {
			p.end()
			return true
		}
		left -= n
	}
	return false
}

// held is at most how much the descriptor holds. A terminal does not tell: what was written to it comes to its reader
// through another thread of the kernel, which a read that finds nothing waits for.
func (p *pump) held(conn syscall.RawConn) (n int) {
	if p.stream == StreamTTY {
		return terminalHolds
	}
	_ = conn.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) // A closed one holds nothing.
	return n
}

// take reads once; again says that there is nothing yet. A buffer is held only while it has something.
func (p *pump) take(fd int) (buf *[pumpBuffer]byte, n int, again bool) {
	buf = pumpBuffers.Get().(*[pumpBuffer]byte)
	if n, again = p.read(fd, buf[:]); again {
		pumpBuffers.Put(buf)
		p.log.flush()
		return nil, 0, true
	}
	return buf, n, false
}

// store puts what was taken into the log; false if it was the end.
func (p *pump) store(buf *[pumpBuffer]byte, n int) bool {
	defer pumpBuffers.Put(buf)
	if n <= 0 {
		return false
	}
	p.log.append(p.stream, buf[:n])
	return true
}

// read reads what there is. An error is the end: on a terminal EIO says that the last slave was closed.
func (p *pump) read(fd int, buf []byte) (n int, again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.over {
			return 0, false
		}
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EIO) && p.leading.Load() {
			return 0, true
		}
		if n == len(buf) && !p.wide && p.stream != StreamTTY {
			p.wide = true
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, outputPipe) // A user who has many pipes is refused.
		}
		return n, false
	}
}
