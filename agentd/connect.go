package agentd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"execsession.dev/agentd/wire"
)

// dialTimeout bounds dialling and the verdict: both are a matter of microseconds.
const dialTimeout = 10 * time.Second

// Dial connects to agentd's socket and returns once agentd said that it serves this
// process. The error is a *wire.RefusedError when it does not.
func Dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := wire.Dial(ctx, socket)
	switch {
	case errors.Is(err, syscall.EPERM):
		// Landlock scopes a command's abstract sockets to its sandbox.
		return nil, fmt.Errorf("connecting to agentd at %q: the sandbox keeps the commands of a session from it: %w", socket, err)
	case isRefused(err):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("connecting to agentd at %q: %w", socket, err)
	}
	return conn, nil
}

func isRefused(err error) bool {
	_, refused := errors.AsType[*wire.RefusedError](err)
	return refused
}

// Splice copies between a connection to agentd and a client on in and out. It returns
// when agentd ended the connection or out takes no more; the end of in is passed on to
// agentd, which then ends the connection. The copy from in may still wait for a read
// that nothing can interrupt: the caller is about to exit.
func Splice(conn *net.UnixConn, in io.Reader, out io.Writer) error {
	go func() {
		// What could not be sent was for an agentd that had said all it had to say.
		_, _ = io.Copy(conn, in)
		_ = conn.CloseWrite()
	}()
	_, err := io.Copy(out, conn)
	closeErr := conn.Close()
	if err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("copying to the client: %w", err)
	}
	// A client that is gone is how most connections end.
	return closeErr
}

// Install copies this executable into a folder, so that another container can run it.
// The copy appears whole or not at all.
func Install(dir string) (path string, err error) {
	source, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("opening the own executable: %w", err)
	}
	// It was only read.
	defer func() { _ = source.Close() }()
	path = filepath.Join(dir, "agentd")
	next, err := os.CreateTemp(dir, ".agentd-*")
	if err != nil {
		return "", fmt.Errorf("installing into %q: %w", dir, err)
	}
	_, err = io.Copy(next, source)
	err = errors.Join(err, next.Chmod(0o755), next.Close())
	if err == nil {
		err = os.Rename(next.Name(), path)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("installing %q: %w", path, err), os.Remove(next.Name()))
	}
	return path, nil
}
