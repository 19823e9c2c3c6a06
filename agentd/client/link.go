package client

import (
	"context"
	"errors"
	"net"
	"time"

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
	dial Dial
	// turn is held (one element) while somebody looks or dials; unlike a mutex, waiting for
	// it ends with the waiter's context.
	turn    chan struct{}
	current *link
	closed  bool
}

func newChannel(dial Dial) *channel { return &channel{dial: dial, turn: make(chan struct{}, 1)} }

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
		if ch.current.conn.Err() == nil {
			return ch.current, nil
		}
		ch.current.close()
		ch.current = nil
	}
	conn, err := ch.dial(ctx)
	if err != nil {
		return nil, &ConnectionError{Dialing: true, Err: err}
	}
	fresh, err := connect(ctx, conn)
	if err != nil {
		return nil, &ConnectionError{Dialing: true, Err: err}
	}
	ch.current = fresh
	return fresh, nil
}

func (ch *channel) close() {
	ch.turn <- struct{}{}
	defer func() { <-ch.turn }()
	ch.closed = true
	if ch.current != nil {
		ch.current.close()
		ch.current = nil
	}
}

// link is one connection to the agent. It never dials again: the channel makes a new one.
type link struct {
	conn  *wire.Conn
	agent wire.AgentClient
}

// connect begins to speak on a connection, and returns once the agent has. It owns the connection; after an error it has
// closed it.
func connect(ctx context.Context, raw net.Conn) (*link, error) {
	conn, err := wire.NewConn(ctx, raw, wire.Pings{Every: pingEvery, Wait: pingWait})
	if err != nil {
		return nil, err
	}
	return &link{conn: conn, agent: wire.NewAgentClient(conn)}, nil
}

// cause prefers the connection's own error to a description of it, unless the connection only tells that this side
// closed it.
func (l *link) cause(otherwise error) error {
	if err := l.conn.Err(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return otherwise
}

func (l *link) close() { _ = l.conn.Close() } // It never fails.
