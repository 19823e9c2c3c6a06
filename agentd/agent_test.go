package agentd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/ledger"
	"execsession.dev/agentd/wire"
)

// patience bounds every wait; the machine may be busy building.
const patience = 60 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("it did not happen within %s: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// syncBuffer is written by one goroutine and read by another.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *syncBuffer) records(t *testing.T) []ledger.Record {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []ledger.Record
	for line := range strings.Lines(b.buf.String()) {
		record, err := ledger.Parse([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, record)
	}
	return found
}

// served serves an agent in this process until cancel; ended waits for its end.
func served(t *testing.T, agent *Agent) (client wire.AgentClient, cancel, ended func()) {
	t.Helper()
	near, far := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan error, 1)
	go func() { end <- agent.Serve(ctx, ListenPair(far)) }()
	conn, err := grpc.NewClient("passthrough:///agentd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return near, nil }))
	if err != nil {
		t.Fatal(err)
	}
	return wire.NewAgentClient(conn), cancel, func() {
		if err := <-end; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A whole life in this process: every goroutine that was started is gone afterwards.
func TestAgentLeavesNothingBehind(t *testing.T) {
	var out syncBuffer
	agent, err := New(Config{Workspace: t.TempDir(), Policy: config.DefaultPolicy(), Shell: config.DefaultShell(), Ledger: &out, StopGrace: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	client, cancel, ended := served(t, agent)
	result, err := client.ExecCommand(t.Context(), &wire.ExecCommandRequest{
		Command: &wire.Command{Program: &wire.Command_Argv{Argv: &wire.Argv{Args: []string{"echo", "hi"}}}}, YieldTimeMs: new(int64(30000)),
	})
	if err != nil || result.GetOutput() != "hi\n" {
		t.Errorf("a command gave %v, %v", result, err)
	}
	stream, err := client.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	start := &wire.StartRequest{Command: &wire.Command{Program: &wire.Command_Argv{Argv: &wire.Argv{Args: []string{"sleep", "1000"}}}}}
	if err := stream.Send(&wire.AttachRequest{Message: &wire.AttachRequest_Start{Start: start}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	last, err := stream.Recv()
	if err != nil || last.GetExit().GetReason() != wire.ExitReason_EXIT_REASON_ENGINE_STOPPED {
		t.Errorf("the stream's last answer is %v, %v, want that the engine stopped", last, err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the exit record came %v, want the end", err)
	}
	ended()
	records := out.records(t)
	if last := records[len(records)-1]; last.Status == nil || !last.Status.Stopping || last.Status.Processes.Exited != 2 {
		t.Errorf("the last record is %+v", last)
	}
}

func TestNewChecksItsConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, workspace := range map[string]string{"Relative": "x", "Missing": "/no/such", "File": file} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(Config{Workspace: workspace}); err == nil || !strings.Contains(err.Error(), workspace) {
				t.Errorf("got %v, want an error that names %q", err, workspace)
			}
		})
	}
}

// An agent whose fixed policy cannot be put into force must not serve.
func TestServeRefusesAPolicyThatCannotHold(t *testing.T) {
	policy := config.DefaultPolicy()
	policy.Sandbox.MinLandlockABI = 11
	agent, err := New(Config{Workspace: t.TempDir(), Policy: policy, Shell: config.DefaultShell()})
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if err := agent.Serve(t.Context(), ListenPair(far)); err == nil || !strings.Contains(err.Error(), ReasonNotEnforceable) {
		t.Errorf("Serve gave %v, want %s", err, ReasonNotEnforceable)
	}
}

func TestTerminationMessage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	record := ledger.Record{
		Version: ledger.Version, Boot: "b", Seq: 1, Type: ledger.TypeStatus,
		Status: &ledger.Status{Policy: ledger.Policy{Message: strings.Repeat("x", 9000)}},
	}
	if err := writeTermination(path, record); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file was made: %v", err)
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte("old"), 3000), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeTermination(path, record); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil || len(data) > maxTermination {
		t.Fatalf("the message has %d bytes, %v", len(data), err)
	}
	if _, err := ledger.Parse(data); err != nil {
		t.Error(err)
	}
}
