package egress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// Addresses that look public. The dialer of a world leads them to servers of this machine.
const (
	webAddress   = "93.184.215.14"
	webAddress6  = "2606:4700::1"
	emptyAddress = "93.184.215.15" // nobody answers
)

// world is a proxy on a real socket with a DNS and an Internet of the test's own.
type world struct {
	t       *testing.T
	address netip.AddrPort
	proxy   *Proxy

	mu      sync.Mutex
	names   map[string][]string // by name without its dot; "!" is a timeout
	servers map[string]string   // where connections to an address and port really go
	lookups []string
	dials   []string
	events  []Event
	usages  []Usage
	rules   *Rules
}

// newWorld starts a proxy with a policy, which serves until the test ends.
func newWorld(t *testing.T, policy Policy, limits Limits) *world {
	t.Helper()
	w := &world{
		t:     t,
		rules: mustCompile(t, policy),
		names: map[string][]string{
			"web.example": {webAddress}, "www.web.example": {webAddress}, "example.com": {webAddress},
			"dual.example": {webAddress6, webAddress}, "down.example": {emptyAddress}, "mapped.example": {"::ffff:" + webAddress}, "slow.example": {"!"},
			"rebind.example": {"127.0.0.1"}, "mixed.example": {webAddress, "10.0.0.5"}, "pod.example": {"10.244.1.1"},
			"metadata.example": {"169.254.169.254"}, "empty.example": {},
		},
		servers: map[string]string{},
	}
	proxy, err := New(Config{
		Rules:    func(netip.AddrPort) *Rules { w.mu.Lock(); defer w.mu.Unlock(); return w.rules },
		OnEvent:  func(e Event) { w.mu.Lock(); defer w.mu.Unlock(); w.events = append(w.events, e) },
		OnDone:   func(u Usage) { w.mu.Lock(); defer w.mu.Unlock(); w.usages = append(w.usages, u) },
		Resolver: w,
		Dial:     w.dial,
		Limits:   limits,
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.proxy, w.address = proxy, addrPort(listener.Addr())
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- proxy.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return w
}

func (w *world) LookupNetIP(ctx context.Context, _, name string) ([]netip.Addr, error) {
	w.mu.Lock()
	w.lookups = append(w.lookups, name)
	texts, known := w.names[strings.TrimSuffix(name, ".")]
	w.mu.Unlock()
	if !known || !strings.HasSuffix(name, ".") {
		return nil, &net.DNSError{Err: "no such host", Name: name, Server: "10.96.0.10:53", IsNotFound: true}
	}
	var addresses []netip.Addr
	for _, text := range texts {
		if text == "!" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		addresses = append(addresses, netip.MustParseAddr(text))
	}
	return addresses, nil
}

func (w *world) dial(ctx context.Context, address netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	w.dials = append(w.dials, address.String())
	target, known := w.servers[address.String()]
	w.mu.Unlock()
	if !known {
		return nil, &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}
	}
	return new(net.Dialer).DialContext(ctx, "tcp", target)
}

// route makes an address and port lead to a listener.
func (w *world) route(address string, listener net.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers[address] = listener.String()
}

// serveHTTP starts a web server at the web's address and port 80.
func (w *world) serveHTTP(handler http.HandlerFunc) {
	w.t.Helper()
	server := httptest.NewServer(handler)
	w.t.Cleanup(server.Close)
	w.route(webAddress+":80", server.Listener.Addr())
}

// serveRaw starts a server at the web's address and a port that handles each connection with a function.
func (w *world) serveRaw(port int, handle func(*net.TCPConn)) {
	w.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(patience))
				handle(conn.(*net.TCPConn))
			})
		}
	})
	w.t.Cleanup(func() { listener.Close(); serving.Wait() })
	w.route(fmt.Sprintf("%s:%d", webAddress, port), listener.Addr())
}

// connect opens a connection to the proxy.
func (w *world) connect() *net.TCPConn {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.address.String())
	if err != nil {
		w.t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(patience))
	w.t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

// ask sends bytes to the proxy and returns everything that comes back.
func (w *world) ask(request string) string {
	w.t.Helper()
	conn := w.connect()
	if _, err := io.WriteString(conn, request); err != nil {
		w.t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		w.t.Errorf("reading the answer to %.80q: %v, after %q", request, err, answer)
	}
	return string(answer)
}

// askAndEnd is ask for a client that says that nothing more will come.
func (w *world) askAndEnd(request string) string {
	w.t.Helper()
	conn := w.connect()
	io.WriteString(conn, request)
	conn.CloseWrite()
	answer, err := io.ReadAll(conn)
	if err != nil {
		w.t.Errorf("reading the answer to %.80q: %v, after %q", request, err, answer)
	}
	return string(answer)
}

// tunnel opens a tunnel by CONNECT.
func (w *world) tunnel(authority string) (*net.TCPConn, *bufio.Reader) {
	w.t.Helper()
	conn := w.connect()
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", authority, authority)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
	if err != nil || response.StatusCode != http.StatusOK {
		w.t.Fatalf("CONNECT %s: %v, %v", authority, response, err)
	}
	response.Body.Close()
	return conn, reader
}

// lastEvent returns the newest event.
func (w *world) lastEvent() Event {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) == 0 {
		w.t.Fatal("no event was told")
	}
	return w.events[len(w.events)-1]
}

func (w *world) allEvents() []Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

func (w *world) asked() (lookups, dials []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lookups), slices.Clone(w.dials)
}

// waitUsage waits until so many connections were accounted for.
func (w *world) waitUsage(count int) []Usage {
	w.t.Helper()
	var usages []Usage
	w.eventually("connections accounted for", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		usages = slices.Clone(w.usages)
		return len(usages) >= count
	})
	return usages
}

// eventually waits until a condition holds.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited %v for %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
