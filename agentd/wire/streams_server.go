package wire

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// servedStream is the agent's side of a stream.
type servedStream struct {
	conn *servedConn
	id   uint64
	ctx  context.Context //nolint:containedctx // it lives as long as the stream
	room *allowance
	in   *inbox
	// frame is that of the last message, whose memory the next one takes.
	frame []byte
}

func newServedStream(ctx context.Context, c *servedConn, id uint64) *servedStream {
	return &servedStream{conn: c, id: id, ctx: ctx, room: newAllowance(), in: newInbox()}
}

// Context implements grpc.ServerStream.
func (s *servedStream) Context() context.Context { return s.ctx }

// SetHeader implements grpc.ServerStream.
func (s *servedStream) SetHeader(metadata.MD) error { return noHeaders() }

// SendHeader implements grpc.ServerStream.
func (s *servedStream) SendHeader(metadata.MD) error { return noHeaders() }

// SetTrailer implements grpc.ServerStream.
func (s *servedStream) SetTrailer(metadata.MD) {}

// SendMsg implements grpc.ServerStream.
func (s *servedStream) SendMsg(message any) error {
	var err error
	s.frame, err = appendFrame(s.frame[:0], frameOutput, s.id, nil, message.(proto.Message)) //nolint:forcetypeassert // generated code calls, with messages
	if err != nil {
		return err
	}
	if err := s.room.take(s.ctx, len(s.frame)-sizeBytes-headBytes, nil, nil); err != nil {
		return err
	}
	if err := s.conn.write(s.frame); err != nil {
		return status.Errorf(codes.Unavailable, "the connection ended: %v", err)
	}
	return nil
}

// RecvMsg implements grpc.ServerStream.
func (s *servedStream) RecvMsg(into any) error {
	for {
		message, room, ok, end := s.in.next()
		if room > 0 {
			_ = s.conn.write(roomFrame(s.id, room)) // It fails only with the connection, which ends the stream.
		}
		switch {
		case ok:
			return readMessage(message, into)
		case end != nil:
			return end
		}
		select {
		case <-s.in.arrived:
		case <-s.ctx.Done():
			return status.FromContextError(s.ctx.Err()).Err()
		}
	}
}

// TakeAtOnce lets take have what a stream's client sends as it arrives, from the goroutine that reads the connection: waking
// another one takes as long as the rest of a keystroke's way. So take must not wait. What it does not want, and what comes
// while something is received, RecvMsg gives, in order. A stream of gRPC gives everything to RecvMsg.
func TakeAtOnce(stream grpc.BidiStreamingServer[AttachRequest, AttachResponse], take func(*AttachRequest) bool) {
	generic, ok := stream.(*grpc.GenericServerStream[AttachRequest, AttachResponse])
	if !ok {
		return
	}
	if s, ok := generic.ServerStream.(*servedStream); ok {
		s.in.takeAtOnce(func(message []byte) bool {
			var request AttachRequest
			return unmarshal(message, &request) == nil && take(&request)
		})
	}
}
