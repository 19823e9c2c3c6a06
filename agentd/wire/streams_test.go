package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
)

// echoInput answers every message with what it says, until the client closes its side.
func echoInput(stream serverStream) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if string(request.GetStdin()) == "fail" {
			return fmt.Errorf("around: %w", status.Error(codes.NotFound, "failed"))
		}
		if err := stream.Send(outputOf(request.GetStdin())); err != nil {
			return err
		}
	}
}

func outputOf(data []byte) *AttachResponse {
	return &AttachResponse{Message: &AttachResponse_Output{Output: &Output{Data: data}}}
}

func inputOf(data []byte) *AttachRequest {
	return &AttachRequest{Message: &AttachRequest_Stdin{Stdin: data}}
}

// attachTo begins a stream, which is over with the test.
func attachTo(t *testing.T, conn grpc.ClientConnInterface) Agent_AttachClient {
	t.Helper()
	stream, err := NewAgentClient(conn).Attach(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// A stream says the same whichever way it goes.
func TestStreamsAnswerAsGRPCDoes(t *testing.T) {
	_, socket := serveAgent(t, &stubAgent{attach: echoInput})
	overGRPC, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer overGRPC.Close()
	overFrames := newTestConn(t, dialSocket(t, socket), patientPings)
	talk := func(conn grpc.ClientConnInterface, said []string) (heard []string, end error) {
		stream := attachTo(t, conn)
		for i, line := range said {
			if err := stream.Send(inputOf([]byte(line))); err != nil && !errors.Is(err, io.EOF) {
				t.Errorf("sending %d: %v", i, err)
			}
		}
		if err := stream.CloseSend(); err != nil {
			t.Errorf("closing: %v", err)
		}
		for {
			answer, err := stream.Recv()
			if err != nil {
				return heard, err
			}
			heard = append(heard, string(answer.GetOutput().GetData()))
		}
	}
	for name, said := range map[string][]string{
		"one": {"a"}, "some": {"a", "", "b"}, "a failure": {"a", "fail"}, "one after it": {"fail", "a"},
		"large": {strings.Repeat("x", 3<<20), "y", strings.Repeat("z", 3*streamWindow)},
	} {
		want, wantEnd := talk(overGRPC, said)
		got, gotEnd := talk(overFrames, said)
		if !slices.Equal(want, got) {
			t.Errorf("%s: %d answers, and %d over gRPC, or others", name, len(got), len(want))
		}
		if errors.Is(wantEnd, io.EOF) && errors.Is(gotEnd, io.EOF) {
			continue
		}
		if diff := cmp.Diff(status.Convert(wantEnd).Proto(), status.Convert(gotEnd).Proto(), protocmp.Transform()); diff != "" {
			t.Errorf("%s: ends of gRPC and frames differ (-gRPC +frames):\n%s", name, diff)
		}
	}
	stream, err := overFrames.NewStream(deadline(t), &grpc.StreamDesc{}, "/no.Such/Stream")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&AttachRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&AttachResponse{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a stream that there is not: %v", err)
	}
	if err := overFrames.Err(); err != nil {
		t.Errorf("the connection ended: %v", err)
	}
}

// Whoever does not receive stops its own stream after a window, and nothing else of the connection.
func TestStreamsHoldBackOnlyThemselves(t *testing.T) {
	const piece = 8 << 10
	sent := make(chan int, 1000)
	taken := make(chan struct{})
	agent := &stubAgent{
		exec: func(context.Context, *ExecCommandRequest) (*ToolResult, error) { return &ToolResult{Output: "o"}, nil },
		attach: func(stream serverStream) error {
			first, err := stream.Recv()
			switch {
			case err != nil || string(first.GetStdin()) == "echo":
				return errors.Join(err, echoInput(stream))
			case string(first.GetStdin()) == "deaf":
				<-stream.Context().Done()
				close(taken)
				return nil
			}
			for i := range 64 {
				if err := stream.Send(outputOf(make([]byte, piece))); err != nil {
					return err
				}
				sent <- i
			}
			return nil
		},
	}
	_, socket := serveAgent(t, agent)
	conn := newTestConn(t, dialSocket(t, socket), patientPings)
	stalled := attachTo(t, conn)
	if err := stalled.Send(inputOf([]byte("flood"))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(deadline(t))
	deaf, err := NewAgentClient(conn).Attach(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var said sync.WaitGroup
	said.Go(func() {
		for message := "deaf"; deaf.Send(inputOf([]byte(message))) == nil; {
			message = strings.Repeat("x", piece)
		}
	})
	echo := attachTo(t, conn)
	if err := echo.Send(inputOf([]byte("echo"))); err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		if err := echo.Send(inputOf([]byte("x"))); err != nil {
			t.Fatal(err)
		}
		if answer, err := echo.Recv(); err != nil || string(answer.GetOutput().GetData()) != "x" {
			t.Fatalf("beside a stalled stream: %v, %v", answer, err)
		}
	}
	if _, err := NewAgentClient(conn).ExecCommand(deadline(t), &ExecCommandRequest{}); err != nil {
		t.Errorf("a call beside a stalled stream: %v", err)
	}
	if got, most := len(sent), streamWindow/piece+1; got > most {
		t.Errorf("%d messages were sent to who receives none, want at most %d", got, most)
	}
	for range 64 {
		if _, err := stalled.Recv(); err != nil {
			t.Fatalf("afterwards: %v", err)
		}
	}
	if _, err := stalled.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	cancel()
	said.Wait()
	<-taken
}

// A stream ends with its context, in the agent too, whatever it was doing and even if it has not begun.
func TestGivingUpAStream(t *testing.T) {
	began, ended := make(chan struct{}, 1), make(chan error, 1)
	_, socket := serveAgent(t, &stubAgent{attach: func(stream serverStream) error {
		began <- struct{}{}
		for {
			if _, err := stream.Recv(); err != nil {
				ended <- err
				return err
			}
		}
	}})
	conn := newTestConn(t, dialSocket(t, socket), patientPings)
	for range 20 {
		ctx, cancel := context.WithCancel(deadline(t))
		stream, err := NewAgentClient(conn).Attach(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&AttachRequest{}); err != nil {
			t.Fatal(err)
		}
		<-began
		cancel()
		if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
			t.Errorf("receiving: %v", err)
		}
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("the agent's stream: %v", err)
		}
		ctx, cancel = context.WithCancel(deadline(t))
		if stream, err = NewAgentClient(conn).Attach(ctx); err != nil {
			t.Fatal(err)
		}
		go cancel()
		if stream.Send(&AttachRequest{}) == nil {
			<-ended
			<-began
		}
	}
	ctx, cancel := context.WithTimeout(deadline(t), 20*time.Millisecond)
	defer cancel()
	late, err := NewAgentClient(conn).Attach(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := late.Send(&AttachRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := late.Recv(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("too late: %v", err)
	}
	<-ended
	left := func() int {
		conn.mu.Lock()
		defer conn.mu.Unlock()
		return len(conn.streams)
	}
	for patience := deadline(t); left() != 0; time.Sleep(time.Millisecond) {
		if patience.Err() != nil {
			t.Fatalf("%d streams are left", left())
		}
	}
}

// Who breaks the rules of streams loses the connection, on either side.
func TestStrangeStreams(t *testing.T) {
	_, socket := serveAgent(t, &stubAgent{attach: func(stream serverStream) error {
		<-stream.Context().Done()
		return nil
	}})
	head, err := callHead(0, Agent_Attach_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	made := func(kind byte, head []byte, bytes int) string {
		frame, err := newFrame(kind, 7, head, inputOf(make([]byte, bytes)))
		if err != nil {
			t.Fatal(err)
		}
		return string(frame)
	}
	room := func(bytes int) string { return string(roomFrame(7, bytes)) }
	open := made(frameStream, head, 1)
	for name, tc := range map[string]struct {
		said string
		ends bool
	}{
		"within the window":         {open + made(frameInput, nil, streamWindow/2) + made(frameInput, nil, streamWindow), false},
		"beyond the window":         {open + made(frameInput, nil, streamWindow) + made(frameInput, nil, 1), true},
		"beyond it, by empty ones":  {open + strings.Repeat(made(frameInput, nil, 0), streamWindow/messageCost+1), true},
		"after the end":             {open + made(frameInputEnd, nil, 0) + made(frameInput, nil, 1), true},
		"more room than was taken":  {open + room(1), true},
		"room of no size":           {open + made(frameRoom, nil, 9), true},
		"input of no stream":        {made(frameInput, nil, 1) + made(frameInputEnd, nil, 0) + room(1), false},
		"output from a client":      {open + made(frameOutput, nil, 1), true},
		"a stream without a method": {open + string(binary.BigEndian.AppendUint32(nil, headBytes)) + strings.Repeat("\x00", 8) + string(frameStream), true},
	} {
		conn := dialSocket(t, socket)
		if _, err := io.WriteString(conn, Preface+tc.said); err != nil && !tc.ends {
			t.Errorf("%s: %v", name, err)
		}
		ping, err := newFrame(frameCall, 8, make([]byte, callBytes), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(ping)
		if err := conn.SetReadDeadline(time.Now().Add(testPatience)); err != nil {
			t.Fatal(err)
		}
		in := frameReader{from: conn, most: 1 << 20}
		answer, err := in.next()
		if ended := err != nil; ended != tc.ends || !ended && (answer.call != 8 || answer.kind != frameResponse) {
			t.Errorf("%s: %v, %v", name, answer, err)
		}
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			t.Errorf("%s: the connection does not end", name)
		}
		_ = conn.Close()
	}
}

// However messages come, at once or by RecvMsg, each comes once and in order.
func TestTakingAtOnce(t *testing.T) {
	const messages = 20000
	var mu sync.Mutex
	var got []byte
	atOnce := 0
	_, socket := serveAgent(t, &stubAgent{attach: func(stream serverStream) error {
		TakeAtOnce(stream, func(r *AttachRequest) bool {
			mu.Lock()
			defer mu.Unlock()
			if rand.N(4) == 0 {
				return false
			}
			atOnce++
			got = append(got, r.GetStdin()...)
			return true
		})
		for {
			request, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return stream.Send(outputOf(got))
			}
			if err != nil {
				return err
			}
			mu.Lock()
			got = append(got, request.GetStdin()...)
			mu.Unlock()
		}
	}})
	stream := attachTo(t, newTestConn(t, dialSocket(t, socket), patientPings))
	var want []byte
	for i := range messages {
		data := make([]byte, rand.N(64))
		for at := range data {
			data[at] = byte(i)
		}
		want = append(want, data...)
		if err := stream.Send(inputOf(data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil || !cmp.Equal(answer.GetOutput().GetData(), want) {
		t.Errorf("%d bytes, %v, want the %d that were sent", len(answer.GetOutput().GetData()), err, len(want))
	}
	if atOnce == 0 {
		t.Error("nothing was taken at once")
	}
}

// The end of the agent, of a client and of their connection is the end of streams, and nobody waits for ever.
func TestEndsOfStreams(t *testing.T) {
	for name, end := range map[string]func(*Server, *Conn){
		"the agent's":      func(s *Server, _ *Conn) { s.Stop(0) },
		"the client's":     func(_ *Server, c *Conn) { _ = c.Close() },
		"the connection's": func(_ *Server, c *Conn) { _ = c.conn.Close() },
	} {
		server, socket := serveStub(t, newBlock().exec)
		conn := newTestConn(t, dialSocket(t, socket), patientPings)
		waiting := attachTo(t, conn)
		if err := waiting.Send(&AttachRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := waiting.Recv(); err != nil {
			t.Fatal(err)
		}
		go end(server, conn)
		if _, err := waiting.Recv(); status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
			t.Errorf("%s end: receiving: %v", name, err)
		}
		<-conn.ended
		if err := waiting.Send(&AttachRequest{}); err == nil {
			t.Errorf("%s end: a message was sent to nobody", name)
		}
		late := attachTo(t, conn)
		if err := late.Send(&AttachRequest{}); status.Code(err) != codes.Unavailable && !errors.Is(err, io.EOF) {
			t.Errorf("%s end: beginning a stream: %v", name, err)
		}
		if _, err := late.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("%s end: receiving on it: %v", name, err)
		}
	}
}
