package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// record is a TLS client's first message for a name, as the library makes it.
func record(tb testing.TB, name string) []byte {
	tb.Helper()
	client, server := net.Pipe()
	defer server.Close()
	var group sync.WaitGroup
	group.Go(func() {
		tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
	})
	defer group.Wait()
	defer client.Close()
	var header [5]byte
	if _, err := io.ReadFull(server, header[:]); err != nil {
		tb.Fatal(err)
	}
	body := make([]byte, int(header[3])<<8|int(header[4]))
	if _, err := io.ReadFull(server, body); err != nil {
		tb.Fatal(err)
	}
	return append(header[:], body...)
}

// split cuts a TLS record into several of a size, as a client may send it.
func split(hello []byte, size int) []byte {
	var out []byte
	for body := hello[5:]; len(body) > 0; body = body[min(size, len(body)):] {
		n := min(size, len(body))
		out = append(out, hello[0], hello[1], hello[2], byte(n>>8), byte(n))
		out = append(out, body[:n]...)
	}
	return out
}

// TestServerName sends first messages of TLS, and of what is none, through a tunnel.
func TestServerName(t *testing.T) {
	same, other := record(t, "www.web.example"), record(t, "evil.example")
	cases := map[string]struct {
		reason string
		sent   []byte
		want   Reason // of a refusal; "" if the server gets everything
	}{
		"same name":              {reason: "the common case", sent: same},
		"same name, more behind": {reason: "nothing is lost", sent: append(bytes.Clone(same), "early data"...)},
		"same name, fragments":   {reason: "a message may span records", sent: split(same, 7)},
		"no name":                {reason: "addresses have none", sent: record(t, "")},
		"other name":             {reason: "the server has several sites", sent: other, want: ReasonServerName},
		"other name, fragments":  {reason: "a message may span records", sent: split(other, 1), want: ReasonServerName},
		"denied name":            {reason: "deny wins", sent: record(t, "secret.web.example"), want: ReasonDenied},
		"broken hello":           {reason: "a server may read what the proxy cannot", sent: append([]byte{22, 3, 1, 0, 8, 1, 0, 0, 4}, "junk"...), want: ReasonServerName},
		"huge hello":             {reason: "bounded", sent: split(append([]byte{22, 3, 1, 0, 0, 1, 1, 0, 0}, make([]byte, 60000)...), 16384), want: ReasonServerName},
		"half a hello":           {reason: "could be completed by nobody", sent: other[:100], want: ReasonServerName},
		"after an empty record":  {reason: "OpenSSL reads on", sent: append([]byte{22, 3, 1, 0, 0}, other...), want: ReasonServerName},
		"after empty data":       {reason: "OpenSSL reads on", sent: append([]byte{23, 3, 1, 0, 0}, other...), want: ReasonServerName},
		"after a warning":        {reason: "servers read on", sent: append([]byte{21, 3, 1, 0, 2, 1, 90}, other...), want: ReasonServerName},
		"after half a warning":   {reason: "OpenSSL put them together once", sent: append([]byte{21, 3, 1, 0, 1, 1, 21, 3, 1, 0, 1, 90}, other...), want: ReasonServerName},
		"after an odd warning":   {reason: "Go looks at its version later", sent: append([]byte{21, 9, 9, 0, 2, 1, 90}, other...), want: ReasonServerName},
		"after new ciphers":      {reason: "TLS 1.3 passes over them", sent: append([]byte{20, 3, 3, 0, 1, 1}, other...), want: ReasonServerName},
		"after a heartbeat":      {reason: "OpenSSL answered it once", sent: append([]byte{24, 3, 1, 0, 3, 2, 0, 0}, other...), want: ReasonServerName},
		"same name, a warning":   {reason: "what can be read is read", sent: append([]byte{21, 3, 1, 0, 2, 1, 90}, same...)},
		"old major version":      {reason: "GnuTLS takes it", sent: append([]byte{22, 2, 0}, other[3:]...), want: ReasonServerName},
		"later major version":    {reason: "Go takes it", sent: append([]byte{22, 15, 255}, other[3:]...), want: ReasonServerName},
		"hello of SSL 2":         {reason: "it offers TLS and has no name", sent: append([]byte{0x80, 46, 1, 3, 1, 0, 3, 0, 0, 0, 32, 0, 0, 47}, make([]byte, 32)...), want: ReasonServerName},
		"length, little endian":  {reason: "a database's message of 790 bytes", sent: []byte{0x16, 3, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0xdd, 7, 0, 0}},
		"length, big endian":     {reason: "a query of 5 KiB in the DNS over TCP", sent: []byte{0x16, 0, 0x12, 0x34, 1, 0, 0, 1}},
		"upper bit":              {reason: "a cache's binary protocol", sent: []byte{0x80, 1, 0, 3, 8, 0, 0, 0}},
		"a word in UTF-8":        {reason: "begins above ASCII", sent: []byte("\u00fcber\r\n")},
		"not TLS":                {reason: "any protocol", sent: []byte("EHLO web.example\r\n")},
		"nearly TLS":             {reason: "the second byte tells", sent: []byte{22, 16, 0, 0, 0, 1}},
		"another TLS message":    {reason: "no hello", sent: []byte{22, 3, 1, 0, 4, 2, 0, 0, 0}},
		"one byte":               {reason: "ends before it can be told", sent: []byte{22}},
		"nothing":                {reason: "the client has nothing to say", sent: nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Policy{AllowedDomains: []string{"**.web.example"}, DeniedDomains: []string{"secret.web.example"}}, Limits{})
			got := make(chan []byte, 1)
			w.serveRaw(443, func(conn *net.TCPConn) {
				data, _ := io.ReadAll(conn)
				got <- data
				conn.Write([]byte("bye"))
			})
			conn, reader := w.tunnel("www.web.example:443")
			conn.Write(c.sent)
			conn.CloseWrite()
			answer, _ := io.ReadAll(reader)
			data := <-got
			if c.want == "" {
				if !bytes.Equal(data, c.sent) || string(answer) != "bye" {
					t.Errorf("the server got %d bytes of %d, the client %q (%s)", len(data), len(c.sent), answer, c.reason)
				}
				return
			}
			if len(data) != 0 || !bytes.Equal(answer, accessDenied) {
				t.Errorf("the server got %d bytes, the client %q, want nothing and an alert (%s)", len(data), answer, c.reason)
			}
			events := w.allEvents()
			if len(events) != 2 || events[0].Verdict != Allowed || events[1].Verdict != Refused || events[1].Reason != c.want || events[1].Protocol != ProtocolConnect || events[1].Message == "" {
				t.Errorf("events %+v, want the tunnel's and a refusal, %s (%s)", events, c.want, c.reason)
			}
		})
	}
}

