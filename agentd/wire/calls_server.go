package wire

import (
	"context"
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
	// maxCalls bounds the calls that run for one connection.
	maxCalls = 256
	// silence is after what time without a word the client of a connection is taken for gone: it pings more often.
	silence = 150 * time.Second
	// maxWaiting is how many goroutines of a connection wait for calls: a new one would grow its stack first.
	maxWaiting = 2
	// sendTime bounds sending a piece of an answer to a client that does not read.
	sendTime = 20 * time.Second
)

// callServer serves connections for calls with the methods that are registered.
type callServer struct {
	methods     map[string]method
	interceptor grpc.UnaryServerInterceptor

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

func newCallServer(interceptor grpc.UnaryServerInterceptor) *callServer {
	return &callServer{methods: map[string]method{}, interceptor: interceptor, conns: map[*servedConn]struct{}{}}
}

// RegisterService implements grpc.ServiceRegistrar. Streams are left to gRPC.
func (s *callServer) RegisterService(service *grpc.ServiceDesc, server any) {
	for _, m := range service.Methods {
		s.methods["/"+service.ServiceName+"/"+m.MethodName] = method{server: server, handler: m.Handler}
	}
}

// serve takes a connection whose preface was read.
func (s *callServer) serve(conn net.Conn) {
	c := &servedConn{
		server: s, conn: conn, in: frameReader{from: conn, most: maxRequestBytes + frameExtra},
		lead: make(chan struct{}, maxWaiting), cancels: map[uint64]context.CancelFunc{},
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
func (s *callServer) stop(late <-chan time.Time) {
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

func (s *callServer) begun() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running++
}

func (s *callServer) ended() {
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
	server *callServer
	conn   net.Conn
	// ctx is that of every call; it ends with the connection, whose life no function spans.
	ctx    context.Context //nolint:containedctx // as said
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
	// waiting counts goroutines that ended a call and wait to read.
	waiting int
}

// end ends the connection and what it asked for.
func (c *servedConn) end() {
	c.cancel()
	_ = c.conn.Close() // It may be closed already.
}

// serve reads, does the call that it reads while another goroutine reads on, and so forth: a call need not wait for a
// goroutine to be woken.
func (c *servedConn) serve() {
	for {
		ctx, call := c.read()
		if call == nil {
			c.silent.Stop()
			c.end()
			c.server.mu.Lock()
			delete(c.server.conns, c)
			c.server.mu.Unlock()
			return
		}
		c.handOver()
		c.do(ctx, call)
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

// read answers frames until one begins a call; nil when there will be none.
func (c *servedConn) read() (context.Context, *Call) {
	for {
		call := c.next()
		switch {
		case call == nil:
			return nil, nil
		case call.GetCancel():
			c.mu.Lock()
			if cancel := c.cancels[call.GetId()]; cancel != nil {
				cancel()
			}
			c.mu.Unlock()
		default:
			ctx, err := c.begin(call)
			if err == nil {
				return ctx, call
			}
			c.answer(call.GetId(), nil, err)
		}
	}
}

// next reads the next frame; nil when there will be none, or the client does not keep to the protocol.
func (c *servedConn) next() *Call {
	frame, err := c.in.next()
	if err != nil {
		return nil
	}
	c.silent.Reset(silence)
	var call Call
	if proto.Unmarshal(frame, &call) != nil {
		return nil
	}
	return &call
}

// begin makes the context of a call.
func (c *servedConn) begin(call *Call) (context.Context, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancels[call.GetId()] != nil {
		return nil, status.Errorf(codes.InvalidArgument, "id: %d names a call that has no answer yet", call.GetId())
	}
	if len(c.cancels) == maxCalls {
		return nil, status.Errorf(codes.ResourceExhausted, "%d calls of this connection have no answer yet, and more are not taken", maxCalls)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	if left := call.GetTimeLeft(); left != nil {
		cancel()
		ctx, cancel = context.WithTimeout(c.ctx, left.AsDuration())
	}
	c.cancels[call.GetId()] = cancel
	c.server.begun()
	return ctx, nil
}

// do runs a call and answers it.
func (c *servedConn) do(ctx context.Context, call *Call) {
	defer c.server.ended()
	response, err := c.run(ctx, call)
	id := call.GetId()
	c.mu.Lock()
	c.cancels[id]()
	delete(c.cancels, id)
	c.mu.Unlock()
	c.answer(id, response, err)
}

func (c *servedConn) run(ctx context.Context, call *Call) ([]byte, error) {
	m, known := c.server.methods[call.GetMethod()]
	if call.GetMethod() == "" { // a ping
		return nil, nil
	}
	if !known {
		return nil, status.Errorf(codes.Unimplemented, "method %q is not known, or is one of streams", call.GetMethod())
	}
	decode := func(into any) error {
		if err := proto.Unmarshal(call.GetRequest(), into.(proto.Message)); err != nil { //nolint:forcetypeassert // generated code asks
			return status.Errorf(codes.Internal, "reading the request of %s: %v", call.GetMethod(), err)
		}
		return nil
	}
	result, err := m.handler(m.server, ctx, decode, c.server.interceptor)
	if err != nil {
		return nil, err
	}
	response, err := proto.Marshal(result.(proto.Message)) //nolint:forcetypeassert // generated code answers
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encoding the response of %s: %v", call.GetMethod(), err)
	}
	if len(response) > MaxResponseBytes {
		return nil, status.Errorf(codes.ResourceExhausted, "the response of %s has %d bytes, and at most %d are sent", call.GetMethod(), len(response), MaxResponseBytes)
	}
	return response, nil
}

// answer sends an answer. A client that does not take it loses the connection.
func (c *servedConn) answer(id uint64, response []byte, failed error) {
	answer := &CallAnswer{Id: id, Outcome: &CallAnswer_Response{Response: response}}
	if failed != nil {
		answer.Outcome = &CallAnswer_Failure{Failure: failureOf(failed)}
	}
	frame, err := encodeFrame(answer)
	c.sending.Lock()
	defer c.sending.Unlock()
	if err == nil {
		_, err = writePieces(c.conn, frame, func() error { return c.conn.SetWriteDeadline(time.Now().Add(sendTime)) })
	}
	if err != nil {
		c.end()
	}
}

// failureOf is what gRPC would send for an error.
func failureOf(err error) *CallFailure {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	return &CallFailure{Code: int32(s.Code()), Message: strings.ToValidUTF8(s.Message(), "\uFFFD"), Details: s.Proto().GetDetails()}
}

// err is what the failure was made of.
func (f *CallFailure) err() error {
	return status.ErrorProto(&spb.Status{Code: f.GetCode(), Message: f.GetMessage(), Details: f.GetDetails()})
}
