package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// ErrClosed is returned by Serve after Close.
var ErrClosed = errors.New("the egress proxy is closed")

// Resolver finds the addresses of a name; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Config says how a proxy decides, tells and connects. Only Rules is required.
type Config struct {
	// Rules returns the rules that hold for a client, by its end of the connection, at this moment. It is asked
	// for every request, so that a new policy holds for the next one. Nil rules allow nothing.
	Rules func(client netip.AddrPort) *Rules
	// OnEvent is told each decision, before the client gets the answer. It is called
	// from the goroutines of connections, and these wait for it.
	OnEvent func(Event)
	// OnDone is told what an allowed connection carried, when it ended.
	OnDone func(Usage)
	// Resolver finds the addresses of names, which it gets with a trailing dot. Nil is the system's.
	Resolver Resolver
	// Dial connects to an address. Nil is TCP. A connection that has a method CloseWrite can
	// be closed in one direction.
	Dial func(ctx context.Context, address netip.AddrPort) (net.Conn, error)
	// Limits bound what clients and servers can take.
	Limits Limits
}

// Limits bound what clients and servers can take; a field that is 0 has the value in brackets.
// A connection takes at most some 128 KiB of memory.
type Limits struct {
	// Connections is how many clients are served at once; the next is refused [256].
	Connections int
	// Head is the time to send the head of a request, and to begin one [30 s].
	Head time.Duration
	// KeepAlive is the time between two requests on a connection [60 s].
	KeepAlive time.Duration
	// Resolve is the time to find the addresses of a name [10 s].
	Resolve time.Duration
	// Dial is the time to connect to all addresses of a host [20 s].
	Dial time.Duration
	// Idle is the time in which no byte passes in either direction before a connection is closed [10 min].
	Idle time.Duration
}

func (l Limits) withDefaults() Limits {
	if l.Connections == 0 {
		l.Connections = 256
	}
	for _, field := range []struct {
		value *time.Duration
		usual time.Duration
	}{
		{&l.Head, 30 * time.Second},
		{&l.KeepAlive, time.Minute},
		{&l.Resolve, 10 * time.Second},
		{&l.Dial, 20 * time.Second},
		{&l.Idle, 10 * time.Minute},
	} {
		if *field.value == 0 {
			*field.value = field.usual
		}
	}
	return l
}

// Proxy serves clients on listeners.
type Proxy struct {
	cfg    Config
	serves sync.WaitGroup // one for each Serve

	mu      sync.Mutex
	closed  bool
	serving map[net.Listener]context.CancelFunc // what breaks the connections of each
	clients map[*client]bool                    // whether it waits for a request
}

// New checks a configuration. It starts nothing.
func New(cfg Config) (*Proxy, error) {
	if cfg.Rules == nil {
		return nil, errors.New("the egress proxy has no Rules")
	}
	l := cfg.Limits
	if l.Connections < 0 || min(l.Head, l.KeepAlive, l.Resolve, l.Dial, l.Idle) < 0 {
		return nil, fmt.Errorf("the egress proxy's limits %+v: none may be negative", l)
	}
	cfg.Limits = l.withDefaults()
	if cfg.OnEvent == nil {
		cfg.OnEvent = func(Event) {}
	}
	if cfg.OnDone == nil {
		cfg.OnDone = func(Usage) {}
	}
	if cfg.Resolver == nil {
		cfg.Resolver = &net.Resolver{PreferGo: true}
	}
	if cfg.Dial == nil {
		cfg.Dial = dialTCP
	}
	return &Proxy{cfg: cfg, serving: make(map[net.Listener]context.CancelFunc), clients: make(map[*client]bool)}, nil
}

// dialTCP takes an address and not a text, so that nothing can resolve it once more.
func dialTCP(ctx context.Context, address netip.AddrPort) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, address)
}

// Serve accepts clients until the context ends, which breaks their connections, or Close is called. It
// closes the listener, and returns after the last connection ended: nil, ErrClosed if the proxy was closed
// before, or why the listener stopped accepting.
func (p *Proxy) Serve(ctx context.Context, listener net.Listener) error {
	ctx, breakAll := context.WithCancel(ctx)
	defer breakAll()
	if !p.enter(listener, breakAll) {
		listener.Close()
		return ErrClosed
	}
	defer p.leave(listener)
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()

	var connections sync.WaitGroup
	defer connections.Wait()
	for {
		conn, err := listener.Accept()
		switch {
		case err == nil:
			p.accept(ctx, conn, &connections)
		case ctx.Err() != nil || p.isClosed():
			return nil
		case isTemporary(err):
			// Descriptors are short, or the client is gone again. Others may end meanwhile.
			if !wait(ctx, 50*time.Millisecond) {
				return nil
			}
		default:
			breakAll()
			return fmt.Errorf("accepting clients of the egress proxy: %w", err)
		}
	}
}

// Close stops accepting, lets requests and tunnels end until the context does, and then breaks them. It returns when
// every Serve has let go of its last connection.
func (p *Proxy) Close(ctx context.Context) {
	p.mu.Lock()
	p.closed = true
	for listener := range p.serving {
		listener.Close()
	}
	for c, waits := range p.clients {
		if waits {
			c.conn.Close()
		}
	}
	p.mu.Unlock()

	ended := make(chan struct{})
	go func() { // ends with the last Serve, for which Close waits in any case
		defer close(ended)
		p.serves.Wait()
	}()
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	p.mu.Lock()
	for _, breakAll := range p.serving {
		breakAll()
	}
	p.mu.Unlock()
	<-ended
}

func (p *Proxy) enter(listener net.Listener, breakAll context.CancelFunc) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.serves.Add(1)
	p.serving[listener] = breakAll
	return true
}

func (p *Proxy) leave(listener net.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.serving, listener)
	listener.Close()
	p.serves.Done()
}

func (p *Proxy) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// accept serves a client, or refuses it when there are too many.
func (p *Proxy) accept(ctx context.Context, conn net.Conn, connections *sync.WaitGroup) {
	c := newClient(p, conn)
	p.mu.Lock()
	full := len(p.clients) >= p.cfg.Limits.Connections
	if !full {
		p.clients[c] = true
	}
	p.mu.Unlock()
	if full {
		c.refuseExcess()
		return
	}
	connections.Go(func() {
		defer p.forget(c)
		c.serve(ctx)
	})
}

func (p *Proxy) forget(c *client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.clients, c)
}

// waits records whether a client waits for a request. It tells whether the client may go on.
func (p *Proxy) waits(c *client, waits bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients[c] = waits
	return !p.closed
}

func isTemporary(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// wait tells whether the time passed before the context ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
