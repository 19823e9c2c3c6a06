package egress

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// activity is shared by both ends of a relay: bytes in either direction keep both alive.
type activity struct {
	idle time.Duration
	last atomic.Int64 // in nanoseconds of the Unix time
}

func newActivity(idle time.Duration) *activity {
	a := &activity{idle: idle}
	a.touch()
	return a
}

func (a *activity) touch() { a.last.Store(time.Now().UnixNano()) }

func (a *activity) deadline() time.Time { return time.Unix(0, a.last.Load()).Add(a.idle) }

// endpoint is a connection that counts its bytes. With an activity, which is set and taken away while one goroutine alone
// uses the endpoint, its reads and writes fail when nothing passed in either direction for the idle
// time; without one they have the connection's own deadlines.
type endpoint struct {
	net.Conn
	activity      *activity
	read, written atomic.Int64
	interrupted   atomic.Bool
}

func (e *endpoint) Read(p []byte) (int, error) {
	for {
		if e.activity != nil {
			e.SetReadDeadline(e.activity.deadline()) //nolint:errcheck // the read of a closed connection says the same
		}
		if e.interrupted.Load() { // looked at after the deadline was moved, see interrupt
			return 0, os.ErrDeadlineExceeded
		}
		n, err := e.Conn.Read(p)
		if n > 0 {
			e.count(&e.read, n)
			return n, err
		}
		if !e.expiredEarly(err) {
			return 0, err
		}
	}
}

func (e *endpoint) Write(p []byte) (int, error) {
	written := 0
	for {
		if e.activity != nil {
			e.SetWriteDeadline(e.activity.deadline()) //nolint:errcheck // the write to a closed connection says the same
		}
		n, err := e.Conn.Write(p[written:])
		written += n
		e.count(&e.written, n)
		if err == nil || !e.expiredEarly(err) {
			return written, err
		}
	}
}

func (e *endpoint) count(counter *atomic.Int64, n int) {
	counter.Add(int64(n))
	if n > 0 && e.activity != nil {
		e.activity.touch()
	}
}

// expiredEarly tells whether an operation ran into its deadline although the other direction went on meanwhile.
func (e *endpoint) expiredEarly(err error) bool {
	return e.activity != nil && errors.Is(err, os.ErrDeadlineExceeded) && !e.interrupted.Load() && time.Now().Before(e.activity.deadline())
}

// interrupt ends a read that another goroutine is in, and all later ones.
func (e *endpoint) interrupt() {
	e.interrupted.Store(true)
	e.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // the read of a closed connection ends as well
}

// CloseWrite ends one direction. A connection that cannot do that is closed, since
// its other end would wait for an end that never comes.
func (e *endpoint) CloseWrite() error {
	if half, ok := e.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return e.Close()
}

// reset closes the connection so that the peer takes what it has for incomplete.
func (e *endpoint) reset() {
	if tcp, ok := e.Conn.(interface{ SetLinger(sec int) error }); ok {
		tcp.SetLinger(0) //nolint:errcheck // it is closed either way
	}
	e.Close()
}
