package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"
)

// newClient is a web client that uses the proxy by a URL with a scheme, and trusts a server.
func (w *world) newClient(scheme string, server *httptest.Server) *http.Client {
	w.t.Helper()
	transport := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: scheme, Host: w.address.String()})}
	if server != nil {
		pool := x509.NewCertPool()
		pool.AddCert(server.Certificate())
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

func (w *world) get(client *http.Client, address string) string {
	w.t.Helper()
	response, err := client.Get(address)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(body)
}

// TestTLSServer reaches a real TLS server by both kinds of tunnel, as the standard library's client does it.
func TestTLSServer(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "%s %s at %s", r.Method, r.URL.Path, r.Host)
	}))
	defer server.Close()
	for scheme, protocol := range map[string]Protocol{"http": ProtocolConnect, "socks5h": ProtocolSOCKS, "socks5": ProtocolSOCKS} {
		t.Run(scheme, func(t *testing.T) {
			w := newWorld(t, Policy{AllowedDomains: []string{"example.com"}}, Limits{})
			w.route(webAddress+":443", server.Listener.Addr())
			client := w.newClient(scheme, server)
			if got := w.get(client, "https://example.com/path"); got != "GET /path at example.com" {
				t.Errorf("answer %q", got)
			}
			e := w.lastEvent()
			if e.Verdict != Allowed || e.Reason != ReasonAllowed || e.Protocol != protocol || e.Asked != "example.com" || e.Host != "example.com" ||
				e.Port != 443 || e.Address.String() != webAddress || e.Rule == "" || !e.Client.IsValid() || e.Time.IsZero() {
				t.Errorf("event %+v", e)
			}
			client.CloseIdleConnections()
			u := w.waitUsage(1)[0]
			if u.Sent < 100 || u.Received < 1000 || u.Event.Host != "example.com" || u.Duration <= 0 {
				t.Errorf("usage %+v, want the bytes of a TLS handshake at least", u)
			}
			if lookups, _ := w.asked(); len(lookups) != 1 || lookups[0] != "example.com." {
				t.Errorf("lookups %q, want one of the absolute name", lookups)
			}
		})
	}
}

// TestRealDialer uses the proxy's own dialer, with loopback listed.
func TestRealDialer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.Host) }))
	defer server.Close()
	w := newWorld(t, Policy{AllowedDomains: []string{"127.0.0.1"}}, Limits{})
	w.proxy.cfg.Dial = dialTCP
	port := addrPort(server.Listener.Addr()).Port()
	client := w.newClient("http", nil)
	for _, host := range []string{"127.0.0.1", "2130706433", "[::ffff:127.0.0.1]"} {
		if got, want := w.get(client, fmt.Sprintf("http://%s:%d/", host, port)), fmt.Sprintf("127.0.0.1:%d", port); got != want {
			t.Errorf("%s: the server saw %q, want %q", host, got, want)
		}
	}
	if got, want := (host{addr: netip.MustParseAddr("2001:db8::1")}).authority(8080, httpPort), "[2001:db8::1]:8080"; got != want {
		t.Errorf("a Host header for IPv6 is %q, want %q", got, want)
	}
	// Nobody listens at port 1 of a test machine; what refuses is the kernel.
	answer := w.ask("CONNECT 127.0.0.1:1 HTTP/1.0\r\n\r\n")
	if e := w.lastEvent(); !strings.HasPrefix(answer, "HTTP/1.1 502 ") || e.Verdict != Failed || e.Reason != ReasonConnectionRefused {
		t.Errorf("answer %q, event %+v", answer, e)
	}
}

