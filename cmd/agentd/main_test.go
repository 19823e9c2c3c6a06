package main

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"execsession.dev/agentd"
	"execsession.dev/agentd/ledger"
	"execsession.dev/agentd/wire"
)

// The test binary is agentd when this variable is set, so that the tests run the real
// main in processes of its own, with the race detector when they have it.
const (
	actAsVariable = "EXECSESSION_TEST_ACT_AS"
	actAsAgentd   = "agentd"
	actAsPod      = "pod"
	actAsHog      = "hog"
)

// patience bounds every wait; the machine may be busy building.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	switch os.Getenv(actAsVariable) {
	case actAsAgentd:
		main()
	case actAsPod:
		os.Exit(becomePod())
	case actAsAgentdWithoutLandlock:
		os.Exit(becomeAgentdWithoutLandlock())
	case actAsHog:
		os.Exit(hog(os.Args[1:]))
	default:
		os.Exit(m.Run())
	}
}

// self is the command line of agentd itself.
func self(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), actAsVariable+"="+actAsAgentd)
	return cmd
}

// buffer is a bytes.Buffer that may be read while a process writes it.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// runSelf runs agentd to its end.
func runSelf(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := self(t.Context(), args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	return exitCode(t, cmd.Run()), out.String(), errs.String()
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("running agentd: %v", err)
	}
	return exit.ExitCode()
}

// daemon is a running `agentd serve`.
type daemon struct {
	cmd    *exec.Cmd
	stderr *buffer
	done   chan struct{}
	code   int
}

// startDaemon starts it and makes sure that it is gone at the end of the test.
func startDaemon(t *testing.T, cmd *exec.Cmd) *daemon {
	t.Helper()
	d := &daemon{cmd: cmd, stderr: &buffer{}, done: make(chan struct{})}
	cmd.Stderr = d.stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(d.done)
		err := cmd.Wait()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			d.code = exit.ExitCode()
		} else if err != nil {
			d.code = -1
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if !waitDone(d.done) {
			_ = cmd.Process.Kill()
			<-d.done
			t.Error("agentd did not end after SIGTERM")
		}
		if t.Failed() {
			t.Logf("agentd's standard error:\n%s", d.stderr)
		}
	})
	return d
}

func waitDone(done <-chan struct{}) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// eventually polls until f is true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("it did not happen within %s: %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// client makes a client over connections that dial gives.
func client(t *testing.T, dial func(context.Context) (net.Conn, error)) wire.AgentClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///agentd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return wire.NewAgentClient(conn)
}

// socketClient dials a local agent's socket, and waits until there is one.
func socketClient(t *testing.T, socket string) wire.AgentClient {
	t.Helper()
	eventually(t, "agentd listens on "+socket, func() bool {
		conn, err := agentd.Dial(t.Context(), socket)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
	return client(t, func(ctx context.Context) (net.Conn, error) { return agentd.Dial(ctx, socket) })
}

// socketPair returns one end for a child's descriptors and the other as a connection.
func socketPair(t *testing.T) (child *os.File, conn net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	child = os.NewFile(uintptr(fds[0]), "child")
	own := os.NewFile(uintptr(fds[1]), "own")
	defer own.Close()
	conn, err = net.FileConn(own)
	if err != nil {
		t.Fatal(err)
	}
	return child, conn
}

// oneConn is a dialer that gives a connection that exists, once.
func oneConn(conn net.Conn) func(context.Context) (net.Conn, error) {
	var once sync.Once
	return func(context.Context) (net.Conn, error) {
		err := errors.New("the only connection is used up")
		once.Do(func() { err = nil })
		if err != nil {
			return nil, err
		}
		return conn, nil
	}
}

func script(text string) *wire.Command {
	return &wire.Command{Program: &wire.Command_Script{Script: text}, Login: new(false)}
}

func argv(args ...string) *wire.Command {
	return &wire.Command{Program: &wire.Command_Argv{Argv: &wire.Argv{Args: args}}}
}

// execute runs a command to its end and returns its output and exit code.
func execute(t *testing.T, c wire.AgentClient, command *wire.Command) (string, int32) {
	t.Helper()
	result, err := c.ExecCommand(t.Context(), &wire.ExecCommandRequest{Command: command, YieldTimeMs: new(int64(30000))})
	if err != nil {
		t.Fatalf("running %v: %v", command.GetProgram(), err)
	}
	if result.ExitCode == nil {
		t.Fatalf("%v still runs after 30 s; output so far: %s", command.GetProgram(), result.GetOutput())
	}
	return result.GetOutput(), result.GetExitCode()
}

// maxStreams is where receive stops to keep the streams apart.
const maxStreams = 1 << 20

// attached is what an Attach stream gave.
type attached struct {
	process *wire.Process
	streams map[wire.Stream]string
	output  []byte
	// received counts what came of the output, kept or not.
	received int
	gaps     []*wire.Gap
	exit     *wire.ExitRecord
	denials  []*wire.Denial
	err      error // io.EOF is the ordinary end
}

// receive reads an Attach stream to its end.
func receive(stream wireStream) attached { return receiveKeeping(stream, math.MaxInt) }

// receiveKeeping keeps at most the beginning of the output: who moves ever more memory about does not read meanwhile.
func receiveKeeping(stream wireStream, most int) attached {
	got := attached{streams: map[wire.Stream]string{}}
	for {
		response, err := stream.Recv()
		if err != nil {
			got.err = err
			return got
		}
		switch m := response.GetMessage().(type) {
		case *wire.AttachResponse_Process:
			got.process = m.Process
		case *wire.AttachResponse_Output:
			data := m.Output.GetData()
			got.received += len(data)
			if got.received <= maxStreams {
				got.streams[m.Output.GetStream()] += string(data)
			}
			if len(got.output) < most {
				got.output = append(got.output, data...)
			}
		case *wire.AttachResponse_Gap:
			got.gaps = append(got.gaps, m.Gap)
		case *wire.AttachResponse_Exit:
			got.exit, got.denials = m.Exit, response.GetDenials()
		}
	}
}

func attachStart(t *testing.T, c wire.AgentClient, command *wire.Command) grpc.BidiStreamingClient[wire.AttachRequest, wire.AttachResponse] {
	t.Helper()
	stream, err := c.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, stream, &wire.AttachRequest{Message: &wire.AttachRequest_Start{Start: &wire.StartRequest{Command: command}}})
	return stream
}

func send(t *testing.T, stream grpc.BidiStreamingClient[wire.AttachRequest, wire.AttachResponse], request *wire.AttachRequest) {
	t.Helper()
	if err := stream.Send(request); err != nil {
		t.Fatalf("sending %v: %v", request, err)
	}
}

// records parses a ledger; every line must be a record.
func records(t *testing.T, text string) []ledger.Record {
	t.Helper()
	var found []ledger.Record
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(line, "\n") {
			break // still being written
		}
		record, err := ledger.Parse([]byte(line))
		if err != nil {
			t.Fatalf("a line of the ledger is no record: %v: %q", err, line)
		}
		found = append(found, record)
	}
	return found
}