// TestServerNameWithARealClient sees what a TLS client makes of the refusal.
func TestServerNameWithARealClient(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
	w.serveRaw(443, func(conn *net.TCPConn) { io.Copy(io.Discard, conn) })
	conn, _ := w.tunnel("web.example:443")
	err := tls.Client(conn, &tls.Config{ServerName: "evil.example"}).Handshake()
	var alert tls.AlertError
	if !errors.As(err, &alert) && (err == nil || !strings.Contains(err.Error(), "access denied")) {
		t.Errorf("handshake: %v, want an alert", err)
	}
}

// TestNoByteIsWaitedFor passes on each first message of another protocol at once, whose server says the next word.
func TestNoByteIsWaitedFor(t *testing.T) {
	for _, message := range []string{"\x00", "Q", "\r\n", "\x13", "\x19", "\x14\x10", "\x16\x03\x00\x49", "\x16\x03\x00\x00\x07\x00", "\x80\x01\x00", "\xff\xff\x01\x02"} {
		t.Run(fmt.Sprintf("%x", message), func(t *testing.T) {
			w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
			w.serveRaw(9000, func(conn *net.TCPConn) {
				got := make([]byte, len(message))
				if _, err := io.ReadFull(conn, got); err == nil {
					conn.Write(got)
				}
			})
			conn, reader := w.tunnel("web.example:9000")
			io.WriteString(conn, message)
			if got, err := io.ReadAll(reader); string(got) != message {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// TestServerSpeaksFirst does not wait for the client's first bytes.
func TestServerSpeaksFirst(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
	w.serveRaw(25, func(conn *net.TCPConn) {
		io.WriteString(conn, "220 ready\r\n")
		io.Copy(io.Discard, conn)
	})
	_, reader := w.tunnel("web.example:25")
	if line, err := reader.ReadString('\n'); err != nil || line != "220 ready\r\n" {
		t.Errorf("got %q, %v", line, err)
	}
}

// TestHalfClose ends one direction after the other, in both orders, with much data in the one that is left.
func TestHalfClose(t *testing.T) {
	const size = 4 << 20
	for name, clientFirst := range map[string]bool{"client first": true, "server first": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
			got := make(chan int64, 1)
			w.serveRaw(9000, func(conn *net.TCPConn) {
				if clientFirst {
					n, _ := io.Copy(io.Discard, conn)
					got <- n
					conn.Write(make([]byte, size))
					return
				}
				conn.Write(make([]byte, 10))
				conn.CloseWrite()
				n, _ := io.Copy(io.Discard, conn)
				got <- n
			})
			conn, reader := w.tunnel("web.example:9000")
			wantServer, wantClient := int64(10), int64(size)
			if clientFirst {
				conn.Write(make([]byte, 10))
				conn.CloseWrite()
			}
			n, err := io.Copy(io.Discard, reader)
			if !clientFirst {
				wantServer, wantClient = size, 10
				conn.Write(make([]byte, size))
				conn.CloseWrite()
			}
			if server := <-got; err != nil || n != wantClient || server != wantServer {
				t.Errorf("the client got %d bytes (%v), the server %d, want %d and %d", n, err, server, wantClient, wantServer)
			}
			if u := w.waitUsage(1)[0]; u.Sent != wantServer || u.Received != wantClient {
				t.Errorf("usage %+v, want %d sent and %d received", u, wantServer, wantClient)
			}
		})
	}
}

// TestResetIsPassedOn does not let the client take a broken stream for a whole one.
func TestResetIsPassedOn(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
	w.serveRaw(9000, func(conn *net.TCPConn) {
		io.WriteString(conn, "half")
		io.ReadFull(conn, make([]byte, 1))
		conn.SetLinger(0)
	})
	conn, reader := w.tunnel("web.example:9000")
	io.ReadFull(reader, make([]byte, 4))
	io.WriteString(conn, "x")
	if _, err := io.ReadAll(reader); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v, want a reset", err)
	}
}

// TestIdleTunnelEnds ends a tunnel in which nothing moves.
func TestIdleTunnelEnds(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{Idle: 200 * time.Millisecond})
	w.serveRaw(9000, func(conn *net.TCPConn) { io.Copy(io.Discard, conn) })
	_, reader := w.tunnel("web.example:9000")
	if got, err := io.ReadAll(reader); len(got) != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %q, %v, want the end", got, err)
	}
	w.waitUsage(1)
}

