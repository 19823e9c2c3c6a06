package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testPatience = 30 * time.Second

// stubAgent answers with what a test gives.
type stubAgent struct {
	UnimplementedAgentServer
	exec   func(ctx context.Context, r *ExecCommandRequest) (*ToolResult, error)
	attach func(serverStream) error
}

type serverStream = grpc.BidiStreamingServer[AttachRequest, AttachResponse]

func (a *stubAgent) ExecCommand(ctx context.Context, r *ExecCommandRequest) (*ToolResult, error) {
	return a.exec(ctx, r)
}

// Attach lasts until its context ends, unless a test has its own.
func (a *stubAgent) Attach(stream serverStream) error {
	if a.attach != nil {
		return a.attach(stream)
	}
	err := stream.Send(&AttachResponse{})
	if err == nil {
		<-stream.Context().Done()
	}
	return err
}

func passThrough(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	return handle(ctx, request)
}

func passStream(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return handle(server, stream)
}

// serveStub serves on a socket until the test ends.
func serveStub(t *testing.T, exec func(ctx context.Context, r *ExecCommandRequest) (*ToolResult, error)) (server *Server, socket string) {
	t.Helper()
	return serveAgent(t, &stubAgent{exec: exec})
}

func serveAgent(t *testing.T, agent *stubAgent) (server *Server, socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server = NewServer(agent, passThrough, passStream)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop(0)
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return server, socket
}

