package egress

import (
	"io"
	"net"
	"testing"
)

// TestSOCKSRequests goes through what a client can say before anything is decided.
func TestSOCKSRequests(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"*"}}, Limits{})
	const hello, agreed, tail = "\x05\x01\x00", "\x05\x00", "\x00\x01\x00\x00\x00\x00\x00\x00"
	cases := map[string]struct {
		request string
		answer  string
		reason  Reason // "" if the client asked for nothing
		asked   string
	}{
		"hello only":        {request: hello, answer: agreed},
		"password only":     {request: "\x05\x01\x02", answer: "\x05\xff", reason: ReasonUnsupported},
		"no methods":        {request: "\x05\x00", answer: "\x05\xff", reason: ReasonUnsupported},
		"bind":              {request: hello + "\x05\x02\x00\x03\x0bweb.example\x00\x50", answer: agreed + "\x05\x07" + tail, reason: ReasonUnsupported, asked: "web.example"},
		"UDP":               {request: hello + "\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00", answer: agreed + "\x05\x07" + tail, reason: ReasonUnsupported, asked: "0.0.0.0"},
		"unknown command":   {request: hello + "\x05\x09\x00\x01\x01\x01\x01\x01\x00\x50", answer: agreed + "\x05\x07" + tail, reason: ReasonUnsupported, asked: "1.1.1.1"},
		"unknown address":   {request: hello + "\x05\x01\x00\x05\x01\x01\x01\x01\x00\x50", answer: agreed + "\x05\x08" + tail, reason: ReasonUnsupported},
		"version":           {request: hello + "\x04\x01\x00\x01\x01\x01\x01\x01\x00\x50", answer: agreed + "\x05\x01" + tail, reason: ReasonInvalidRequest},
		"half a hello":      {request: "\x05\x05\x00", answer: "\x05\x01" + tail, reason: ReasonInvalidRequest},
		"half a request":    {request: hello + "\x05\x01\x00\x03\x0bweb", answer: agreed + "\x05\x01" + tail, reason: ReasonInvalidRequest},
		"empty name":        {request: hello + "\x05\x01\x00\x03\x00\x00\x50", answer: agreed + "\x05\x02" + tail, reason: ReasonInvalidHost},
		"NUL in the name":   {request: hello + "\x05\x01\x00\x03\x0dweb.example\x00x\x00\x50", answer: agreed + "\x05\x02" + tail, reason: ReasonInvalidHost, asked: "web.example?x"},
		"port 0":            {request: hello + "\x05\x01\x00\x03\x0bweb.example\x00\x00", answer: agreed + "\x05\x02" + tail, reason: ReasonInvalidHost, asked: "web.example"},
		"IPv4":              {request: hello + "\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50", answer: agreed + "\x05\x02" + tail, reason: ReasonAddress, asked: "127.0.0.1"},
		"IPv6":              {request: hello + "\x05\x01\x00\x04" + "\xfe\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" + "\x00\x50", answer: agreed + "\x05\x02" + tail, reason: ReasonAddress, asked: "fe80::1"},
		"IPv6, mapped":      {request: hello + "\x05\x01\x00\x04" + "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x0a\x00\x00\x01" + "\x00\x50", answer: agreed + "\x05\x02" + tail, reason: ReasonAddress, asked: "::ffff:10.0.0.1"},
		"name is a number":  {request: hello + "\x05\x01\x00\x03\x0a2130706433\x00\x50", answer: agreed + "\x05\x02" + tail, reason: ReasonAddress, asked: "2130706433"},
		"name is IPv6":      {request: hello + "\x05\x01\x00\x03\x03::1\x00\x50", answer: agreed + "\x05\x02" + tail, reason: ReasonAddress, asked: "::1"},
		"SOCKS4":            {request: "\x04\x01\x00\x50\x01\x01\x01\x01\x00", answer: "\x00\x5b\x00\x00\x00\x00\x00\x00", reason: ReasonUnsupported},
		"SOCKS4a to a name": {request: "\x04\x01\x00\x50\x00\x00\x00\x01\x00web.example\x00", answer: "\x00\x5b\x00\x00\x00\x00\x00\x00", reason: ReasonUnsupported},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w.t = t
			before := len(w.allEvents())
			if got := w.askAndEnd(c.request); got != c.answer {
				t.Errorf("answer %q, want %q", got, c.answer)
			}
			events := w.allEvents()[before:]
			if c.reason == "" {
				if len(events) != 0 {
					t.Errorf("events %+v, want none", events)
				}
				return
			}
			protocol := ProtocolSOCKS
			if c.request[0] == socks4 {
				protocol = ""
			}
			if len(events) != 1 || events[0].Verdict != Refused || events[0].Reason != c.reason || events[0].Protocol != protocol || events[0].Asked != c.asked {
				t.Errorf("events %+v, want one refusal, %s of %q", events, c.reason, c.asked)
			}
		})
	}
	if lookups, dials := w.asked(); len(lookups)+len(dials) > 0 {
		t.Errorf("lookups %q, dials %q, want none", lookups, dials)
	}
}

// TestSOCKSTunnel carries a protocol in which the server speaks first, sent by a client that does not wait for answers.
func TestSOCKSTunnel(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example:22"}}, Limits{})
	w.serveRaw(22, func(conn *net.TCPConn) {
		io.WriteString(conn, "SSH-2.0-server\r\n")
		got, _ := io.ReadAll(conn)
		conn.Write(got)
	})
	conn := w.connect()
	io.WriteString(conn, "\x05\x02\x02\x00"+"\x05\x01\x00\x03\x0bWEB.example\x00\x16"+"SSH-2.0-client\r\n")
	conn.CloseWrite()
	got, err := io.ReadAll(conn)
	if want := "\x05\x00" + "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00" + "SSH-2.0-server\r\nSSH-2.0-client\r\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	u := w.waitUsage(1)[0]
	if u.Sent != 16 || u.Received != 32 {
		t.Errorf("usage %+v, want 16 bytes sent and 32 received", u)
	}
}
