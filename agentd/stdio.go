package agentd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// pairListener is a net.Listener of one connection that exists already.
type pairListener struct {
	conns  chan net.Conn
	addr   net.Addr
	ended  chan struct{} // closed with the connection
	closed chan struct{}
	once   sync.Once
}

func newPairListener(conn net.Conn) *pairListener {
	l := &pairListener{
		conns: make(chan net.Conn, 1), addr: conn.LocalAddr(),
		ended: make(chan struct{}), closed: make(chan struct{}),
	}
	l.conns <- &endingConn{Conn: conn, ended: l.ended}
	return l
}

// Accept returns the connection, then waits for Close.
func (l *pairListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept; the connection is its user's.
func (l *pairListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// peerGone is closed with the connection.
func (l *pairListener) peerGone() <-chan struct{} { return l.ended }

// Addr is the connection's address.
func (l *pairListener) Addr() net.Addr { return l.addr }

type endingConn struct {
	net.Conn
	once  sync.Once
	ended chan struct{}
}

// Close implements net.Conn.
func (c *endingConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.ended) })
	return err
}

// InheritedPair is the connection that the process was started with: descriptor 0
// when it is a socket, else descriptors 0 and 1 as two ends of pipes. ledger takes
// standard output away from everything else, so the pair is dup'ed first.
func InheritedPair() (net.Conn, error) {
	var stat syscall.Stat_t
	if err := syscall.Fstat(0, &stat); err != nil {
		return nil, fmt.Errorf("looking at standard input: %w", err)
	}
	if stat.Mode&syscall.S_IFMT == syscall.S_IFSOCK {
		// FileConn works on a duplicate.
		conn, err := net.FileConn(os.Stdin)
		if err != nil {
			return nil, fmt.Errorf("using the socket on standard input: %w", err)
		}
		return conn, nil
	}
	in, err := duplicate(0, "stdin")
	if err != nil {
		return nil, err
	}
	out, err := duplicate(1, "stdout")
	if err != nil {
		_ = in.Close()
		return nil, err
	}
	return &pipePair{in: in, out: out}, nil
}

// duplicate makes a close-on-exec copy that waits in the runtime's poller, so that
// closing it ends a read.
func duplicate(fd int, name string) (*os.File, error) {
	copied, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 3)
	if errno != 0 {
		return nil, fmt.Errorf("duplicating %s: %w", name, errno)
	}
	if err := syscall.SetNonblock(int(copied), true); err != nil {
		_ = syscall.Close(int(copied))
		return nil, fmt.Errorf("making %s non-blocking: %w", name, err)
	}
	return os.NewFile(copied, name), nil
}

// pipePair is a connection over two pipes.
type pipePair struct {
	in, out *os.File
}

type pipeAddr struct{}

// Network implements net.Addr.
func (pipeAddr) Network() string { return "pipe" }

// String implements net.Addr.
func (pipeAddr) String() string { return "stdio" }

// Read implements net.Conn.
func (p *pipePair) Read(b []byte) (int, error) { return p.in.Read(b) }

// Write implements net.Conn.
func (p *pipePair) Write(b []byte) (int, error) { return p.out.Write(b) }

// Close implements net.Conn.
func (p *pipePair) Close() error { return errors.Join(p.in.Close(), p.out.Close()) }

// LocalAddr implements net.Conn.
func (p *pipePair) LocalAddr() net.Addr { return pipeAddr{} }

// RemoteAddr implements net.Conn.
func (p *pipePair) RemoteAddr() net.Addr { return pipeAddr{} }

// SetDeadline implements net.Conn.
func (p *pipePair) SetDeadline(t time.Time) error {
	return errors.Join(p.in.SetDeadline(t), p.out.SetDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (p *pipePair) SetReadDeadline(t time.Time) error { return p.in.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (p *pipePair) SetWriteDeadline(t time.Time) error { return p.out.SetWriteDeadline(t) }
