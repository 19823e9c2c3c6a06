package egress

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// scripted is a connection whose peer sends given bytes and closes its direction.
type scripted struct {
	input  *bytes.Reader
	mu     sync.Mutex
	output bytes.Buffer
	closed bool
}

var errScriptClosed = errors.New("use of a closed connection")

func (s *scripted) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, errScriptClosed
	}
	return s.input.Read(p)
}

func (s *scripted) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, errScriptClosed
	}
	return s.output.Write(p)
}

func (s *scripted) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

func (s *scripted) written() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.String()
}

func (*scripted) CloseWrite() error                { return nil }
func (*scripted) LocalAddr() net.Addr              { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 3128} }
func (*scripted) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 40000} }
func (*scripted) SetDeadline(time.Time) error      { return nil }
func (*scripted) SetReadDeadline(time.Time) error  { return nil }
func (*scripted) SetWriteDeadline(time.Time) error { return nil }

// fuzzPolicy allows some of the names of fuzzNames, and one private address at one port.
var fuzzPolicy = Policy{
	AllowedDomains: []string{"**.a.example", "rebind.example", "mixed.example", "10.9.9.9:8080", "9.9.9.9"},
	DeniedDomains:  []string{"no.a.example", "a.example:25"},
	Methods:        FullMethods,
}

// fuzzNames are what the DNS holds. Only those below a.example lead somewhere.
func fuzzNames(name string) []netip.Addr {
	switch name {
	case "rebind.example.":
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	case "mixed.example.":
		return []netip.Addr{netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("::ffff:10.0.0.1")}
	case "in.a.example.":
		return []netip.Addr{netip.MustParseAddr("169.254.169.254")}
	default:
		return []netip.Addr{netip.MustParseAddr("9.8.7.6")}
	}
}

// recorder is the DNS and the network of one fuzzed connection.
type recorder struct {
	answer  string // of every host
	mu      sync.Mutex
	lookups []string
	dials   []netip.AddrPort
	servers []*scripted
	events  []Event
}

func (r *recorder) LookupNetIP(_ context.Context, _, name string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lookups = append(r.lookups, name)
	return fuzzNames(name), nil
}

func (r *recorder) dial(_ context.Context, address netip.AddrPort) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dials = append(r.dials, address)
	if address.Port() == 1 {
		return nil, syscall.ECONNREFUSED
	}
	server := &scripted{input: bytes.NewReader([]byte(r.answer))}
	r.servers = append(r.servers, server)
	return server, nil
}

