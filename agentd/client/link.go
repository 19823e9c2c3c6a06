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
	// maxMessageBytes bounds one answer; a ToolResult is at most a few MiB.
	maxMessageBytes = 16 << 20
	// Pings of HTTP/2 are data to everything between here and the agent, so they also keep
	// proxies from cutting a quiet connection; the shortest idle time met is 20 s to 60 s.
	pingEvery = 15 * time.Second
	pingWait  = 20 * time.Second
	// The static windows of the control channel: without them gRPC widens its windows until
	// every buffer on the way is full and an echo takes ten times as long.
	controlStreamWindow = 128 << 10
	controlConnWindow   = 256 << 10
)

func controlWindows() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithStaticStreamWindowSize(controlStreamWindow),
		grpc.WithStaticConnWindowSize(controlConnWindow),
	}
}

// channel hands out its live link and dials a new one when there is none.
type channel struct {
	dial    Dial
	options []grpc.DialOption
	// turn is held (one element) while somebody looks or dials; unlike a mutex, waiting for
	// it ends with the waiter's context.
	turn    chan struct{}
	current *link
	// retired links are no longer given out but may still carry streams.
	retired []*link
	closed  bool
}

func newChannel(dial Dial, options ...grpc.DialOption) *channel {
	return &channel{dial: dial, options: options, turn: make(chan struct{}, 1)}
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
	fresh, err := connect(ctx, ch.dial, ch.options)
	if err != nil {
		return nil, err
	}
	ch.current = fresh
	return fresh, nil
}

// retire closes what is broken and keeps what may still carry streams, as after the
// agent announced that it takes no new ones.
func (ch *channel) retire() {
	kept := ch.retired[:0]
	for _, old := range append(ch.retired, ch.current) {
		if old.conn.broken() != nil {
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

// link is gRPC over one net.Conn. It never dials again: the channel makes a new one.
type link struct {
	grpc  *grpc.ClientConn
	conn  *watchedConn
	agent wire.AgentClient
}

// connect dials and waits until the agent has spoken.
func connect(ctx context.Context, dial Dial, options []grpc.DialOption) (*link, error) {
	raw, err := dial(ctx)
	if err != nil {
		return nil, &ConnectionError{Dialing: true, Err: err}
	}
	l := &link{conn: &watchedConn{Conn: raw}}
	var taken atomic.Bool
	l.grpc, err = grpc.NewClient("passthrough:///agentd", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if !taken.CompareAndSwap(false, true) {
				return nil, l.cause(io.ErrUnexpectedEOF)
			}
			return l.conn, nil
		}),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingWait}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
	}, options...)...)
	if err != nil {
		_ = raw.Close()
		return nil, &ConnectionError{Dialing: true, Err: err}
	}
	if err := l.awaitReady(ctx); err != nil {
		l.close()
		return nil, &ConnectionError{Dialing: true, Err: err}
	}
	l.agent = wire.NewAgentClient(l.grpc)
	return l, nil
}

func (l *link) awaitReady(ctx context.Context) error {
	l.grpc.Connect()
	for {
		state := l.grpc.GetState()
		if state == connectivity.Ready {
			return nil
		}
		if state == connectivity.TransientFailure || state == connectivity.Shutdown {
			return l.cause(errors.New("it did not speak the agent's protocol"))
		}
		if !l.grpc.WaitForStateChange(ctx, state) {
			// What the connection says, if it says anything, tells more than a timeout.
			return l.cause(context.Cause(ctx))
		}
	}
}

func (l *link) live() bool {
	return l.conn.broken() == nil && l.grpc.GetState() == connectivity.Ready
}

// cause prefers the connection's own error to gRPC's description of it, unless the
// connection only tells that this side closed it.
func (l *link) cause(otherwise error) error {
	if err := l.conn.broken(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return otherwise
}

func (l *link) close() {
	_ = l.grpc.Close()
	// gRPC closes only a connection that it took.
	_ = l.conn.Close()
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
