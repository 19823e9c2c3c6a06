package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"execsession.dev/agentd/wire"
)

const (
	// Pings are data to everything between here and the agent, so they also keep
	// proxies from cutting a quiet connection; the shortest idle time met is 20 s to 60 s.
	pingEvery = 15 * time.Second
	pingWait  = 20 * time.Second
)

// channel hands out its live link and dials a new one when there is none.
type channel struct {
	dial    Dial
	connect connect
	// turn is held (one element) while somebody looks or dials; unlike a mutex, waiting for
	// it ends with the waiter's context.
	turn    chan struct{}
	current *link
	// retired links are no longer given out but may still carry streams.
	retired []*link
	closed  bool
}

func newChannel(dial Dial, connect connect) *channel {
	return &channel{dial: dial, connect: connect, turn: make(chan struct{}, 1)}
}

func (ch *channel) link(ctx context.Context) (*link, error) {
	select {
	case ch.turn <- struct{}{}:
		defer func() { <-ch.turn }()
	case <-ctx.Done():
		return nil, &ConnectionError{Dialing: true, Err: context.Cause(ctx)}
	}
	if ch.closed {
		return nil, &ConnectionError{Dialing: true, Err: Permanent(net.ErrClosed)}
	}
	if ch.current != nil {
		if ch.current.live() {
			return ch.current, nil
		}
		ch.retire()
	}
	conn, err := ch.dial(ctx)
	if err != nil {
		return nil, &ConnectionError{Dialing: true, Err: err}
	}
	fresh, err := ch.connect(ctx, conn)
	if err != nil {
		return nil, &ConnectionError{Dialing: true, Err: err}
	}
	ch.current = fresh
	return fresh, nil
}

// retire closes what is broken and keeps what may still carry streams, as after the
// agent announced that it takes no new ones.
func (ch *channel) retire() {
	kept := ch.retired[:0]
	for _, old := range append(ch.retired, ch.current) {
		if old.broken() != nil {
			old.close()
			continue
		}
		kept = append(kept, old)
	}
	ch.retired, ch.current = kept, nil
}

func (ch *channel) close() {
	ch.turn <- struct{}{}
	defer func() { <-ch.turn }()
	ch.closed = true
	for _, old := range ch.retired {
		old.close()
	}
	if ch.current != nil {
		ch.current.close()
	}
	ch.retired, ch.current = nil, nil
}

// connect begins to speak on a connection, and returns once the agent has. It owns the connection; after an error it has
// closed it.
type connect func(ctx context.Context, conn net.Conn) (*link, error)

// link is one connection to the agent. It never dials again: the channel makes a new one.
type link struct {
	carrier
	agent wire.AgentClient
}

// carrier is what a link goes by.
type carrier interface {
	// live is whether it takes new calls; broken is the error that ended the connection, or nil.
	live() bool
	broken() error
	close()
}

// cause prefers the connection's own error to a description of it, unless the connection only tells that this side
// closed it.
func (l *link) cause(otherwise error) error {
	if err := l.broken(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return otherwise
}

// calls is a carrier of calls of one request and one response.
type calls struct{ conn *wire.CallConn }

func connectCalls(ctx context.Context, raw net.Conn) (*link, error) {
	conn, err := wire.NewCallConn(ctx, raw, wire.Pings{Every: pingEvery, Wait: pingWait})
	if err != nil {
		return nil, err
	}
	return &link{carrier: calls{conn}, agent: wire.NewAgentClient(conn)}, nil
}

func (c calls) live() bool    { return c.broken() == nil }
func (c calls) broken() error { return c.conn.Err() }
func (c calls) close()        { _ = c.conn.Close() } // It never fails.

// streams is gRPC over one net.Conn, a carrier of everything.
type streams struct {
	grpc *grpc.ClientConn
	conn *watchedConn
}

// connectStreams makes links with options of gRPC.
func connectStreams(options ...grpc.DialOption) connect {
	return func(ctx context.Context, raw net.Conn) (*link, error) {
		s := &streams{conn: &watchedConn{Conn: raw}}
		l := &link{carrier: s}
		var taken atomic.Bool
		var err error
		s.grpc, err = grpc.NewClient("passthrough:///agentd", append([]grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
				if !taken.CompareAndSwap(false, true) {
					return nil, l.cause(io.ErrUnexpectedEOF)
				}
				return s.conn, nil
			}),
			grpc.WithIdleTimeout(0),
			grpc.WithDisableServiceConfig(),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingWait}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MaxResponseBytes)),
		}, options...)...)
		if err != nil {
			return nil, errors.Join(err, raw.Close())
		}
		if err := s.awaitReady(ctx); err != nil {
			err = l.cause(err)
			s.close()
			return nil, err
		}
		l.agent = wire.NewAgentClient(s.grpc)
		return l, nil
	}
}

func (s *streams) awaitReady(ctx context.Context) error {
	s.grpc.Connect()
	for {
		state := s.grpc.GetState()
		if state == connectivity.Ready {
			return nil
		}
		if state == connectivity.TransientFailure || state == connectivity.Shutdown {
			return errors.New("it did not speak the agent's protocol")
		}
		if !s.grpc.WaitForStateChange(ctx, state) {
			// What the connection says, if it says anything, tells more than a timeout.
			return context.Cause(ctx)
		}
	}
}

func (s *streams) live() bool {
	return s.broken() == nil && s.grpc.GetState() == connectivity.Ready
}

func (s *streams) broken() error { return s.conn.broken() }

func (s *streams) close() {
	_ = s.grpc.Close()
	// gRPC closes only a connection that it took.
	_ = s.conn.Close()
}

// watchedConn remembers the first error of its connection, which gRPC would flatten into
// the text of a status.
type watchedConn struct {
	net.Conn

	mu  sync.Mutex
	err error
	// final is true when err is to stay: reading failed, or this side closed.
	final bool
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		c.noteRead(errors.New("the other end closed it"))
	} else if err != nil {
		c.noteRead(fmt.Errorf("reading: %w", err))
	}
	return n, err
}

// noteRead overrides an error of writing: only reading tells why the other end is gone.
func (c *watchedConn) noteRead(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil || !c.final {
		c.err = err
	}
	c.final = true
}

func (c *watchedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.err == nil {
			c.err = fmt.Errorf("writing: %w", err)
		}
	}
	return n, err
}

func (c *watchedConn) Close() error {
	c.mu.Lock()
	if c.err == nil {
		c.err, c.final = net.ErrClosed, true
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// broken gives the error that ended the connection, or nil while it lives.
func (c *watchedConn) broken() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
