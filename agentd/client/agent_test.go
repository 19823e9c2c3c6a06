package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/timestamppb"

	"execsession.dev/agentd/wire"
)

// scriptedAgent serves wire with one command whose output, streams and end a test gives.
type scriptedAgent struct {
	wire.UnimplementedAgentServer
	listener *bufconn.Listener

	// output is sent in messages of chunk bytes, every second one as stderr.
	output []byte
	chunk  int
	// dropped bytes at the start of output can not be had.
	dropped uint64
	exit    *wire.ExitRecord
	startAt time.Time
	// onStart runs when a start came in, before it is answered.
	onStart func()
	// awaitInput keeps the stream open after the output until the client's input ended.
	awaitInput bool
	// counts is what the agent says about counted input on each connection; empty when it does not count.
	counts []uint64

	starts, opens, dials atomic.Int32
	refuseOpen           error

	mu       sync.Mutex
	received []string
	conns    []net.Conn
	dialErr  error
	// cutAfter cuts each connection after so many bytes were read from it; 0 never.
	cutAfter int64
}

func newScriptedAgent(t *testing.T) *scriptedAgent {
	t.Helper()
	a := &scriptedAgent{
		listener: bufconn.Listen(64 << 10),
		chunk:    1000,
		startAt:  time.Unix(1_700_000_000, 5),
		exit:     &wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_EXITED, ExitCode: 7},
	}
	pass := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		return handle(ctx, request)
	}
	passStream := func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		return handle(server, stream)
	}
	server := wire.NewServer(a, pass, passStream)
	served := make(chan error, 1)
	go func() { served <- server.Serve(a.listener) }()
	t.Cleanup(func() {
		server.Stop(0)
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serving: %v", err)
		}
	})
	return a
}

func (a *scriptedAgent) dial(ctx context.Context) (net.Conn, error) {
	a.dials.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dialErr != nil {
		return nil, a.dialErr
	}
	raw, err := a.listener.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	conn := &fragileConn{Conn: raw, left: a.cutAfter}
	a.conns = append(a.conns, conn)
	return conn, nil
}

// cut breaks every connection; later ones fail with err unless it is nil.
func (a *scriptedAgent) cut(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dialErr, a.cutAfter = err, 0
	for _, conn := range a.conns {
		_ = conn.Close()
	}
}

func (a *scriptedAgent) note(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.received = append(a.received, what)
}

func (a *scriptedAgent) notes() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.received...)
}

func (a *scriptedAgent) process() *wire.Process {
	return &wire.Process{Id: 1234, StartTime: timestamppb.New(a.startAt)}
}

func (a *scriptedAgent) Attach(stream grpc.BidiStreamingServer[wire.AttachRequest, wire.AttachResponse]) error {
	opening, err := stream.Recv()
	if err != nil {
		return err
	}
	offset := opening.GetOpen().GetFromOffset()
	process := a.process()
	if start := opening.GetStart(); start != nil {
		a.starts.Add(1)
		process.Tty = start.GetCommand().GetTty()
		if a.onStart != nil {
			a.onStart()
		}
	} else {
		a.opens.Add(1)
		if a.refuseOpen != nil {
			return a.refuseOpen
		}
	}
	answer := &wire.AttachResponse{Message: &wire.AttachResponse_Process{Process: process}}
	if connection := int(a.starts.Load()+a.opens.Load()) - 1; connection < len(a.counts) {
		answer.InputTaken = &a.counts[connection]
	}
	if err := stream.Send(answer); err != nil {
		return err
	}
	if err := a.sendOutput(stream, offset); err != nil {
		return err
	}
	if a.awaitInput {
		if err := a.takeInput(stream); err != nil {
			return err
		}
	}
	if a.exit == nil {
		return nil
	}
	return stream.Send(&wire.AttachResponse{Message: &wire.AttachResponse_Exit{Exit: a.exit}})
}

func (a *scriptedAgent) sendOutput(stream grpc.BidiStreamingServer[wire.AttachRequest, wire.AttachResponse], offset uint64) error {
	if offset < a.dropped {
		if err := stream.Send(&wire.AttachResponse{Message: &wire.AttachResponse_Gap{Gap: &wire.Gap{From: offset, To: a.dropped}}}); err != nil {
			return err
		}
		offset = a.dropped
	}
	for offset < uint64(len(a.output)) {
		// Borders that do not depend on where the reader came in.
		end := min((offset/uint64(a.chunk)+1)*uint64(a.chunk), uint64(len(a.output)))
		tag := wire.Stream_STREAM_STDOUT
		if offset/uint64(a.chunk)%2 == 1 {
			tag = wire.Stream_STREAM_STDERR
		}
		if err := stream.Send(&wire.AttachResponse{Message: &wire.AttachResponse_Output{Output: &wire.Output{
			Offset: offset, Stream: tag, Data: a.output[offset:end],
		}}}); err != nil {
			return err
		}
		offset = end
	}
	return nil
}

func (a *scriptedAgent) takeInput(stream grpc.BidiStreamingServer[wire.AttachRequest, wire.AttachResponse]) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		switch message := request.GetMessage().(type) {
		case *wire.AttachRequest_Stdin:
			a.note("stdin " + string(message.Stdin))
		case *wire.AttachRequest_Input:
			a.note(fmt.Sprintf("input %d %s %v", message.Input.GetOffset(), message.Input.GetData(), message.Input.GetEnd()))
			taken := message.Input.GetOffset() + uint64(len(message.Input.GetData()))
			// The gap lets a test see that the client knows.
			if err := stream.Send(&wire.AttachResponse{
				Message:    &wire.AttachResponse_Gap{Gap: &wire.Gap{To: taken}},
				InputTaken: &taken,
			}); err != nil || message.Input.GetEnd() {
				return err
			}
		case *wire.AttachRequest_Resize:
			a.note("resize " + message.Resize.String())
		case *wire.AttachRequest_Signal:
			a.note("signal " + message.Signal.GetName())
		case *wire.AttachRequest_StdinEof:
			a.note("eof")
			return nil
		}
	}
}

func (a *scriptedAgent) Start(context.Context, *wire.StartRequest) (*wire.Process, error) {
	return nil, invalid("command.workdir", "workdir \"x\" is not in the workspace")
}

func (a *scriptedAgent) Stop(_ context.Context, request *wire.StopRequest) (*wire.StopResponse, error) {
	return nil, refused(codes.NotFound, wire.ReasonUnknownProcess, "unknown process id 5")
}

func (a *scriptedAgent) GetStatus(context.Context, *wire.GetStatusRequest) (*wire.AgentStatus, error) {
	return &wire.AgentStatus{Version: "scripted"}, nil
}

// ExecCommand loses its answer.
func (a *scriptedAgent) ExecCommand(context.Context, *wire.ExecCommandRequest) (*wire.ToolResult, error) {
	a.starts.Add(1)
	a.cut(nil)
	return &wire.ToolResult{}, nil
}

func refused(code codes.Code, reason, message string) error {
	st, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: wire.ErrorDomain})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

func invalid(field, message string) error {
	st, err := status.New(codes.InvalidArgument, message).WithDetails(&errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: message}},
	})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

// fragileConn closes itself after so many bytes were read.
type fragileConn struct {
	net.Conn
	left int64
}

func (c *fragileConn) Read(p []byte) (int, error) {
	if c.left == 0 {
		return c.Conn.Read(p)
	}
	if int64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := c.Conn.Read(p)
	if c.left -= int64(n); c.left == 0 {
		_ = c.Close()
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}
