package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execsession.dev/agentd/client"
)

const (
	// localStop is how long agentd may take to end its commands: more than its own limit.
	localStop = 25 * time.Second
	// localKill is how long the kernel may take to end it.
	localKill = 5 * time.Second
	// maxLocalStderr bounds what is kept of its standard error.
	maxLocalStderr = 8 << 10
)

// localAgent is an agentd that was started for one call, at the other end of a socket pair.
type localAgent struct {
	process *exec.Cmd
	stderr  lastBytes
	// exited is closed when the process was reaped.
	exited chan struct{}

	mu   sync.Mutex
	conn net.Conn // nil once dialed
}

// findAgentd looks beside this program, then on PATH.
func findAgentd() (string, error) {
	if self, err := os.Executable(); err == nil {
		if resolved, err := filepath.EvalSymlinks(self); err == nil {
			self = resolved
		}
		beside := filepath.Join(filepath.Dir(self), "agentd")
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath("agentd")
	if err != nil {
		return "", errors.New("--local needs the program agentd, which is neither beside this program nor on PATH")
	}
	return path, nil
}

// startLocal starts agentd on the current folder.
func startLocal() (*localAgent, error) {
	program, err := findAgentd()
	if err != nil {
		return nil, err
	}
	workspace, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("finding the current folder: %w", err)
	}
	mine, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	a := &localAgent{conn: mine, exited: make(chan struct{})}
	// Not CommandContext: it is ended in stop, by asking first.
	a.process = exec.Command(program, "serve", "--local", "--workspace", workspace, "--stdio") //nolint:noctx // ended by stop
	a.process.Stdin, a.process.Stdout, a.process.Stderr = theirs, theirs, &a.stderr
	// A Ctrl-C at the terminal is for the plugin to pass on, not for agentd.
	a.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = a.process.Start()
	_ = theirs.Close()
	if err != nil {
		_ = mine.Close()
		return nil, fmt.Errorf("starting %q: %w", program, err)
	}
	go func() {
		defer close(a.exited)
		_ = a.process.Wait()
	}()
	return a, nil
}

func socketPair() (mine net.Conn, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a socket pair: %w", err)
	}
	theirs = os.NewFile(uintptr(pair[1]), "agentd")
	file := os.NewFile(uintptr(pair[0]), "client")
	defer file.Close()
	if mine, err = net.FileConn(file); err != nil {
		_ = theirs.Close()
		return nil, nil, fmt.Errorf("using a socket pair: %w", err)
	}
	return mine, theirs, nil
}

// dial gives the one connection.
func (a *localAgent) dial(context.Context) (net.Conn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil {
		return nil, client.Permanent(a.end(errors.New("it ended")))
	}
	conn := &localConn{Conn: a.conn, agent: a}
	a.conn = nil
	return conn, nil
}

// end adds to err what agentd said last.
func (a *localAgent) end(err error) error {
	if said := strings.Join(strings.Fields(a.stderr.String()), " "); said != "" {
		return fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// localConn explains the end of the connection with agentd's own words.
type localConn struct {
	net.Conn
	agent *localAgent
}

func (c *localConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 || err == nil || errors.Is(err, net.ErrClosed) {
		return n, err
	}
	select {
	case <-c.agent.exited:
	case <-time.After(localKill):
	}
	return n, c.agent.end(errors.New("agentd ended"))
}

// stop asks, waits, kills: the commands that still run end with it.
func (a *localAgent) stop() error {
	a.mu.Lock()
	if a.conn != nil {
		_ = a.conn.Close()
	}
	a.mu.Unlock()
	_ = a.process.Process.Signal(unix.SIGTERM)
	select {
	case <-a.exited:
		return nil
	case <-time.After(localStop):
	}
	_ = a.process.Process.Kill()
	select {
	case <-a.exited:
		return fmt.Errorf("agentd did not end within %s and was killed", localStop)
	case <-time.After(localKill):
		return fmt.Errorf("agentd (process %d) does not end", a.process.Process.Pid)
	}
}

// lastBytes keeps the last bytes that were written to it.
type lastBytes struct {
	mu   sync.Mutex
	kept []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, p...)
	if over := len(l.kept) - maxLocalStderr; over > 0 {
		l.kept = append(l.kept[:0], l.kept[over:]...)
	}
	return len(p), nil
}

func (l *lastBytes) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.kept)
}
