package egress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestForwardedRequest compares what a server gets with what the client sent.
func TestForwardedRequest(t *testing.T) {
	cases := map[string]struct {
		reason  string
		request string
		want    string // what the server gets
	}{
		"origin form": {
			reason:  "the path and query as they were; a Host of our own",
			request: "GET http://WEB.example./a%2Fb//c?x=%41&y HTTP/1.1\r\nHost: web.EXAMPLE\r\nAccept: */*\r\n\r\n",
			want:    "GET /a%2Fb//c?x=%41&y HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\nAccept: */*\r\nVia: 1.1 execsession\r\n\r\n",
		},
		"no path": {
			reason:  "is the root",
			request: "GET http://web.example HTTP/1.0\r\n\r\n",
			want:    "GET / HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\nVia: 1.1 execsession\r\n\r\n",
		},
		"whole server": {
			reason:  "OPTIONS has a target of its own for it",
			request: "OPTIONS http://web.example HTTP/1.1\r\nHost: web.example\r\n\r\n",
			want:    "OPTIONS * HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\nVia: 1.1 execsession\r\n\r\n",
		},
		"hop by hop": {
			reason:  "for the proxy only; an upgrade would end the checks",
			request: "GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\nConnection: Upgrade, HTTP2-Settings, X-Own\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nX-Own: 1\r\nProxy-Authorization: Basic eA==\r\nProxy-Connection: close\r\nTE: trailers\r\nUser-Agent: test\r\n\r\n",
			want:    "GET / HTTP/1.1\r\nHost: web.example\r\nUser-Agent: test\r\nConnection: close\r\nVia: 1.1 execsession\r\n\r\n",
		},
		"body by length": {
			reason:  "the same length",
			request: "POST http://web.example/ HTTP/1.1\r\nHost: web.example\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
			want:    "POST / HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\nContent-Length: 5\r\nVia: 1.1 execsession\r\n\r\nhello",
		},
		"body in chunks": {
			reason:  "framed anew, without extensions and trailers",
			request: "POST http://web.example/ HTTP/1.1\r\nHost: web.example\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\nConnection: close\r\n\r\n5;ext=1\r\nhello\r\n0\r\nX-Sum: 1\r\nContent-Length: 7\r\n\r\n",
			want:    "POST / HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nVia: 1.1 execsession\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
			got := make(chan string, 1)
			w.serveRaw(80, func(conn *net.TCPConn) {
				buffer := make([]byte, len(c.want))
				n, _ := io.ReadFull(conn, buffer)
				got <- string(buffer[:n])
				io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
			})
			conn := w.connect()
			io.WriteString(conn, c.request)
			if text := <-got; text != c.want {
				t.Errorf("the server got\n%q, want\n%q (%s)", text, c.want, c.reason)
			}
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || answer.StatusCode != http.StatusNoContent {
				t.Fatalf("answer %v, %v", answer, err)
			}
			answer.Body.Close()
		})
	}
}

// TestForwardedAnswer compares what the client gets with what a server sent.
func TestForwardedAnswer(t *testing.T) {
	const get11, get10 = "GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\n\r\n", "GET http://web.example/ HTTP/1.0\r\n\r\n"
	cases := map[string]struct {
		reason  string
		request string
		answer  string // of the server
		want    string // what the client gets
	}{
		"by length": {
			reason: "the same", request: get11,
			answer: "HTTP/1.1 200 Fine\r\nContent-Length: 5\r\nX-A: b\r\nConnection: X-Own\r\nX-Own: 1\r\nProxy-Authenticate: Basic\r\n\r\nhello",
			want:   "HTTP/1.1 200 Fine\r\nConnection: close\r\nContent-Length: 5\r\nVia: 1.1 execsession\r\nX-A: b\r\n\r\nhello",
		},
		"in chunks": {
			reason: "framed anew, without extensions and trailers", request: get11,
			answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5;a=b\r\nhello\r\n0\r\nX-Sum: 1\r\nX-Other: 2\r\n\r\n",
			want:   "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nVia: 1.1 execsession\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		},
		"in chunks, to 1.0": {
			reason: "HTTP/1.0 has no chunks", request: get10,
			answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
			want:   "HTTP/1.0 200 OK\r\nConnection: close\r\nVia: 1.1 execsession\r\n\r\nhello",
		},
		"until the end": {
			reason: "ends with the connection", request: get11,
			answer: "HTTP/1.0 200 OK\r\n\r\nhello",
			want:   "HTTP/1.1 200 OK\r\nConnection: close\r\nVia: 1.1 execsession\r\n\r\nhello",
		},
		"HEAD": {
			reason: "a length without a body", request: "HEAD http://web.example/ HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\n\r\n",
			answer: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
			want:   "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\nVia: 1.1 execsession\r\n\r\n",
		},
		"hints before": {
			reason: "are passed on", request: get11,
			answer: "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
			want:   "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\nVia: 1.1 execsession\r\nContent-Length: 0\r\n\r\n",
		},
		"hints before, to 1.0": {
			reason: "HTTP/1.0 does not know them", request: get10,
			answer: "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
			want:   "HTTP/1.0 200 OK\r\nConnection: close\r\nVia: 1.1 execsession\r\nContent-Length: 0\r\n\r\n",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
			w.serveRaw(80, func(conn *net.TCPConn) {
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					io.WriteString(conn, c.answer)
				}
			})
			if got := w.ask(c.request); got != c.want {
				t.Errorf("the client got\n%q, want\n%q (%s)", got, c.want, c.reason)
			}
		})
	}
}

