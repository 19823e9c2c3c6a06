package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

const (
	maxAnswerHead = 64 << 10
	maxInterim    = 8 // answers of the kind of 100 Continue before the one that counts
)

// exchange is one request and its answer.
type exchange struct {
	client  *client
	up      *endpoint
	event   Event
	head    *head
	request *http.Request
	body    *pacedBody
}

// exchange forwards one request over a connection of its own, and its answer back. It tells whether the client's
// connection may serve another one.
func (c *client) exchange(ctx context.Context, upstream net.Conn, e Event, h *head, req *http.Request) bool {
	shared := newActivity(c.proxy.cfg.Limits.Idle)
	c.conn.activity = shared
	defer func() { c.conn.activity = nil }()
	up := &endpoint{Conn: upstream, activity: shared}
	defer up.Close()
	stop := context.AfterFunc(ctx, func() { up.Close() })
	defer stop()
	defer c.account(e, up, time.Now())

	x := &exchange{client: c, up: up, event: e, head: h, request: outgoing(req, e)}
	x.body = &pacedBody{source: req.Body}
	x.body.ended.Store(!h.hasBody())
	if h.hasBody() {
		x.request.Body = x.body
	}
	sent := make(chan struct{})
	go func() { // ends with the request, or when both of its ends were closed and interrupted below
		defer close(sent)
		defer c.recover()
		x.send()
	}()
	reusable := x.answer()
	up.Close()
	if !x.body.ended.Load() {
		// The host answered before it had everything. What is left of the body is of no use to anyone.
		c.conn.interrupt()
		reusable = false
	}
	<-sent
	if !reusable {
		c.drain()
	}
	return reusable
}

// send sends the request as far as it comes.
func (x *exchange) send() {
	output := bufio.NewWriter(x.up)
	x.body.output = output
	if err := x.request.Write(pacedWriter{output}); err == nil {
		output.Flush()
	}
	if x.body.broken.Load() {
		x.up.reset() // the host must not take what it has for the whole
	}
}

// answer forwards the answer and tells whether the client can see where it ends.
func (x *exchange) answer() bool {
	limited := &io.LimitedReader{R: x.up, N: maxAnswerHead}
	resp, err := x.readAnswer(bufio.NewReader(limited))
	if err != nil {
		x.fail(err)
		return false
	}
	defer resp.Body.Close()
	defer x.up.Close() // first: closing a body reads what is left of it
	limited.N = math.MaxInt64

	removeHopByHop(resp.Header)
	resp.Header.Add("Via", "1.1 execsession")
	resp.Trailer = nil // as in requests: some readers merge trailers into the head that was checked
	framed := resp.ContentLength >= 0 || len(resp.TransferEncoding) > 0
	resp.ProtoMajor, resp.ProtoMinor = 1, 1
	if x.head.version == "HTTP/1.0" {
		resp.ProtoMinor, resp.TransferEncoding = 0, nil
	}
	reusable := framed && x.head.version == "HTTP/1.1" && !x.head.close && !x.client.proxy.isClosed()
	resp.Close = !reusable

	output := bufio.NewWriter(x.client.conn)
	resp.Body = &pacedBody{source: resp.Body, output: output}
	if err = resp.Write(pacedWriter{output}); err == nil {
		err = output.Flush()
	}
	if err != nil {
		x.client.conn.reset() // the client must not take what it has for the whole
		return false
	}
	return reusable
}

// readAnswer reads the head of the answer and passes on those that come before it.
func (x *exchange) readAnswer(reader *bufio.Reader) (*http.Response, error) {
	for range maxInterim {
		resp, err := http.ReadResponse(reader, x.request)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= http.StatusOK {
			return resp, nil
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusSwitchingProtocols {
			return nil, errors.New("the host switches to a protocol that nobody asked for")
		}
		if x.head.version == "HTTP/1.0" {
			continue // which has none of them
		}
		removeHopByHop(resp.Header)
		output := bufio.NewWriter(x.client.conn)
		fmt.Fprintf(output, "HTTP/1.1 %03d %s\r\n", resp.StatusCode, http.StatusText(resp.StatusCode))
		if err := resp.Header.WriteSubset(output, map[string]bool{"Content-Length": true}); err != nil {
			return nil, err
		}
		io.WriteString(output, "\r\n") //nolint:errcheck // Flush says the same
		if err := output.Flush(); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("the host does not come to its answer")
}

// fail answers in place of the host. The connection was allowed and told of, so that no further event is due.
func (x *exchange) fail(err error) {
	e := x.event
	e.Verdict = Failed
	switch {
	case x.body.broken.Load():
		e.Reason, e.Message = ReasonInvalidRequest, "the body of the request is malformed or incomplete"
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Reason, e.Message = ReasonTimedOut, "waiting for "+e.Host+": no answer in time"
	default:
		e.Reason, e.Message = ReasonBadAnswer, "the answer of "+e.Host+" is not HTTP, or ended early"
	}
	x.up.activity.touch()                              // the client has its own time to take this
	writeRefusal(x.client.conn, e, statusOf(e.Reason)) //nolint:errcheck // the connection ends either way
}

// hopByHop are the headers that are for the next reader only. A message can name more of them in Connection.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

func removeHopByHop(header http.Header) {
	for _, name := range []string{"Connection", "Proxy-Connection"} {
		for _, line := range header.Values(name) {
			for named := range strings.SplitSeq(line, ",") {
				header.Del(strings.TrimSpace(named))
			}
		}
	}
	for _, name := range hopByHop {
		header.Del(name)
	}
}

// outgoing is the request as the host gets it: for the host that was decided about, in the form
// that origin servers take.
func outgoing(req *http.Request, e Event) *http.Request {
	target, _ := parseHost(e.Host) // in normal form already
	header := req.Header.Clone()
	removeHopByHop(header)
	header.Add("Via", "1.1 execsession")
	if len(header.Values("User-Agent")) == 0 {
		header["User-Agent"] = []string{""} // else net/http names itself
	}
	u := &url.URL{Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery, ForceQuery: req.URL.ForceQuery}
	if req.Method == http.MethodOptions && u.Path == "" && u.RawQuery == "" {
		u.Opaque = "*" // a URL without a path means the server as a whole
	}
	return &http.Request{
		Method: req.Method, URL: u, Host: target.authority(e.Port, httpPort), Header: header, Close: true,
		ContentLength: req.ContentLength, TransferEncoding: req.TransferEncoding,
	}
}

// pacedWriter hides what lets others read into a buffered writer's own memory, since pacedBody flushes it meanwhile.
type pacedWriter struct{ output *bufio.Writer }

func (w pacedWriter) Write(p []byte) (int, error)       { return w.output.Write(p) }
func (w pacedWriter) WriteString(s string) (int, error) { return w.output.WriteString(s) }
func (w pacedWriter) WriteByte(c byte) error            { return w.output.WriteByte(c) }

// pacedBody is the body of a message that is copied to a buffered writer. Before it waits for more it
// flushes what was copied, so that a stream of small pieces arrives piece by piece.
type pacedBody struct {
	source io.Reader
	output *bufio.Writer
	ended  atomic.Bool // everything was read
	broken atomic.Bool // reading failed before the end
}

func (b *pacedBody) Read(p []byte) (int, error) {
	if err := b.output.Flush(); err != nil {
		return 0, err
	}
	n, err := b.source.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.ended.Store(true)
	case err != nil:
		b.broken.Store(true)
	}
	return n, err
}

// Close does nothing: who copies a body closes it, and closing the body of a message reads what is left of it.
func (b *pacedBody) Close() error { return nil }