// refusals are asked by every protocol.
var refusals = map[string]struct {
	host    string
	port    int // 443 if 0
	reason  Reason
	verdict Verdict // Refused if empty
	status  int     // 403 if 0
	socks   byte    // 2 if 0
}{
	"denied name":           {host: "secret.web.example", reason: ReasonDenied},
	"name not listed":       {host: "evil.example", reason: ReasonNotAllowed},
	"port not listed":       {host: "port.example", port: 22, reason: ReasonNotAllowed},
	"the server's address":  {host: webAddress, reason: ReasonNotAllowed},
	"metadata":              {host: "169.254.169.254", port: 80, reason: ReasonAddress},
	"metadata, decimal":     {host: "2852039166", port: 80, reason: ReasonAddress},
	"metadata, octal":       {host: "0251.0376.0251.0376", port: 80, reason: ReasonAddress},
	"metadata, hexadecimal": {host: "0xa9fea9fe", port: 80, reason: ReasonAddress},
	"metadata, mapped":      {host: "[::ffff:169.254.169.254]", port: 80, reason: ReasonAddress},
	"metadata, translated":  {host: "[64:ff9b::a9fe:a9fe]", port: 80, reason: ReasonAddress},
	"metadata, IPv6":        {host: "[fd00:ec2::254]", port: 80, reason: ReasonAddress},
	"loopback, short":       {host: "127.1", reason: ReasonAddress},
	"loopback, circled":     {host: "\u2460\u2461\u2466.0.0.1", reason: ReasonAddress},
	"this host":             {host: "0.0.0.0", reason: ReasonAddress},
	"API server":            {host: "10.96.0.1", reason: ReasonAddress},
	"resolves to loopback":  {host: "rebind.example", reason: ReasonAddress},
	"resolves to metadata":  {host: "metadata.example", reason: ReasonAddress},
	"resolves to a pod":     {host: "pod.example", reason: ReasonAddress},
	"resolves to both":      {host: "mixed.example", reason: ReasonAddress},
	"malformed address":     {host: "1.2.3.4.5", reason: ReasonInvalidHost},
	"no punycode":           {host: "xn--a.example", reason: ReasonInvalidHost},
	"no such name":          {host: "missing.example", reason: ReasonUnresolvable, verdict: Failed, status: 502, socks: 4},
	"no address":            {host: "empty.example", reason: ReasonUnresolvable, verdict: Failed, status: 502, socks: 4},
	"DNS does not answer":   {host: "slow.example", reason: ReasonTimedOut, verdict: Failed, status: 504, socks: 6},
	"nobody there":          {host: "down.example", reason: ReasonUnreachable, verdict: Failed, status: 502, socks: 4},
}

func TestRefusals(t *testing.T) {
	w := newWorld(t, Policy{
		AllowedDomains: []string{
			"**.web.example", "port.example:443", "rebind.example", "metadata.example", "pod.example", "mixed.example",
			"missing.example", "empty.example", "slow.example", "down.example",
		},
		DeniedDomains: []string{"secret.web.example"},
	}, Limits{Resolve: 50 * time.Millisecond})
	for name, c := range refusals {
		t.Run(name, func(t *testing.T) {
			w.t = t
			if c.port == 0 {
				c.port = 443
			}
			if c.status == 0 {
				c.status = http.StatusForbidden
			}
			if c.socks == 0 {
				c.socks = 2
			}
			if c.verdict == "" {
				c.verdict = Refused
			}
			authority := fmt.Sprintf("%s:%d", c.host, c.port)
			for protocol, request := range map[Protocol]string{
				ProtocolConnect: fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", authority, authority),
				ProtocolHTTP:    fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", authority, authority),
			} {
				before := len(w.allEvents())
				answer := w.ask(request)
				for _, part := range []string{
					fmt.Sprintf("HTTP/1.1 %d ", c.status), fmt.Sprintf(" (%s)\r\n", c.reason), fmt.Sprintf("\r\nX-Execsession-Reason: %s\r\n", c.reason),
					"\r\nProxy-Status: execsession; error=", "\r\n\r\nexecsession",
				} {
					if !strings.Contains(answer, part) {
						t.Errorf("%s: answer %q, want %q in it", protocol, answer, part)
					}
				}
				w.checkEvent(before, protocol, c.host, c.port, c.verdict, c.reason)
			}
			bare := strings.Trim(c.host, "[]")
			before := len(w.allEvents())
			answer := w.ask("\x05\x01\x00" + "\x05\x01\x00\x03" + string(rune(len(bare))) + bare + string([]byte{byte(c.port >> 8), byte(c.port)}))
			if want := "\x05\x00" + "\x05" + string(rune(c.socks)) + "\x00\x01\x00\x00\x00\x00\x00\x00"; answer != want {
				t.Errorf("SOCKS5: answer %q, want %q", answer, want)
			}
			w.checkEvent(before, ProtocolSOCKS, bare, c.port, c.verdict, c.reason)
		})
	}
	lookups, dials := w.asked()
	for _, name := range lookups {
		if strings.Contains(name, "secret") || strings.Contains(name, "evil") || strings.Contains(name, "port.example") {
			t.Errorf("%s was resolved although it is refused", name)
		}
	}
	for _, address := range dials {
		if address != emptyAddress+":443" {
			t.Errorf("%s was dialled", address)
		}
	}
}

// checkEvent checks the one event that a refusal is told as.
func (w *world) checkEvent(before int, protocol Protocol, asked string, port int, verdict Verdict, reason Reason) {
	w.t.Helper()
	events := w.allEvents()[before:]
	if len(events) != 1 {
		w.t.Fatalf("%s: %d events %+v, want one", protocol, len(events), events)
	}
	e := events[0]
	if e.Protocol != protocol || e.Asked != asked || int(e.Port) != port || e.Verdict != verdict || e.Reason != reason || e.Message == "" || e.Client.Addr().String() != "127.0.0.1" {
		w.t.Errorf("%s: event %+v, want asked %q, port %d, %s, %s", protocol, e, asked, port, verdict, reason)
	}
	if strings.Contains(e.Message, "10.96.0.10") {
		w.t.Errorf("%s: the message %q names the DNS server", protocol, e.Message)
	}
}