func (r *recorder) OnEvent(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// serveScript lets a proxy serve one client that sends given bytes.
func serveScript(t *testing.T, rules *Rules, request, answer string) (*scripted, *recorder) {
	t.Helper()
	r := &recorder{answer: answer}
	proxy, err := New(Config{
		Rules: func(netip.AddrPort) *Rules { return rules }, OnEvent: r.OnEvent, Resolver: r, Dial: r.dial,
	})
	if err != nil {
		t.Fatal(err)
	}
	conn := &scripted{input: bytes.NewReader([]byte(request))}
	c := newClient(proxy, conn)
	proxy.clients[c] = true
	c.serve(t.Context())
	proxy.forget(c)
	return conn, r
}

// checkScript holds what was looked up, dialled and told to the policy, by rules of its own where it can.
func checkScript(t *testing.T, rules *Rules, r *recorder) {
	t.Helper()
	for _, name := range r.lookups {
		allowed := name == "a.example." || strings.HasSuffix(name, ".a.example.") || name == "rebind.example." || name == "mixed.example."
		if !allowed || name == "no.a.example." {
			t.Errorf("%q was looked up", name)
		}
	}
	allowed := []string{"9.8.7.6", "9.9.9.9", "10.9.9.9"}
	for _, address := range r.dials {
		if !slices.Contains(allowed, address.Addr().String()) || address.Addr().String() == "10.9.9.9" && address.Port() != 8080 {
			t.Errorf("%v was dialled", address)
		}
		if !slices.ContainsFunc(r.events, func(e Event) bool { return explains(rules, e, address) }) {
			t.Errorf("%v was dialled, and no event tells of it: %+v", address, r.events)
		}
	}
	for _, e := range r.events {
		if e.Reason == ReasonInternal || e.Message == "" || e.Verdict == "" || e.Time.IsZero() {
			t.Errorf("event %+v", e)
		}
	}
}

// explains tells whether an event is the decision behind a dial, and Decide would decide the same again.
func explains(rules *Rules, e Event, address netip.AddrPort) bool {
	if e.Verdict == Refused || e.Port != address.Port() || e.Address != address.Addr() {
		return false
	}
	q := Query{Protocol: e.Protocol, Method: e.Method, Host: e.Host, Port: e.Port}
	if _, err := netip.ParseAddr(e.Host); err != nil {
		q.Addresses = fuzzNames(e.Host + ".")
	}
	return rules.Decide(q).Allowed
}

var fuzzRequests = []string{
	"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
	"GET http://b.a.example:8080/x?y HTTP/1.1\r\nHost: b.a.example:8080\r\nConnection: x\r\nX: y\r\n\r\nGET http://no.a.example/ HTTP/1.1\r\nHost: no.a.example\r\n\r\n",
	"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhelloGET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET http://10.9.9.9/ HTTP/1.0\r\n\r\n",
	"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\nhello",
	"CONNECT a.example:25 HTTP/1.0\r\n\r\n",
	"CONNECT 9.9.9.9:1 HTTP/1.0\r\n\r\n",
	"CONNECT 0x0a090909:8080 HTTP/1.0\r\n\r\n",
	"CONNECT [::ffff:10.9.9.9]:8080 HTTP/1.0\r\n\r\n",
	"CONNECT rebind.example:443 HTTP/1.0\r\n\r\n",
	"CONNECT mixed.example:443 HTTP/1.0\r\n\r\n",
	"CONNECT in.a.example:443 HTTP/1.0\r\n\r\n",
	"CONNECT \u24d0.ex\u00adample:443 HTTP/1.0\r\n\r\n",
	"\x05\x01\x00\x05\x01\x00\x03\x09a.example\x01\xbb",
	"\x05\x01\x00\x05\x01\x00\x01\x0a\x09\x09\x09\x1f\x90hello",
	"\x05\x01\x00\x05\x01\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x0a\x09\x09\x09\x1f\x90",
	"\x05\x01\x00\x05\x01\x00\x04\x00\x64\xff\x9b\x00\x00\x00\x00\x00\x00\x00\x00\x0a\x09\x09\x09\x00\x50",
	"\x04\x01\x00\x50\x09\x09\x09\x09\x00",
	"\x16\x03\x01\x00\x00",
}

// FuzzRequest sends any bytes to the proxy. Whatever they are, nothing is resolved or dialled that the policy
// refuses, every dial has its event, and nothing fails inside.
func FuzzRequest(f *testing.F) {
	hello := string(record(f, "a.example"))
	for _, request := range fuzzRequests {
		f.Add([]byte(request))
	}
	f.Add([]byte("CONNECT a.example:443 HTTP/1.0\r\n\r\n" + hello))
	f.Add([]byte("CONNECT b.a.example:443 HTTP/1.0\r\n\r\n" + hello))
	for _, before := range []string{
		"\x16\x03\x01\x00\x00", "\x17\x03\x01\x00\x00", "\x15\x03\x01\x00\x02\x01\x5a", "\x15\x09\x01\x00\x02\x01\x5a",
		"\x14\x03\x03\x00\x01\x01", "\x18\x03\x01\x00\x03\x02\x00\x00",
	} {
		f.Add([]byte("CONNECT b.a.example:443 HTTP/1.0\r\n\r\n" + before + hello))
		f.Add([]byte("CONNECT b.a.example:443 HTTP/1.0\r\n\r\n" + before + string(split([]byte(hello), 1))))
	}
	f.Add([]byte("CONNECT b.a.example:443 HTTP/1.0\r\n\r\n" + "\x16\x02\x00" + hello[3:]))
	f.Add([]byte("CONNECT b.a.example:443 HTTP/1.0\r\n\r\n" + "\x80\x0c\x01\x03\x01\x00\x03\x00\x00\x00\x00\x00\x00\x2f"))
	rules := mustCompile(f, fuzzPolicy)
	f.Fuzz(func(t *testing.T, request []byte) {
		conn, r := serveScript(t, rules, string(request), "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		checkScript(t, rules, r)
		// Whatever a host gets by a tunnel, the most tolerant server finds no hello for another name in it.
		for i, server := range r.servers {
			checkServerName(t, r.events, i, server.written())
		}
		if len(r.events) == 0 && conn.written() != "" && !strings.HasPrefix(string(request), "\x05") {
			t.Errorf("the client got %q, and no event tells of it", conn.written())
		}
	})
}

// FuzzAnswer lets a host answer any bytes. The client gets an answer in any case, and no second one from the same bytes.
func FuzzAnswer(f *testing.F) {
	for _, answer := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n",
		"HTTP/1.0 200 OK\r\n\r\nok",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"junk",
	} {
		f.Add([]byte(answer), false)
		f.Add([]byte(answer), true)
	}
	rules := mustCompile(f, fuzzPolicy)
	f.Fuzz(func(t *testing.T, answer []byte, head bool) {
		request := "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"
		if head {
			request = strings.Replace(request, "GET", "HEAD", 1)
		}
		conn, r := serveScript(t, rules, request, string(answer))
		checkScript(t, rules, r)
		got := conn.written()
		if !strings.HasPrefix(got, "HTTP/1.1 ") || !strings.Contains(got, "\r\n\r\n") {
			t.Errorf("the client got %q", got)
		}
		if len(r.events) != 1 || len(r.dials) != 1 {
			t.Errorf("events %+v, dials %v, want one each", r.events, r.dials)
		}
	})
}