// TestBadAnswers turns what is no answer into an error of the proxy's own.
func TestBadAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":          "",
		"no HTTP":          "SSH-2.0-OpenSSH_9.9\r\n",
		"half a head":      "HTTP/1.1 200 OK\r\nContent-Le",
		"endless head":     "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", 100) + "\r\n",
		"endless hints":    strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 100) + "HTTP/1.1 204 No Content\r\n\r\n",
		"unasked protocol": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
		"two lengths":      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
			w.serveRaw(80, func(conn *net.TCPConn) {
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					io.WriteString(conn, answer)
					conn.CloseWrite()
					io.Copy(io.Discard, conn)
				}
			})
			got := w.ask("GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\n\r\n")
			_, got, _ = strings.Cut(got, "HTTP/1.1 502")
			if !strings.HasPrefix(got, " Bad Gateway (BadAnswer)\r\n") {
				t.Errorf("the client got %q", got)
			}
			if events := w.allEvents(); len(events) != 1 || events[0].Verdict != Allowed {
				t.Errorf("events %+v, want the decision alone", events)
			}
		})
	}
}

// TestTruncatedAnswerIsAnError sees a connection that is reset, where the server's answer is cut short.
func TestTruncatedAnswerIsAnError(t *testing.T) {
	for name, head := range map[string]string{
		"by length":  "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello",
		"in chunks":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"by nothing": "HTTP/1.1 200 OK\r\n\r\nhello", // only the reset of its connection tells
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
			w.serveRaw(80, func(conn *net.TCPConn) {
				http.ReadRequest(bufio.NewReader(conn))
				io.WriteString(conn, head)
				io.ReadFull(conn, make([]byte, 1)) // the client got what there is
				conn.SetLinger(0)
			})
			conn := w.connect()
			io.WriteString(conn, "POST http://web.example/ HTTP/1.1\r\nHost: web.example\r\nContent-Length: 1\r\n\r\n")
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if _, err := io.ReadFull(response.Body, make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			io.WriteString(conn, "x")
			if _, err = io.ReadAll(response.Body); err == nil {
				t.Error("the client takes half an answer for a whole one")
			}
		})
	}
}

// TestSeveralRequests uses one connection for several requests, each decided about by itself.
func TestSeveralRequests(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
	w.serveHTTP(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %s %s", r.Method, r.URL.Path, body)
	})
	conn := w.connect()
	reader := bufio.NewReader(conn)
	// All are sent at once; what is behind a body is the next request and nothing else.
	io.WriteString(conn, "GET http://web.example/1 HTTP/1.1\r\nHost: web.example\r\n\r\n"+
		"POST http://web.example/2 HTTP/1.1\r\nHost: web.example\r\nContent-Length: 3\r\n\r\ntwo"+
		"POST http://web.example/3 HTTP/1.1\r\nHost: web.example\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nthree\r\n0\r\n\r\n"+
		"GET http://evil.example/4 HTTP/1.1\r\nHost: evil.example\r\n\r\n"+
		"GET http://web.example/5 HTTP/1.1\r\nHost: web.example\r\n\r\n")
	for _, want := range []string{"GET /1 ", "POST /2 two", "POST /3 three"} {
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(body) != want || response.StatusCode != http.StatusOK {
			t.Errorf("answer %d %q, %v, want %q", response.StatusCode, body, err, want)
		}
	}
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusForbidden || response.Header.Get(reasonHeader) != string(ReasonNotAllowed) {
		t.Fatalf("answer %v, want a refusal", response)
	}
	io.Copy(io.Discard, response.Body)
	if rest, err := io.ReadAll(reader); err != nil || len(rest) != 0 {
		t.Errorf("after the refusal: %q, %v, want the end", rest, err)
	}
	if events := w.allEvents(); len(events) != 4 {
		t.Errorf("events %+v, want four", events)
	}
}

