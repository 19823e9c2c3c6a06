package agentd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// DefaultSocket is the abstract socket of a pod. It is abstract because chmod is not
// mediated by Landlock: a command could lock everybody out of a pathname socket.
const DefaultSocket = "@execsession-agentd"

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
