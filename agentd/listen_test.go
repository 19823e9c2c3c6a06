package agentd

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
	l, err := newGateListener(socket, check, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
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

// TestRefusedPeersTakeNoPlace keeps many connections that were refused, and is served.
func TestRefusedPeersTakeNoPlace(t *testing.T) {
	var refuse atomic.Bool
	refuse.Store(true)
	l, path := testListener(t, func(int) error {
		if refuse.Load() {
			return errors.New("no")
		}
		return nil
	})
	for range 2 * maxConnections {
		wantRefusal(t, dialUnix(t, path), "no")
	}
	refuse.Store(false)
	if err := wire.ReadVerdict(dialUnix(t, path)); err != nil {
		t.Error(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

// TestRefusalsAreCounted wants one line for the first and one for all that follow in the period.
func TestRefusalsAreCounted(t *testing.T) {
	var out syncBuffer
	r := newRefusalLog(slog.New(slog.NewTextHandler(&out, nil)), time.Hour)
	for range 1000 {
		r.add("no")
	}
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "count=1 last=no") {
		t.Errorf("the first of many is logged as %q", got)
	}
	r.close()
	if got := out.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "count=999 last=no") {
		t.Errorf("all of them are logged as %q", got)
	}
	var later syncBuffer
	r = newRefusalLog(slog.New(slog.NewTextHandler(&later, nil)), time.Millisecond)
	r.add("no")
	r.add("later")
	for end := time.Now().Add(time.Minute); !strings.Contains(later.String(), "last=later") && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	r.close()
	if got := later.String(); strings.Count(got, "\n") != 2 {
		t.Errorf("after a period there is %q", got)
	}
}

// TestDescendantsAreKnownAgain for a short time, in which they are told a few times why.
func TestDescendantsAreKnownAgain(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	now := time.Now()
	d := descendants{ancestor: os.Getpid(), now: func() time.Time { return now }}
	pid := cmd.Process.Pid
	if err := d.again(pid); err != nil {
		t.Errorf("before it was looked at: %v", err)
	}
	p := &peer{pid: pid, uid: os.Getuid(), pidfd: openPidfd(t, pid)}
	if err := d.check(p); err == nil {
		t.Error("a child passed as no descendant")
	}
	for i := range maxTold {
		if err := d.again(pid); err == nil || errors.Is(err, errToldAlready) {
			t.Errorf("connecting again, %d: %v", i, err)
		}
	}
	if err := d.again(pid); !errors.Is(err, errToldAlready) {
		t.Errorf("connecting on and on: %v", err)
	}
	if err := d.again(os.Getppid()); err != nil {
		t.Errorf("a stranger: %v", err)
	}
	now = now.Add(knownFor)
	if err := d.again(pid); err != nil {
		t.Errorf("when its number may be another's: %v", err)
	}
	if err := d.check(p); err == nil || errors.Is(err, errToldAlready) {
		t.Errorf("looked at again: %v", err)
	}
}

func TestListenerCapsServedPeers(t *testing.T) {
	l, path := testListener(t, func(int) error { return nil })
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
	line, descends, err := (&descendants{ancestor: 1 << 30, now: time.Now}).lineage(os.Getpid())
	if err != nil || descends || len(line) < 2 || line[0] != own {
		t.Errorf("our lineage is %+v, %t, %v", line, descends, err)
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