// TestPolicyChanges sees the rules of the moment used.
func TestPolicyChanges(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
	w.serveHTTP(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "here") })
	const request = "GET http://web.example/ HTTP/1.0\r\n\r\n"
	if answer := w.ask(request); !strings.HasSuffix(answer, "here") {
		t.Errorf("answer %q", answer)
	}
	w.mu.Lock()
	w.rules = mustCompile(t, Policy{AllowedDomains: []string{"other.example"}})
	w.mu.Unlock()
	if answer := w.ask(request); !strings.Contains(answer, string(ReasonNotAllowed)) {
		t.Errorf("answer %q", answer)
	}
	w.mu.Lock()
	w.rules = nil
	w.mu.Unlock()
	if answer := w.ask(request); !strings.Contains(answer, string(ReasonNoPolicy)) {
		t.Errorf("answer %q", answer)
	}
}

// TestItself asks the proxy to connect to itself.
func TestItself(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"127.0.0.1"}}, Limits{})
	answer := w.ask(fmt.Sprintf("CONNECT %s HTTP/1.0\r\n\r\n", w.address))
	if e := w.lastEvent(); !strings.Contains(answer, "this proxy itself") || e.Reason != ReasonAddress || e.Verdict != Refused {
		t.Errorf("answer %q, event %+v", answer, e)
	}
}

// TestMappedAddresses dials the IPv4 address that a resolver returns inside of an IPv6 one, as it was decided about.
func TestMappedAddresses(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"mapped.example"}}, Limits{})
	w.serveHTTP(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "here") })
	if answer := w.ask("GET http://mapped.example/ HTTP/1.0\r\n\r\n"); !strings.HasSuffix(answer, "here") {
		t.Errorf("answer %q", answer)
	}
	if e := w.lastEvent(); e.Address.String() != webAddress {
		t.Errorf("event %+v", e)
	}
}

// TestAddressesAreTriedInOrder reaches the second address of a name, and no other one.
func TestAddressesAreTriedInOrder(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"dual.example"}}, Limits{})
	w.serveHTTP(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "here") })
	if answer := w.ask("GET http://dual.example/ HTTP/1.0\r\n\r\n"); !strings.HasSuffix(answer, "here") {
		t.Errorf("answer %q", answer)
	}
	if _, dials := w.asked(); strings.Join(dials, " ") != "[2606:4700::1]:80 93.184.215.14:80" {
		t.Errorf("dials %q", dials)
	}
	if e := w.lastEvent(); e.Address.String() != webAddress || e.Verdict != Allowed {
		t.Errorf("event %+v", e)
	}
}

func TestNewChecksItsConfig(t *testing.T) {
	rules := func(netip.AddrPort) *Rules { return nil }
	for name, cfg := range map[string]Config{
		"no rules":          {},
		"negative number":   {Rules: rules, Limits: Limits{Connections: -1}},
		"negative duration": {Rules: rules, Limits: Limits{Idle: -time.Second}},
	} {
		if proxy, err := New(cfg); err == nil {
			t.Errorf("%s: New = %v, want an error", name, proxy)
		}
	}
	if _, err := New(Config{Rules: rules}); err != nil {
		t.Errorf("New with rules alone: %v", err)
	}
}

// brokenListener fails at once.
type brokenListener struct{ net.Listener }

var errBroken = errors.New("broken")

func (brokenListener) Accept() (net.Conn, error) { return nil, errBroken }

// shortListener has no descriptor for its first clients.
type shortListener struct {
	net.Listener
	short int
}

func (l *shortListener) Accept() (net.Conn, error) {
	if l.short > 0 {
		l.short--
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// TestServeWaitsForDescriptors goes on when descriptors are free again.
func TestServeWaitsForDescriptors(t *testing.T) {
	proxy, err := New(Config{Rules: func(netip.AddrPort) *Rules { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- proxy.Serve(context.Background(), &shortListener{Listener: listener, short: 2}) }()
	w := &world{t: t, address: addrPort(listener.Addr())}
	if got := w.ask("CONNECT example.com:443 HTTP/1.0\r\n\r\n"); !strings.Contains(got, string(ReasonNoPolicy)) {
		t.Errorf("answer %q", got)
	}
	proxy.Close(t.Context())
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

func TestServeReturnsTheListenersError(t *testing.T) {
	proxy, err := New(Config{Rules: func(netip.AddrPort) *Rules { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := proxy.Serve(context.Background(), brokenListener{listener}); !errors.Is(err, errBroken) {
		t.Errorf("Serve: %v, want %v", err, errBroken)
	}
	proxy.Close(context.Background())
	if err := proxy.Serve(context.Background(), listener); !errors.Is(err, ErrClosed) {
		t.Errorf("Serve after Close: %v, want %v", err, ErrClosed)
	}
}
