package agentd

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"execsession.dev/agentd/wire"
)

// maxConnections bounds the peers that are served: every client has up to three.
const maxConnections = 96

// gateListener is a net.Listener that accepts only checked peers. A command may be able to connect, over and over: so a peer
// takes no place, no goroutine and no line of the log before it was let in, and is judged at once, one after the
// other, which costs microseconds. The kernel's queue is then as short as it can be for those who are served.
type gateListener struct {
	socket  *net.UnixListener
	queue   *os.File // the socket's second descriptor, to accept from
	check   peerChecker
	log     *slog.Logger
	refused *refusalLog
	checked chan net.Conn
	// served holds a token for every connection that was let in.
	served    chan struct{}
	closed    chan struct{}
	closeOnce sync.Once
	loops     sync.WaitGroup
}

func newGateListener(socket *net.UnixListener, check peerChecker, log *slog.Logger) (*gateListener, error) {
	queue, err := socket.File()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("preparing to accept: %w", err), socket.Close())
	}
	l := &gateListener{
		socket: socket, queue: queue, check: check, log: log, refused: newRefusalLog(log, refusalPeriod),
		checked: make(chan net.Conn),
		served:  make(chan struct{}, maxConnections),
		closed:  make(chan struct{}),
	}
	l.loops.Go(l.loop)
	return l, nil
}

// loop accepts until the socket is closed.
func (l *gateListener) loop() {
	for {
		fd, err := l.accept()
		if err == nil {
			l.admit(fd)
			continue
		}
		select {
		case <-l.closed:
			return
		default:
		}
		// Out of descriptors, or the peer is gone: the next one may do better.
		l.log.Warn("accepting a connection", "err", err)
		if !l.pause(100 * time.Millisecond) {
			return
		}
	}
}

// accept returns the descriptor of the next connection. It is not made a net.Conn yet: that costs more than refusing it.
func (l *gateListener) accept() (int, error) {
	raw, err := l.queue.SyscallConn()
	if err != nil {
		return -1, err
	}
	var fd int
	var acceptErr error
	err = raw.Read(func(socket uintptr) bool {
		for {
			fd, _, acceptErr = unix.Accept4(int(socket), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			if !errors.Is(acceptErr, unix.EINTR) && !errors.Is(acceptErr, unix.ECONNABORTED) {
				return !errors.Is(acceptErr, unix.EAGAIN)
			}
		}
	})
	if err != nil {
		return -1, err // The socket is closed, and nothing was accepted.
	}
	return fd, acceptErr
}

func (l *gateListener) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.closed:
		return false
	}
}

// admit checks one peer and hands it on or closes it.
func (l *gateListener) admit(fd int) {
	if err := l.check(fd); err != nil {
		l.refuse(fd, err)
		return
	}
	select {
	case l.served <- struct{}{}:
	default:
		l.refuse(fd, fmt.Errorf("%d connections are open already", maxConnections))
		return
	}
	conn, err := connectionOf(fd)
	if err != nil {
		<-l.served
		l.log.Warn("serving a connection", "err", err)
		return
	}
	counted := &countedConn{UnixConn: conn, release: func() { <-l.served }}
	if err := wire.WriteVerdict(conn, ""); err != nil { // the peer is gone: nothing was sent yet that could fill its buffer
		_ = counted.Close()
		return
	}
	// The server may be slow to take it. There are no more of these than may be served.
	l.loops.Go(func() {
		select {
		case l.checked <- counted:
		case <-l.closed:
			_ = counted.Close()
		}
	})
}

// connectionOf takes the descriptor over.
func connectionOf(fd int) (*net.UnixConn, error) {
	file := os.NewFile(uintptr(fd), "peer")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the peer's connection is a %T", conn), conn.Close())
	}
	return unixConn, nil
}

// refuse tells the peer why, unless it is one that does not listen, and closes the connection at once.
func (l *gateListener) refuse(fd int, reason error) {
	l.refused.add(reason.Error())
	if !errors.Is(reason, errToldAlready) {
		// The line fits into any socket's buffer. The peer may be gone; then nobody needs to know why.
		_ = wire.WriteVerdict(socketWriter(fd), reason.Error())
	}
	_ = unix.Close(fd)
}

// socketWriter writes to a socket that is nobody's yet, and never waits.
type socketWriter int

func (s socketWriter) Write(p []byte) (int, error) {
	if err := unix.Send(int(s), p, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Accept returns the next checked peer.
func (l *gateListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.checked:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends the listener and closes the peers that nobody took.
func (l *gateListener) Close() error {
	var err error
	l.closeOnce.Do(func() {
		close(l.closed)
		err = errors.Join(l.queue.Close(), l.socket.Close())
		l.loops.Wait()
		l.refused.close()
	})
	return err
}

// Addr is the socket's address.
func (l *gateListener) Addr() net.Addr { return l.socket.Addr() }

// countedConn gives its token back when it is closed.
type countedConn struct {
	*net.UnixConn
	once    sync.Once
	release func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	err := c.UnixConn.Close()
	c.once.Do(c.release)
	return err
}