// TestSlowAnswerTimesOut gives up a host that takes the request and does not answer.
func TestSlowAnswerTimesOut(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{Idle: 200 * time.Millisecond})
	w.serveRaw(80, func(conn *net.TCPConn) { io.Copy(io.Discard, conn) })
	if got := w.ask("GET http://web.example/ HTTP/1.0\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 504 Gateway Timeout (TimedOut)\r\n") {
		t.Errorf("answer %q", got)
	}
}

// expiring is a connection whose first operations run into their deadline. Before each it does something.
type expiring struct {
	net.Conn
	expire int
	before func()
}

func (c *expiring) operate(p []byte) (int, error) {
	c.before()
	if c.expire > 0 {
		c.expire--
		return 0, os.ErrDeadlineExceeded
	}
	return len(p), nil
}

func (c *expiring) Read(p []byte) (int, error)     { return c.operate(p) }
func (c *expiring) Write(p []byte) (int, error)    { return c.operate(p) }
func (*expiring) SetReadDeadline(time.Time) error  { return nil }
func (*expiring) SetWriteDeadline(time.Time) error { return nil }

// TestOtherDirectionKeepsAlive goes on where only the other direction had something to carry.
func TestOtherDirectionKeepsAlive(t *testing.T) {
	for name, operate := range map[string]func(*endpoint) (int, error){
		"read":  func(e *endpoint) (int, error) { return e.Read(make([]byte, 3)) },
		"write": func(e *endpoint) (int, error) { return e.Write(make([]byte, 3)) },
	} {
		t.Run(name, func(t *testing.T) {
			busy := newActivity(time.Hour)
			if n, err := operate(&endpoint{Conn: &expiring{expire: 3, before: busy.touch}, activity: busy}); n != 3 || err != nil {
				t.Errorf("with a busy direction: %d, %v, want 3 bytes", n, err)
			}
			idle := newActivity(0)
			if n, err := operate(&endpoint{Conn: &expiring{expire: 3, before: func() {}}, activity: idle}); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("with none: %d, %v, want the deadline's error", n, err)
			}
			e := &endpoint{Conn: &expiring{expire: 3, before: func() {}}, activity: busy}
			e.interrupt()
			if n, err := e.Read(make([]byte, 3)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("interrupted: %d, %v, want the deadline's error", n, err)
			}
		})
	}
}