// TestContinue waits for the server's word before it sends a body.
func TestContinue(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
	w.serveHTTP(func(rw http.ResponseWriter, r *http.Request) { // net/http says 100 when the body is read
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "got %s", body)
	})
	conn := w.connect()
	reader := bufio.NewReader(conn)
	io.WriteString(conn, "POST http://web.example/ HTTP/1.1\r\nHost: web.example\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	line, err := reader.ReadString('\n')
	if err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("first line %q, %v", line, err)
	}
	reader.ReadString('\n')
	io.WriteString(conn, "hello")
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "got hello" {
		t.Errorf("answer %q, %v", body, err)
	}
}

// TestEarlyAnswer has a server that answers before it has the body, and reads no more of it.
func TestEarlyAnswer(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
	w.serveRaw(80, func(conn *net.TCPConn) {
		http.ReadRequest(bufio.NewReader(conn))
		io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno.")
		conn.CloseWrite()
		io.Copy(io.Discard, conn)
	})
	conn := w.connect()
	io.WriteString(conn, "POST http://web.example/ HTTP/1.1\r\nHost: web.example\r\nContent-Length: 1000000\r\n\r\nthe beginning")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Fatalf("answer %v, %v", response, err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "no." {
		t.Errorf("body %q, %v", body, err)
	}
}

// TestBrokenBody does not let a server take half a body for a whole one.
func TestBrokenBody(t *testing.T) {
	for name, body := range map[string]string{
		"bad chunk": "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello",
		"too short": "Content-Length: 100\r\n\r\nhello",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
			read := make(chan error, 1)
			w.serveRaw(80, func(conn *net.TCPConn) {
				request, err := http.ReadRequest(bufio.NewReader(conn))
				if err == nil {
					_, err = io.ReadAll(request.Body)
				}
				read <- err
			})
			conn := w.connect()
			io.WriteString(conn, "POST http://web.example/ HTTP/1.1\r\nHost: web.example\r\n"+body)
			conn.CloseWrite()
			answer, _ := io.ReadAll(conn)
			if !strings.HasPrefix(string(answer), "HTTP/1.1 400 Bad Request (InvalidRequest)\r\n") {
				t.Errorf("answer %q", answer)
			}
			if err := <-read; err == nil {
				t.Error("the server takes half a body for a whole one")
			}
		})
	}
}

// TestStreaming passes pieces on as they come, in both directions.
func TestStreaming(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}}, Limits{})
	next := make(chan string)
	w.serveHTTP(func(rw http.ResponseWriter, r *http.Request) {
		buffer := make([]byte, 1)
		r.Body.Read(buffer)
		rw.Write(buffer)
		rw.(http.Flusher).Flush()
		for piece := range next {
			io.WriteString(rw, piece)
			rw.(http.Flusher).Flush()
		}
	})
	conn := w.connect()
	io.WriteString(conn, "POST http://web.example/ HTTP/1.1\r\nHost: web.example\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	buffer := make([]byte, 16)
	for _, want := range []string{"a", "b", "c"} {
		if want != "a" {
			next <- want
		}
		n, err := response.Body.Read(buffer)
		if err != nil || string(buffer[:n]) != want {
			t.Fatalf("piece %q, %v, want %q", buffer[:n], err, want)
		}
	}
	close(next)
	io.WriteString(conn, "0\r\n\r\n")
	if rest, err := io.ReadAll(response.Body); err != nil || len(rest) != 0 {
		t.Errorf("rest %q, %v", rest, err)
	}
}

