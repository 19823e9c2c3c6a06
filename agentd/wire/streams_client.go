package wire

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// clientStream is the client's side of a stream. Like a call's, its answers are read by whoever waits for them.
type clientStream struct {
	conn *Conn
	id   uint64
	ctx  context.Context //nolint:containedctx // it lives as long as the stream
	// head opens the stream with the first message, and is nil after it.
	head []byte
	room *allowance
	in   *inbox
	// over is closed when the agent has answered.
	over chan struct{}
	// release stops the watch for the end of ctx.
	release func() bool
}

// NewStream implements grpc.ClientConnInterface. The stream begins with its first message, and ends with its last answer or with
// its context. Options change nothing.
func (c *Conn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	head, err := callHead(timeLeft(ctx), method)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "calling %s: %v", method, err)
	}
	s := &clientStream{conn: c, ctx: ctx, head: head, room: newAllowance(), in: newInbox(), over: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	s.id = c.lastID
	c.streams[s.id] = s
	s.release = context.AfterFunc(ctx, s.abandon) // It waits for the lock.
	return s, nil
}

// abandon tells the agent that nobody wants the stream any more.
func (s *clientStream) abandon() {
	s.conn.mu.Lock()
	_, open := s.conn.streams[s.id]
	delete(s.conn.streams, s.id)
	s.conn.mu.Unlock()
	if open {
		s.conn.giveUp(s.id)
	}
}

// finish takes the agent's last answer.
func (s *clientStream) finish(f frame) {
	end := io.EOF
	if f.kind == frameFailure {
		end = failureOf(f.body)
	}
	s.in.finish(end)
	close(s.over)
	s.release()
}

// Header implements grpc.ClientStream.
func (s *clientStream) Header() (metadata.MD, error) { return nil, noHeaders() }

// Trailer implements grpc.ClientStream.
func (s *clientStream) Trailer() metadata.MD { return nil }

// Context implements grpc.ClientStream.
func (s *clientStream) Context() context.Context { return s.ctx }

// CloseSend implements grpc.ClientStream.
func (s *clientStream) CloseSend() error {
	if s.head != nil {
		return status.Error(codes.Internal, "a stream begins with its first message, and this one has none")
	}
	return s.conn.send(s.ctx, bareFrame(frameInputEnd, s.id, nil))
}

// SendMsg implements grpc.ClientStream. io.EOF says that the stream is over; RecvMsg says why.
func (s *clientStream) SendMsg(message any) error {
	kind, head := frameInput, []byte(nil)
	if s.head != nil {
		kind, head, s.head = frameStream, s.head, nil
	}
	frame, err := newFrame(kind, s.id, head, message.(proto.Message)) //nolint:forcetypeassert // generated code calls, with messages
	if err != nil {
		return err
	}
	if err := s.room.take(s.ctx, len(frame)-sizeBytes-headBytes-len(head), s.conn.ended, s.over); err != nil {
		return err
	}
	err = s.conn.send(s.ctx, frame)
	if kind == frameStream && s.ctx.Err() != nil {
		s.conn.giveUp(s.id) // What abandon sent may have come before the stream.
	}
	return err
}

// RecvMsg implements grpc.ClientStream. What an *Answer refers to is valid until the next call.
func (s *clientStream) RecvMsg(into any) error {
	defer s.conn.used()
	for {
		ended := s.conn.Err() != nil // What came before the end is still there.
		message, room, ok, end := s.in.next()
		switch {
		case ok:
			if room > 0 {
				_ = s.conn.send(s.ctx, roomFrame(s.id, room)) // Whoever receives next learns why it failed.
			}
			return readMessage(message, into)
		case end != nil:
			return end
		case ended:
			return s.conn.broken()
		}
		select {
		case <-s.in.arrived:
		case <-s.conn.ended:
		case <-s.ctx.Done():
			return status.FromContextError(s.ctx.Err()).Err()
		case s.conn.reading <- struct{}{}:
			s.conn.read(s.ctx, s.in.any)
			<-s.conn.reading
		}
	}
}
