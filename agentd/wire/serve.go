package wire

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// maxCalls bounds the calls that run for one connection, streams among them.
	maxCalls = 256
	// silence is after what time without a word the client of a connection is taken for gone: it pings more often.
	silence = 150 * time.Second
	// maxWaiting is how many goroutines of a connection wait for calls: a new one would grow its stack first.
	maxWaiting = 2
	// sendTime bounds sending a piece of an answer to a client that does not read.
	sendTime = 20 * time.Second
)

// frameServer serves connections with the methods and the streams that are registered.
type frameServer struct {
	methods           map[string]method
	streams           map[string]stream
	unary             grpc.UnaryServerInterceptor
	streamInterceptor grpc.StreamServerInterceptor

	mu     sync.Mutex
	conns  map[*servedConn]struct{}
	closed bool
	// running counts calls; idle is closed when there are none, nil unless somebody waits.
	running int
	idle    chan struct{}
	// goroutines are those of all connections.
	goroutines sync.WaitGroup
}

type method struct {
	server  any
	handler grpc.MethodHandler
}

type stream struct {
	server any
	desc   grpc.StreamDesc
}

func newFrameServer(unary grpc.UnaryServerInterceptor, streams grpc.StreamServerInterceptor) *frameServer {
	return &frameServer{
		methods: map[string]method{}, streams: map[string]stream{}, unary: unary, streamInterceptor: streams,
		conns: map[*servedConn]struct{}{},
	}
}

// RegisterService implements grpc.ServiceRegistrar.
func (s *frameServer) RegisterService(service *grpc.ServiceDesc, server any) {
	for _, m := range service.Methods {
		s.methods["/"+service.ServiceName+"/"+m.MethodName] = method{server: server, handler: m.Handler}
	}
	for _, desc := range service.Streams {
		s.streams["/"+service.ServiceName+"/"+desc.StreamName] = stream{server: server, desc: desc}
	}
}

// serve takes a connection whose preface was read.
func (s *frameServer) serve(conn net.Conn) {
	c := &servedConn{
		server: s, conn: conn, in: frameReader{from: conn, most: headBytes + callBytes + maxMethod + maxRequestBytes},
		lead: make(chan struct{}, maxWaiting), cancels: map[uint64]context.CancelFunc{},
		streams: map[uint64]*servedStream{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.end()
		return
	}
	s.conns[c] = struct{}{}
	c.silent = time.AfterFunc(silence, c.end)
	s.goroutines.Go(c.serve)
}

// stop waits until no call runs or it is too late, then ends the connections with what still runs.
func (s *frameServer) stop(late <-chan struct{}) {
	idle := make(chan struct{})
	s.mu.Lock()
	if s.idle = idle; s.running == 0 {
		close(idle)
		s.idle = nil
	}
	s.mu.Unlock()
	select {
	case <-idle:
	case <-late:
	}
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.end()
	}
	s.mu.Unlock()
	s.goroutines.Wait()
}

func (s *frameServer) begun() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running++
}

func (s *frameServer) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if s.running == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// servedConn is one connection.
type servedConn struct {
	server *frameServer
	conn   net.Conn
	// ctx is that of every call; it ends with the connection.
	ctx    context.Context //nolint:containedctx // no function spans a connection's life
	cancel context.CancelFunc
	// silent ends a connection that says nothing any more.
	silent *time.Timer
	// in is used by one goroutine at a time.
	in frameReader

	// lead has an element when one of those that wait is to read.
	lead    chan struct{}
	sending sync.Mutex

	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc
	streams map[uint64]*servedStream
	// waiting counts goroutines that ended a call and wait to read.
	waiting int
}

// end ends the connection and what it asked for.
func (c *servedConn) end() {
	_ = c.conn.Close() // It may be closed already.
	c.cancel()         // What runs has nobody to answer any more.
}

// serve reads, does the call that it reads while another goroutine reads on, and so forth: a call need not wait for a
// goroutine to be woken.
func (c *servedConn) serve() {
	for {
		call, ok := c.read()
		if !ok {
			c.silent.Stop()
			c.end()
			c.server.mu.Lock()
			delete(c.server.conns, c)
			c.server.mu.Unlock()
			return
		}
		c.handOver()
		c.do(call)
		if !c.awaitLead() {
			return
		}
	}
}

// handOver lets another goroutine read on.
func (c *servedConn) handOver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == 0 {
		c.server.goroutines.Go(c.serve)
		return
	}
	c.waiting--
	c.lead <- struct{}{} // It has room for all that wait.
}