// TestSlowClientsAreLetGo bounds the time to ask and the time between requests.
func TestSlowClientsAreLetGo(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{Head: 100 * time.Millisecond})
	if got := w.ask(""); got != "" {
		t.Errorf("a client that asks nothing got %q", got)
	}
	if events := w.allEvents(); len(events) != 0 {
		t.Errorf("events %+v, want none", events)
	}
	if got := w.ask("GET http://web.example/ HTTP/1.1\r\nX-A: b\r\n"); !strings.HasPrefix(got, "HTTP/1.1 408 ") {
		t.Errorf("a client that does not come to an end got %q", got)
	}
	if got := w.ask("\x05\x02\x00"); got != "\x05\x01\x00\x01\x00\x00\x00\x00\x00\x00" {
		t.Errorf("a client that does not come to an end got %q", got)
	}

	w = newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{KeepAlive: 100 * time.Millisecond})
	w.serveHTTP(func(http.ResponseWriter, *http.Request) {})
	if got := w.ask("GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || strings.Count(got, "HTTP/1.1") != 1 {
		t.Errorf("a client that asks once got %q", got)
	}
}

// TestTooManyConnections refuses the client above the limit, and serves again when one left.
func TestTooManyConnections(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{Connections: 2})
	w.serveRaw(9000, func(conn *net.TCPConn) { io.Copy(io.Discard, conn) })
	first, _ := w.tunnel("web.example:9000")
	w.tunnel("web.example:9000")
	answer, _ := io.ReadAll(w.connect())
	if !strings.HasPrefix(string(answer), "HTTP/1.1 503 Service Unavailable (TooManyConnections)\r\n") {
		t.Errorf("answer %q", answer)
	}
	if e := w.lastEvent(); e.Verdict != Refused || e.Reason != ReasonTooManyConnections || !e.Client.IsValid() {
		t.Errorf("event %+v", e)
	}
	first.Close()
	w.waitUsage(1)
	w.eventually("a place", func() bool {
		conn := w.connect()
		fmt.Fprint(conn, "CONNECT web.example:9000 HTTP/1.0\r\n\r\n")
		buffer := make([]byte, 12)
		io.ReadFull(conn, buffer)
		return string(buffer) == "HTTP/1.1 200"
	})
}

// TestCloseLetsRequestsEnd closes a proxy with a request under way, which ends well, and a client that waits, which is let go.
func TestCloseLetsRequestsEnd(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
	started, finish := make(chan bool), make(chan bool)
	w.serveHTTP(func(rw http.ResponseWriter, _ *http.Request) {
		close(started)
		<-finish
		io.WriteString(rw, "whole")
	})
	idle := w.connect()
	busy := w.connect()
	io.WriteString(busy, "GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\n\r\n")
	<-started
	w.eventually("both clients", func() bool {
		w.proxy.mu.Lock()
		defer w.proxy.mu.Unlock()
		return len(w.proxy.clients) == 2
	})
	closed := make(chan bool)
	go func() {
		defer close(closed)
		w.proxy.Close(t.Context())
	}()
	if got, err := io.ReadAll(idle); len(got) != 0 || err != nil {
		t.Errorf("the client that waits got %q, %v, want its end", got, err)
	}
	close(finish)
	if got, err := io.ReadAll(busy); err != nil || !strings.HasSuffix(string(got), "\r\n\r\nwhole") || !strings.Contains(string(got), "Connection: close\r\n") {
		t.Errorf("the client with a request got %q, %v", got, err)
	}
	<-closed
	if conn, err := net.Dial("tcp", w.address.String()); err == nil {
		conn.Close()
		t.Error("the proxy still listens")
	}
}

// TestCloseBreaksTunnels closes a proxy whose tunnel does not end.
func TestCloseBreaksTunnels(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example", "slow.example"}}, Limits{})
	w.serveRaw(9000, func(conn *net.TCPConn) { io.Copy(io.Discard, conn) })
	_, reader := w.tunnel("web.example:9000")
	resolving := w.connect()
	io.WriteString(resolving, "CONNECT slow.example:443 HTTP/1.0\r\n\r\n")
	w.eventually("the look-up", func() bool { lookups, _ := w.asked(); return len(lookups) == 2 })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	w.proxy.Close(ctx)
	if got, err := io.ReadAll(reader); len(got) != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the tunnel got %q, %v, want its end", got, err)
	}
	if len(w.proxy.clients) != 0 {
		t.Errorf("%d clients are left", len(w.proxy.clients))
	}
	w.waitUsage(1)
}

// TestInternalErrors keeps an error of the proxy's own within its connection.
func TestInternalErrors(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
	rules := w.proxy.cfg.Rules
	w.proxy.cfg.Rules = nil // a call of it panics
	w.ask("CONNECT web.example:443 HTTP/1.0\r\n\r\n")
	if e := w.lastEvent(); e.Verdict != Failed || e.Reason != ReasonInternal {
		t.Errorf("event %+v", e)
	}
	w.proxy.cfg.Rules = rules
	if got := w.ask("CONNECT evil.example:443 HTTP/1.0\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 403") {
		t.Errorf("the next client got %q", got)
	}
}
