package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// maxHead bounds the head of a request, and the buffer of a connection.
const maxHead = 32 << 10

// client is one client's connection. It belongs to the goroutine of serve.
type client struct {
	proxy  *Proxy
	conn   *endpoint
	reader *bufio.Reader
	remote netip.AddrPort
	local  netip.AddrPort
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, maxHead) }}

func newClient(p *Proxy, conn net.Conn) *client {
	return &client{proxy: p, conn: &endpoint{Conn: conn}, remote: addrPort(conn.RemoteAddr()), local: addrPort(conn.LocalAddr())}
}

func addrPort(addr net.Addr) netip.AddrPort {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		ap := tcp.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// serve serves the client until either side is done or the context ends.
func (c *client) serve(ctx context.Context) {
	defer c.conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.conn.Close() })
	defer stop()
	defer c.recover()

	c.reader, _ = readers.Get().(*bufio.Reader)
	c.reader.Reset(c.conn)
	defer c.release()

	c.within(c.proxy.cfg.Limits.Head)
	first, err := c.reader.Peek(1)
	switch {
	case err != nil || !c.proxy.waits(c, false): // a client that asked for nothing, or too late
	case first[0] == socks5:
		c.serveSOCKS(ctx)
	case first[0] == socks4:
		c.refuseSOCKS4()
	default:
		c.serveHTTP(ctx)
	}
}

// within sets the time for what follows.
func (c *client) within(d time.Duration) {
	c.conn.SetDeadline(time.Now().Add(d)) //nolint:errcheck // reads and writes of a closed connection say the same
}

// release gives the connection's buffer back. Tunnels do it early, because they may last.
func (c *client) release() {
	if c.reader == nil {
		return
	}
	c.reader.Reset(nil)
	readers.Put(c.reader)
	c.reader = nil
}

// recover keeps an error of the proxy within one connection: the
// agent that it runs in is the first process of its pod. It is deferred by each goroutine.
func (c *client) recover() {
	if value := recover(); value != nil {
		c.tell(Event{Verdict: Failed, Reason: ReasonInternal, Message: fmt.Sprintf("the egress proxy failed: %v", value)})
	}
}

// tell completes an event and tells it.
func (c *client) tell(e Event) Event {
	e.Time, e.Client = time.Now(), c.remote
	e.Asked, e.Method = quoteAsked(e.Asked), e.Method[:min(len(e.Method), maxAsked)]
	c.proxy.cfg.OnEvent(e)
	return e
}

// refuse tells of a refusal that is no decision about a host.
func (c *client) refuse(q Query, reason Reason, message string) Event {
	return c.tell(Event{Protocol: q.Protocol, Method: q.Method, Asked: q.Host, Port: q.Port, Verdict: Refused, Reason: reason, Message: message})
}

// refuseExcess turns a client away without a goroutine of its own. Its protocol is not known yet, so it gets
// an answer that most understand.
func (c *client) refuseExcess() {
	limit := c.proxy.cfg.Limits.Connections
	e := c.refuse(Query{}, ReasonTooManyConnections, fmt.Sprintf("the proxy serves %d connections, which is all that it may", limit))
	c.within(time.Second)
	writeRefusal(c.conn, e, statusOf(e.Reason)) //nolint:errcheck // it is closed either way
	c.conn.Close()
}

// open decides about a query and connects to the host. The event says what became of it, and
// was told; the connection is nil unless it was allowed.
func (c *client) open(ctx context.Context, q Query) (net.Conn, Event) {
	rules := c.proxy.cfg.Rules(c.remote)
	d := rules.Decide(q)
	if d.Allowed && !d.Address.IsValid() {
		addresses, err := c.resolve(ctx, d.Host)
		if err != nil {
			return nil, c.tellFailure(q, d, ReasonUnresolvable, "resolving "+d.Host, err)
		}
		q.Addresses = addresses
		d = rules.Decide(q)
	}
	if !d.Allowed {
		return nil, c.tellDecision(q, d, Refused)
	}
	targets := q.Addresses
	if d.Address.IsValid() {
		targets = []netip.Addr{d.Address}
	}
	for _, target := range targets {
		if netip.AddrPortFrom(target, q.Port) == c.local {
			d.Allowed, d.Reason, d.Address = false, ReasonAddress, target
			d.Message = d.describe(q.Port) + " is not allowed: it is this proxy itself"
			return nil, c.tellDecision(q, d, Refused)
		}
	}
	conn, target, err := c.dial(ctx, targets, q.Port)
	if err != nil {
		d.Address = target
		return nil, c.tellFailure(q, d, ReasonUnreachable, "connecting to "+d.describe(q.Port), err)
	}
	d.Address = target
	return conn, c.tellDecision(q, d, Allowed)
}

func (c *client) tellDecision(q Query, d Decision, verdict Verdict) Event {
	return c.tell(Event{
		Protocol: q.Protocol, Method: q.Method, Asked: q.Host, Host: d.Host, Port: q.Port, Address: d.Address,
		Verdict: verdict, Reason: d.Reason, Rule: d.Rule, Message: d.Message,
	})
}

// tellFailure tells that an allowed host was not reached. The message has none of the
// error's own text, which names servers and addresses of the cluster.
func (c *client) tellFailure(q Query, d Decision, usual Reason, doing string, err error) Event {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		d.Reason, d.Message = ReasonConnectionRefused, doing+": the host refused the connection"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		d.Reason, d.Message = ReasonTimedOut, doing+": no answer in time"
	case usual == ReasonUnresolvable:
		d.Reason, d.Message = usual, doing+": the name has no address"
	default:
		d.Reason, d.Message = usual, doing+": the host is not reachable"
	}
	return c.tellDecision(q, d, Failed)
}

// resolve finds the addresses of a name. It is resolved as an absolute one: with the search list of
// a pod, a name such as example.com may be something of the cluster's.
func (c *client) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, c.proxy.cfg.Limits.Resolve)
	defer cancel()
	found, err := c.proxy.cfg.Resolver.LookupNetIP(ctx, "ip", name+".")
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, errors.New("the answer is empty")
	}
	addresses := make([]netip.Addr, len(found))
	for i, addr := range found {
		addresses[i] = addr.Unmap().WithZone("")
	}
	return addresses, nil
}

// dial tries addresses in their order; each gets its share of the time that is left.
func (c *client) dial(ctx context.Context, addresses []netip.Addr, port uint16) (net.Conn, netip.Addr, error) {
	deadline := time.Now().Add(c.proxy.cfg.Limits.Dial)
	var first error
	for i, addr := range addresses {
		share := time.Until(deadline) / time.Duration(len(addresses)-i)
		attempt, cancel := context.WithTimeout(ctx, share)
		conn, err := c.proxy.cfg.Dial(attempt, netip.AddrPortFrom(addr, port))
		cancel()
		if err == nil {
			return conn, addr, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, addresses[0], first
}

// drain reads what a client still sends after its answer, for a bounded time and size: closing a
// connection with unread bytes resets it, and the answer would be lost.
func (c *client) drain() {
	c.within(time.Second)
	if half, ok := c.conn.Conn.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()                                         //nolint:errcheck // it is closed either way
		io.Copy(io.Discard, io.LimitReader(c.conn.Conn, 256<<10)) //nolint:errcheck // it is closed either way
	}
}