func dialSocket(t *testing.T, socket string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

var patientPings = Pings{Every: time.Hour, Wait: testPatience}

func newTestConn(t *testing.T, conn net.Conn, pings Pings) *Conn {
	t.Helper()
	c, err := NewConn(deadline(t), conn, pings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	t.Cleanup(cancel)
	return ctx
}

// A call says the same whichever way it goes.
func TestCallsAnswerAsGRPCDoes(t *testing.T) {
	detailed, err := status.New(codes.InvalidArgument, "bad").WithDetails(
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "command", Description: "is missing"}}},
		&errdetails.ErrorInfo{Reason: ReasonUnknownProcess, Domain: ErrorDomain, Metadata: map[string]string{"a": "b"}},
	)
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]error{
		"an answer": nil, "an error of Go": errors.New("plain"), "a status": status.Error(codes.NotFound, "none"),
		"details": detailed.Err(), "wrapped": fmt.Errorf("around: %w", detailed.Err()), "of a context": context.Canceled,
		"text that is not UTF-8": status.Error(codes.Internal, "\xff"),
	}
	_, socket := serveStub(t, func(_ context.Context, r *ExecCommandRequest) (*ToolResult, error) {
		return &ToolResult{Output: r.GetJustification(), Notices: []string{"n"}}, outcomes[r.GetJustification()]
	})
	overGRPC, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer overGRPC.Close()
	calls := newTestConn(t, dialSocket(t, socket), patientPings)
	for name := range outcomes {
		request := &ExecCommandRequest{Justification: name}
		want, wantErr := NewAgentClient(overGRPC).ExecCommand(deadline(t), request)
		got, gotErr := NewAgentClient(calls).ExecCommand(deadline(t), request)
		if wantErr != nil {
			want, got = nil, nil
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s: gRPC and calls differ (-gRPC +calls):\n%s", name, diff)
		}
		if diff := cmp.Diff(status.Convert(wantErr).Proto(), status.Convert(gotErr).Proto(), protocmp.Transform()); diff != "" {
			t.Errorf("%s: errors of gRPC and calls differ (-gRPC +calls):\n%s", name, diff)
		}
	}
	if _, err := NewAgentClient(calls).GetStatus(deadline(t), &GetStatusRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a method that the agent has not: %v", err)
	}
	if err := calls.Invoke(deadline(t), "/no.Such/Method", &GetStatusRequest{}, &AgentStatus{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a method that there is not: %v", err)
	}
	if err := calls.Invoke(deadline(t), Agent_Attach_FullMethodName, &AttachRequest{}, &AttachResponse{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a stream that is called: %v", err)
	}
}

func TestCallsHaveBounds(t *testing.T) {
	_, socket := serveStub(t, func(_ context.Context, r *ExecCommandRequest) (*ToolResult, error) {
		return &ToolResult{Output: strings.Repeat("x", int(r.GetYieldTimeMs()))}, nil
	})
	calls := NewAgentClient(newTestConn(t, dialSocket(t, socket), patientPings))
	for name, tc := range map[string]struct {
		request, response int
		code              codes.Code
	}{
		"small":                 {1, 1, codes.OK},
		"large":                 {maxRequestBytes - 100, MaxResponseBytes - 100, codes.OK},
		"a request too large":   {maxRequestBytes, 1, codes.ResourceExhausted},
		"a response too large":  {1, MaxResponseBytes, codes.ResourceExhausted},
		"small, after the rest": {1, 1, codes.OK},
	} {
		size := int64(tc.response)
		result, err := calls.ExecCommand(deadline(t), &ExecCommandRequest{Justification: strings.Repeat("x", tc.request), YieldTimeMs: &size})
		if status.Code(err) != tc.code || err == nil && len(result.GetOutput()) != tc.response {
			t.Errorf("%s: %d bytes, %v", name, len(result.GetOutput()), err)
		}
	}
}

// A request that is too large says which of its fields is.
func TestOversizedRequestNamesItsField(t *testing.T) {
	text := strings.Repeat("x", maxRequestBytes)
	half := text[:len(text)/2]
	for name, tc := range map[string]struct {
		request proto.Message
		field   string
	}{
		"script":    {&ExecCommandRequest{Command: &Command{Program: &Command_Script{Script: text}, Workdir: "x"}}, "command.script"},
		"input":     {&ExecCommandRequest{Command: &Command{Program: &Command_Script{Script: half}, StdinData: []byte(half + "x")}}, "command.stdin_data"},
		"variables": {&ExecCommandRequest{Command: &Command{Env: map[string]string{"A": half, "B": half}}}, "command.env"},
		"arguments": {&RunRequest{Command: &Command{Program: &Command_Argv{Argv: &Argv{Args: []string{half, half}}}}}, "command.argv.args"},
		"keys":      {&WriteStdinRequest{SessionId: 1000, Chars: text}, "chars"},
		"rule":      {&ExecCommandRequest{PrefixRule: []string{text}}, "prefix_rule"},
	} {
		_, err := newFrame(frameCall, 1, nil, tc.request)
		details := status.Convert(err).Details()
		if status.Code(err) != codes.ResourceExhausted || len(details) != 1 {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := details[0].(*errdetails.BadRequest).GetFieldViolations()[0].GetField(); got != tc.field {
			t.Errorf("%s: the field is %q, want %q", name, got, tc.field)
		}
	}
}

// block is an agent's call that waits for its context, and says so.
type block struct{ began, ended chan struct{} }

func newBlock() block {
	return block{began: make(chan struct{}, maxCalls), ended: make(chan struct{}, maxCalls)}
}

func (b block) wait(ctx context.Context) error {
	b.began <- struct{}{}
	<-ctx.Done()
	b.ended <- struct{}{}
	return ctx.Err()
}

func (b block) exec(ctx context.Context, r *ExecCommandRequest) (*ToolResult, error) {
	if r.GetJustification() == "at once" {
		return &ToolResult{}, nil
	}
	return nil, b.wait(ctx)
}

func TestGivingUpACall(t *testing.T) {
	b := newBlock()
	_, socket := serveStub(t, b.exec)
	conn := newTestConn(t, dialSocket(t, socket), patientPings)
	calls := NewAgentClient(conn)
	for name, tc := range map[string]struct {
		giveUp func(context.Context) (context.Context, context.CancelFunc)
		code   codes.Code
	}{
		"cancelled": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			go func() { <-b.began; cancel() }()
			return ctx, cancel
		}, codes.Canceled},
		"too late": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 20*time.Millisecond)
		}, codes.DeadlineExceeded},
	} {
		ctx, cancel := tc.giveUp(deadline(t))
		if _, err := calls.ExecCommand(ctx, &ExecCommandRequest{}); status.Code(err) != tc.code {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		<-b.ended // the agent's call ends too
		if _, err := calls.ExecCommand(deadline(t), &ExecCommandRequest{Justification: "at once"}); err != nil {
			t.Errorf("%s: the next call: %v", name, err)
		}
	}
	if err := conn.Err(); err != nil {
		t.Errorf("the connection ended: %v", err)
	}
}