// awaitLead waits until it is this goroutine's turn to read; false when that will not be.
func (c *servedConn) awaitLead() bool {
	c.mu.Lock()
	enough := c.waiting == maxWaiting
	if !enough {
		c.waiting++
	}
	c.mu.Unlock()
	if enough {
		return false
	}
	select {
	case <-c.lead:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// servedCall is one call.
type servedCall struct {
	id      uint64
	method  string
	request []byte
	ctx     context.Context //nolint:containedctx // it lives as long as the call
	// stream is nil for a call of one request, which request then is.
	stream *servedStream
}

// read takes frames until one begins a call; false when there will be none.
func (c *servedConn) read() (servedCall, bool) {
	for {
		f, err := c.in.next()
		if err != nil {
			return servedCall{}, false
		}
		c.silent.Reset(silence)
		switch f.kind {
		case frameCancel:
			c.giveUp(f.call)
		case frameCall, frameStream:
			left, method, request, err := parseCall(f.body)
			if err != nil {
				return servedCall{}, false
			}
			call := servedCall{id: f.call, method: method}
			if err = c.begin(&call, left, f.kind, request); err == nil {
				return call, true
			}
			c.answer(f.call, nil, err)
		default:
			if !c.feed(f) {
				return servedCall{}, false // It does not keep to the protocol.
			}
		}
	}
}

// feed gives a frame to the stream that it is for, which may have ended. It is false for one that no client sends.
func (c *servedConn) feed(f frame) bool {
	c.mu.Lock()
	s := c.streams[f.call]
	c.mu.Unlock()
	switch f.kind {
	case frameInput:
		return s == nil || s.in.put(f.body)
	case frameInputEnd:
		if s != nil {
			s.in.finish(io.EOF)
		}
		return true
	case frameRoom:
		return s == nil || s.room.giveBack(f.body)
	}
	return false
}

func (c *servedConn) giveUp(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancel := c.cancels[id]; cancel != nil {
		cancel()
	}
}

// begin gives a call its context and its request.
func (c *servedConn) begin(call *servedCall, left time.Duration, kind byte, request []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancels[call.id] != nil {
		return status.Errorf(codes.InvalidArgument, "call %d has no answer yet", call.id)
	}
	if len(c.cancels) == maxCalls {
		return status.Errorf(codes.ResourceExhausted, "%d calls of this connection have no answer yet, and more are not taken", maxCalls)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	if left != 0 {
		cancel()
		ctx, cancel = context.WithTimeout(c.ctx, left)
	}
	call.ctx, c.cancels[call.id] = ctx, cancel
	if kind == frameStream {
		call.stream = newServedStream(ctx, c, call.id)
		call.stream.in.put(request) // It is the first.
		c.streams[call.id] = call.stream
	} else {
		call.request = bytes.Clone(request)
	}
	c.server.begun()
	return nil
}

// do runs a call and answers it.
func (c *servedConn) do(call servedCall) {
	defer c.server.ended()
	response, err := c.run(call)
	c.mu.Lock()
	c.cancels[call.id]()
	delete(c.cancels, call.id)
	delete(c.streams, call.id)
	c.mu.Unlock()
	c.answer(call.id, response, err)
}

func (c *servedConn) run(call servedCall) (proto.Message, error) {
	if call.method == "" { // a ping
		return nil, nil
	}
	if call.stream != nil {
		return nil, c.runStream(call)
	}
	m, known := c.server.methods[call.method]
	if !known {
		return nil, status.Errorf(codes.Unimplemented, "method %q is not known, or is a stream", call.method)
	}
	decode := func(into any) error {
		if err := unmarshal(call.request, into.(proto.Message)); err != nil { //nolint:forcetypeassert // generated code asks, with a message
			return status.Errorf(codes.Internal, "reading the request of %s: %v", call.method, err)
		}
		return nil
	}
	response, err := m.handler(m.server, call.ctx, decode, c.server.unary)
	if err != nil {
		return nil, err
	}
	return response.(proto.Message), nil //nolint:forcetypeassert // generated code answers, with a message
}

func (c *servedConn) runStream(call servedCall) error {
	s, known := c.server.streams[call.method]
	if !known {
		return status.Errorf(codes.Unimplemented, "stream %q is not known", call.method)
	}
	return c.server.streamInterceptor(s.server, call.stream, &grpc.StreamServerInfo{
		FullMethod: call.method, IsClientStream: s.desc.ClientStreams, IsServerStream: s.desc.ServerStreams,
	}, s.desc.Handler)
}

// answer sends an answer.
func (c *servedConn) answer(id uint64, response proto.Message, failed error) {
	var encoded []byte
	err := failed
	if err == nil {
		encoded, err = newFrame(frameResponse, id, nil, response)
	}
	if err != nil {
		encoded, err = newFrame(frameFailure, id, nil, statusOf(err))
	}
	if err != nil {
		c.end()
		return
	}
	_ = c.write(encoded) // It fails only with the connection.
}

// write sends a frame. A client that does not take it loses the connection.
func (c *servedConn) write(frame []byte) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	_, err := writePieces(c.conn, frame, func() error { return c.conn.SetWriteDeadline(time.Now().Add(sendTime)) })
	if err != nil {
		c.end()
	}
	return err
}

// statusOf is what gRPC would send for an error.
func statusOf(err error) *spb.Status {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	sent := s.Proto()
	sent.Message = strings.ToValidUTF8(sent.GetMessage(), "\uFFFD")
	return sent
}
