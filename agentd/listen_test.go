package agentd

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"execsession.dev/agentd/wire"
)

func testListener(t *testing.T, check peerChecker) (*gateListener, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run", "socket")
	socket, err := listenPath(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	l := newGateListener(socket, check, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = l.Close() })
	return l, path
}

func dialUnix(t *testing.T, path string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func wantRefusal(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	var refused *wire.RefusedError
	if err := wire.ReadVerdict(conn); !errors.As(err, &refused) || !strings.Contains(refused.Reason, want) {
		t.Errorf("the verdict is %v, want a refusal with %q", err, want)
	}
}

func TestListenerCapsUncheckedPeers(t *testing.T) {
	hold := make(chan struct{})
	_, path := testListener(t, func(*net.UnixConn) error {
		<-hold
		return errors.New("no")
	})
	var held []net.Conn
	for range maxUnchecked {
		held = append(held, dialUnix(t, path))
	}
	// The kernel queues them in order, so this one comes when all of those are being checked.
	wantRefusal(t, dialUnix(t, path), "too many connections")
	close(hold)
	for _, conn := range held {
		wantRefusal(t, conn, "no")
	}
}

func TestListenerCapsServedPeers(t *testing.T) {
	l, path := testListener(t, func(*net.UnixConn) error { return nil })
	accepted := make(chan net.Conn, maxConnections+1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	for range maxConnections {
		if err := wire.ReadVerdict(dialUnix(t, path)); err != nil {
			t.Fatal(err)
		}
	}
	wantRefusal(t, dialUnix(t, path), "are open already")
	// A connection that ended makes room; closing it twice does not make more.
	first := <-accepted
	_ = first.Close()
	_ = first.Close()
	if err := wire.ReadVerdict(dialUnix(t, path)); err != nil {
		t.Errorf("after one ended: %v", err)
	}
	wantRefusal(t, dialUnix(t, path), "are open already")
}

func TestListenPathRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(dir, "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(private, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ path, want string }{
		"Relative":   {"socket", "absolute"},
		"OpenFolder": {filepath.Join(dir, "socket"), "0755"},
		"File":       {filepath.Join(private, "file"), "no socket"},
		"TooLong":    {filepath.Join(private, strings.Repeat("x", 120)), "invalid argument"},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := listenPath(t.Context(), tc.path)
			if err == nil {
				_ = listener.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.path) {
				t.Errorf("got %v, want an error with %q and the path", err, tc.want)
			}
		})
	}
}

func TestListenPodNeedsProcessOne(t *testing.T) {
	if _, err := ListenPod(DefaultSocket, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "want 1") {
		t.Errorf("got %v, want that process id 1 is needed", err)
	}
}

func TestReadProcess(t *testing.T) {
	own, err := readProcess(os.Getpid())
	if err != nil || own.parent != os.Getppid() || own.start == "" {
		t.Errorf("our own process is %+v, %v, want parent %d", own, err, os.Getppid())
	}
	line, err := lineage(os.Getpid())
	if err != nil || len(line) < 2 || line[0] != own {
		t.Errorf("our lineage is %+v, %v", line, err)
	}
	if _, err := readProcess(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a process that is not there: %v", err)
	}
}

func openPidfd(t *testing.T, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}
