package agentd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"execsession.dev/agentd/wire"
)

// DefaultSocket is the abstract socket of a pod. It is abstract because chmod is not
// mediated by Landlock: a command could lock everybody out of a pathname socket.
const DefaultSocket = "@execsession-agentd"

const (
	// maxUnchecked bounds connections whose peer is being looked at.
	maxUnchecked = 32
	// maxConnections bounds the peers that are served: every client has up to three.
	maxConnections = 96
	// verdictTimeout bounds writing the verdict; the line fits into any socket's buffer.
	verdictTimeout = time.Second
)

// gateListener is a net.Listener that accepts only checked peers. Each peer is looked
// at in a goroutine of its own, so that one that dies meanwhile delays nobody.
type gateListener struct {
	socket  *net.UnixListener
	check   peerChecker
	log     *slog.Logger
	checked chan net.Conn
	// unchecked and served hold a token for every connection of their kind.
	unchecked chan struct{}
	served    chan struct{}
	closed    chan struct{}
	closeOnce sync.Once
	loops     sync.WaitGroup
}

func newGateListener(socket *net.UnixListener, check peerChecker, log *slog.Logger) *gateListener {
	l := &gateListener{
		socket: socket, check: check, log: log,
		checked:   make(chan net.Conn),
		unchecked: make(chan struct{}, maxUnchecked),
		served:    make(chan struct{}, maxConnections),
		closed:    make(chan struct{}),
	}
	l.loops.Go(l.loop)
	return l
}

// loop accepts until the socket is closed.
func (l *gateListener) loop() {
	for {
		conn, err := l.socket.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, or the peer is gone: the next one may do better.
			l.log.Warn("accepting a connection", "err", err)
			if !l.pause(10 * time.Millisecond) {
				return
			}
			continue
		}
		select {
		case l.unchecked <- struct{}{}:
			l.loops.Go(func() {
				defer func() { <-l.unchecked }()
				l.admit(conn)
			})
		default:
			l.refuse(conn, "too many connections are being checked")
		}
	}
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
func (l *gateListener) admit(conn *net.UnixConn) {
	if err := l.check(conn); err != nil {
		l.refuse(conn, err.Error())
		return
	}
	select {
	case l.served <- struct{}{}:
	default:
		l.refuse(conn, fmt.Sprintf("%d connections are open already", maxConnections))
		return
	}
	counted := &countedConn{UnixConn: conn, release: func() { <-l.served }}
	if err := l.verdict(conn, ""); err != nil {
		_ = counted.Close()
		return
	}
	select {
	case l.checked <- counted:
	case <-l.closed:
		_ = counted.Close()
	}
}

func (l *gateListener) refuse(conn *net.UnixConn, reason string) {
	l.log.Warn("refused a connection", "reason", reason)
	// The peer may be gone; then nobody needs to know why.
	_ = l.verdict(conn, reason)
	_ = conn.Close()
}

func (l *gateListener) verdict(conn *net.UnixConn, refusal string) error {
	if err := conn.SetWriteDeadline(time.Now().Add(verdictTimeout)); err != nil {
		return err
	}
	if err := wire.WriteVerdict(conn, refusal); err != nil {
		return err
	}
	return conn.SetWriteDeadline(time.Time{})
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

// Close ends the listener and waits for the peers that are being looked at.
func (l *gateListener) Close() error {
	var err error
	l.closeOnce.Do(func() {
		close(l.closed)
		err = l.socket.Close()
		l.loops.Wait()
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

// listenAbstract listens in a pod.
func listenAbstract(name string) (*net.UnixListener, error) {
	if !strings.HasPrefix(name, "@") {
		return nil, fmt.Errorf("listening on %q: in a pod the socket is abstract, its name begins with @", name)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listening on %q: %w", name, err)
	}
	return listener, nil
}

// listenPath listens on this machine: a socket that only its user can open, in a
// folder that only its user can enter.
func listenPath(ctx context.Context, path string) (*net.UnixListener, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("listening on %q: want an absolute path", path)
	}
	if err := privateFolder(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("listening on %q: %w", path, err)
	}
	listener, err := listenPrivate(path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := removeStale(ctx, path); err != nil {
			return nil, fmt.Errorf("listening on %q: %w", path, err)
		}
		listener, err = listenPrivate(path)
	}
	if err != nil {
		return nil, fmt.Errorf("listening on %q: %w", path, err)
	}
	return listener, nil
}

// listenPrivate makes the socket with mode 0600. The umask is the whole process's; this
// runs before anything else does.
func listenPrivate(path string) (*net.UnixListener, error) {
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

func privateFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the socket's folder: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("looking at the socket's folder: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("folder %q belongs to another user", dir)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("folder %q is open to others (mode %04o), want 0700", dir, mode)
	}
	return nil
}

// removeStale removes a socket that nobody listens on any more.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("looking at it: %w", err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return errors.New("there is a file that is no socket")
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return errors.New("another agentd serves there")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("asking whether somebody listens there: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("removing the stale socket: %w", err)
	}
	return nil
}