// TestInvalidRequests gives every request that is none an answer, an event and no connection.
func TestInvalidRequests(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"*", "0.0.0.0/0"}}, Limits{})
	const host = "\r\nHost: web.example\r\n\r\n"
	cases := map[string]struct {
		request string
		status  int
		reason  Reason
		asked   string
	}{
		"origin form":      {request: "GET / HTTP/1.1" + host, status: 400, reason: ReasonInvalidRequest},
		"asterisk form":    {request: "OPTIONS * HTTP/1.1" + host, status: 400, reason: ReasonInvalidRequest},
		"https":            {request: "GET https://web.example/secret?token HTTP/1.1" + host, status: 400, reason: ReasonInvalidRequest, asked: "web.example"},
		"ftp":              {request: "GET ftp://web.example/ HTTP/1.1" + host, status: 400, reason: ReasonInvalidRequest},
		"smuggled":         {request: "POST http://web.example/ HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked" + host + "0\r\n\r\n", status: 400, reason: ReasonInvalidRequest},
		"user":             {request: "GET http://web.example@evil.example/ HTTP/1.1" + host, status: 403, reason: ReasonInvalidHost},
		"user, CONNECT":    {request: "CONNECT web.example@evil.example:443 HTTP/1.1" + host, status: 403, reason: ReasonInvalidHost},
		"password":         {request: "GET http://web.example:secret@evil.example/ HTTP/1.1" + host, status: 403, reason: ReasonInvalidHost, asked: "***@evil.example"},
		"other Host":       {request: "GET http://evil.example/ HTTP/1.1" + host, status: 403, reason: ReasonHostMismatch},
		"other Host, port": {request: "GET http://web.example/ HTTP/1.1\r\nHost: web.example:8080\r\n\r\n", status: 403, reason: ReasonHostMismatch},
		"no port":          {request: "CONNECT web.example HTTP/1.1" + host, status: 403, reason: ReasonInvalidHost},
		"port 0":           {request: "CONNECT web.example:0 HTTP/1.1" + host, status: 403, reason: ReasonInvalidHost},
		"two ports":        {request: "CONNECT web.example:443:443 HTTP/1.1" + host, status: 403, reason: ReasonInvalidHost},
		"zone":             {request: "CONNECT [fe80::1%25lo]:443 HTTP/1.0\r\n\r\n", status: 403, reason: ReasonInvalidHost},
		"no host":          {request: "GET http:///path HTTP/1.0\r\n\r\n", status: 403, reason: ReasonInvalidHost},
		"too large":        {request: "GET http://web.example/" + strings.Repeat("a", maxHead) + " HTTP/1.1" + host, status: 431, reason: ReasonInvalidRequest},
		"half a head":      {request: "GET http://web.example/ HTTP/1.1\r\nX-A: b\r\n", status: 400, reason: ReasonInvalidRequest},
		"TLS":              {request: "\x16\x03\x01\x00\x05hello\r\n\r\n", status: 400, reason: ReasonInvalidRequest},
		"HTTP/2":           {request: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", status: 505, reason: ReasonInvalidRequest},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w.t = t
			before := len(w.allEvents())
			got := w.askAndEnd(c.request)
			if !strings.HasPrefix(got, fmt.Sprintf("HTTP/1.1 %d ", c.status)) || !strings.Contains(got, fmt.Sprintf("X-Execsession-Reason: %s\r\n", c.reason)) {
				t.Errorf("answer %q, want %d and %s", got, c.status, c.reason)
			}
			events := w.allEvents()[before:]
			if len(events) != 1 || events[0].Verdict != Refused || events[0].Reason != c.reason || events[0].Message == "" || len(events[0].Asked) > maxAsked || c.asked != "" && events[0].Asked != c.asked {
				t.Errorf("events %+v, want one refusal, %s, asked %q", events, c.reason, c.asked)
			}
		})
	}
	if lookups, dials := w.asked(); len(lookups)+len(dials) > 0 {
		t.Errorf("lookups %q, dials %q, want none", lookups, dials)
	}
}

// TestLimitedMethods refuses what would do more than read, before anything is connected.
func TestLimitedMethods(t *testing.T) {
	w := newWorld(t, Policy{AllowedDomains: []string{"web.example"}, Methods: LimitedMethods}, Limits{})
	w.serveHTTP(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "here") })
	if got := w.ask("GET http://web.example/ HTTP/1.0\r\n\r\n"); !strings.HasSuffix(got, "here") {
		t.Errorf("GET: %q", got)
	}
	if got := w.ask("HEAD http://web.example/ HTTP/1.0\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.0 200 ") {
		t.Errorf("HEAD: %q", got)
	}
	_, dialled := w.asked()
	for name, request := range map[string]string{
		"POST":          "POST http://web.example/ HTTP/1.0\r\n\r\n",
		"DELETE":        "DELETE http://web.example/ HTTP/1.0\r\n\r\n",
		"GET, body":     "GET http://web.example/ HTTP/1.0\r\nContent-Length: 1\r\n\r\nx",
		"GET, override": "GET http://web.example/ HTTP/1.0\r\nX-HTTP-Method-Override: delete\r\n\r\n",
		"CONNECT":       "CONNECT web.example:80 HTTP/1.0\r\n\r\n",
	} {
		got := w.ask(request)
		if e := w.lastEvent(); !strings.HasPrefix(got, "HTTP/1.1 403 Forbidden (MethodNotAllowed)\r\n") || e.Reason != ReasonMethod || e.Verdict != Refused {
			t.Errorf("%s: %q, event %+v", name, got, e)
		}
	}
	if got := w.ask("\x05\x01\x00\x05\x01\x00\x03\x0bweb.example\x00\x50"); !strings.HasPrefix(got, "\x05\x00\x05\x02") {
		t.Errorf("SOCKS5: %q", got)
	}
	if _, dials := w.asked(); len(dials) != len(dialled) {
		t.Errorf("dials %q", dials)
	}
}