func TestManyCallsOfOneConnection(t *testing.T) {
	b := newBlock()
	_, socket := serveStub(t, b.exec)
	calls := NewAgentClient(newTestConn(t, dialSocket(t, socket), patientPings))
	ctx, cancel := context.WithCancel(deadline(t))
	var waiting sync.WaitGroup
	for range maxCalls {
		waiting.Go(func() {
			if _, err := calls.ExecCommand(ctx, &ExecCommandRequest{}); status.Code(err) != codes.Canceled {
				t.Errorf("a call among many: %v", err)
			}
		})
	}
	for range maxCalls {
		<-b.began
	}
	if _, err := calls.ExecCommand(deadline(t), &ExecCommandRequest{Justification: "at once"}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	cancel()
	waiting.Wait()
	for range maxCalls {
		<-b.ended
	}
	// Their answers, which nobody waits for, may still be on their way.
	for {
		_, err := calls.ExecCommand(deadline(t), &ExecCommandRequest{Justification: "at once"})
		if err == nil {
			return
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("afterwards: %v", err)
		}
	}
}

// Answers find their calls, whoever reads them.
func TestAnswersOfCallsAtATime(t *testing.T) {
	_, socket := serveStub(t, func(_ context.Context, r *ExecCommandRequest) (*ToolResult, error) {
		time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		return &ToolResult{Output: r.GetJustification()}, nil
	})
	calls := NewAgentClient(newTestConn(t, dialSocket(t, socket), Pings{Every: time.Millisecond, Wait: testPatience}))
	var callers sync.WaitGroup
	for caller := range 16 {
		callers.Go(func() {
			for i := range 200 {
				ctx, cancel := context.WithCancel(deadline(t))
				if i%7 == 0 {
					time.AfterFunc(time.Duration(rand.IntN(200))*time.Microsecond, cancel)
				}
				text := fmt.Sprint(caller, " ", i)
				result, err := calls.ExecCommand(ctx, &ExecCommandRequest{Justification: text})
				if given := ctx.Err() != nil; err == nil && result.GetOutput() != text || err != nil && !given {
					t.Errorf("%q: %q, %v", text, result.GetOutput(), err)
				}
				cancel()
				if i%50 == 0 {
					time.Sleep(2 * idleTime) // Somebody else reads meanwhile.
				}
			}
		})
	}
	callers.Wait()
}

func awaitErr(t *testing.T, c *Conn) error {
	t.Helper()
	select {
	case <-c.ended:
		return c.Err()
	case <-deadline(t).Done():
		t.Fatal("the end of the connection is not noticed")
		return nil
	}
}

func TestEndsOfConnectionsForCalls(t *testing.T) {
	t.Run("with a call", func(t *testing.T) {
		b := newBlock()
		server, socket := serveStub(t, b.exec)
		c := newTestConn(t, dialSocket(t, socket), patientPings)
		go func() { <-b.began; server.Stop(0) }()
		if _, err := NewAgentClient(c).ExecCommand(deadline(t), &ExecCommandRequest{}); err == nil {
			t.Error("a call whose agent ended has an answer")
		}
		_ = awaitErr(t, c)
		if _, err := NewAgentClient(c).ExecCommand(deadline(t), &ExecCommandRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("a call afterwards: %v", err)
		}
	})
	t.Run("without a call", func(t *testing.T) {
		server, socket := serveStub(t, nil)
		c := newTestConn(t, dialSocket(t, socket), patientPings)
		server.Stop(0)
		if err := awaitErr(t, c); !strings.Contains(err.Error(), "the other end closed it") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("by the client", func(t *testing.T) {
		b := newBlock()
		_, socket := serveStub(t, b.exec)
		c := newTestConn(t, dialSocket(t, socket), patientPings)
		go func() { <-b.began; _ = c.Close() }()
		if _, err := NewAgentClient(c).ExecCommand(deadline(t), &ExecCommandRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("a call whose connection was closed: %v", err)
		}
		<-b.ended // the agent's call ends too
	})
	t.Run("an agent that says nothing", func(t *testing.T) {
		mine, other := net.Pipe()
		defer other.Close()
		go func() { // It answers the first ping, and no more.
			_, _ = io.ReadFull(other, make([]byte, len(Preface)))
			in := frameReader{from: other, most: 1000}
			_, _ = in.next()
			pong, _ := newFrame(frameResponse, 1, nil, nil)
			_, _ = other.Write(pong)
			_, _ = io.Copy(io.Discard, other)
		}()
		c := newTestConn(t, mine, Pings{Every: time.Millisecond, Wait: 20 * time.Millisecond})
		if err := awaitErr(t, c); !strings.Contains(err.Error(), "said nothing for 20ms") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a request that nobody takes", func(t *testing.T) {
		mine, other := net.Pipe()
		defer other.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := NewConn(ctx, mine, patientPings); err == nil {
			t.Error("a connection that nobody reads from was begun")
		}
	})
	t.Run("an answer that is none", func(t *testing.T) {
		mine, other := net.Pipe()
		defer other.Close()
		go func() {
			_, _ = io.ReadFull(other, make([]byte, len(Preface)))
			_, _ = other.Write([]byte("HTTP/1.1 400 Bad Request\r\n"))
			_, _ = io.Copy(io.Discard, other)
		}()
		if _, err := NewConn(deadline(t), mine, patientPings); err == nil || !strings.Contains(err.Error(), "reading") {
			t.Errorf("got %v", err)
		}
	})
}

// slowConn moves little at a time.
type slowConn struct{ net.Conn }

func (c slowConn) Read(p []byte) (int, error) {
	time.Sleep(50 * time.Millisecond)
	return c.Conn.Read(p[:min(len(p), 64<<10)])
}

func (c slowConn) Write(p []byte) (int, error) {
	time.Sleep(50 * time.Millisecond)
	return c.Conn.Write(p)
}

// While something large is on its way a ping has no answer for longer than an agent that is gone would be waited for.
func TestSlowIsNotDead(t *testing.T) {
	t.Parallel()
	_, socket := serveStub(t, func(_ context.Context, r *ExecCommandRequest) (*ToolResult, error) {
		return &ToolResult{Output: r.GetJustification()}, nil
	})
	c := newTestConn(t, slowConn{dialSocket(t, socket)}, Pings{Every: time.Millisecond, Wait: 2 * time.Second})
	text := strings.Repeat("x", 3<<20)
	result, err := NewAgentClient(c).ExecCommand(deadline(t), &ExecCommandRequest{Justification: text})
	if err != nil || result.GetOutput() != text {
		t.Fatalf("%d bytes, %v", len(result.GetOutput()), err)
	}
}

func TestStopWaitsForCalls(t *testing.T) {
	leave := make(chan struct{})
	began := make(chan struct{})
	server, socket := serveStub(t, func(context.Context, *ExecCommandRequest) (*ToolResult, error) {
		close(began)
		<-leave
		return &ToolResult{Output: "whole"}, nil
	})
	calls := NewAgentClient(newTestConn(t, dialSocket(t, socket), patientPings))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-began
		time.AfterFunc(20*time.Millisecond, func() { close(leave) })
		server.Stop(testPatience)
	}()
	result, err := calls.ExecCommand(deadline(t), &ExecCommandRequest{})
	if err != nil || result.GetOutput() != "whole" {
		t.Errorf("%v, %v", result, err)
	}
	<-stopped
}

// What does not end by itself is ended, on either kind of connection.
func TestStopEndsWhatIsLeft(t *testing.T) {
	b := newBlock()
	server, socket := serveStub(t, b.exec)
	overGRPC, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer overGRPC.Close()
	stream, err := NewAgentClient(overGRPC).Attach(deadline(t))
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	called := make(chan error, 1)
	calls := NewAgentClient(newTestConn(t, dialSocket(t, socket), patientPings))
	go func() {
		_, err := calls.ExecCommand(deadline(t), &ExecCommandRequest{})
		called <- err
	}()
	<-b.began
	server.Stop(10 * time.Millisecond)
	if err := <-called; err == nil {
		t.Error("a call that was ended has an answer")
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("a stream that was ended goes on")
	}
	<-b.ended
}
