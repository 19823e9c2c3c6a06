package egress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
)

// serveHTTP serves requests one after the other.
func (c *client) serveHTTP(ctx context.Context) {
	for c.serveRequest(ctx) {
		if !c.proxy.waits(c, true) {
			return
		}
		c.within(c.proxy.cfg.Limits.KeepAlive)
		if _, err := c.reader.Peek(1); err != nil || !c.proxy.waits(c, false) {
			return
		}
		c.within(c.proxy.cfg.Limits.Head)
	}
}

// serveRequest serves one request and tells whether another one may follow.
func (c *client) serveRequest(ctx context.Context) bool {
	h, bad, err := c.readHead()
	if err != nil {
		return false
	}
	if bad != nil {
		c.reject(&h, bad)
		return false
	}
	if h.method == http.MethodConnect {
		c.reader.Discard(h.size) //nolint:errcheck // it is in the buffer
		c.serveConnect(ctx, &h)
		return false
	}
	req, err := http.ReadRequest(c.reader)
	if err != nil {
		c.reject(&h, malformed("the request is malformed"))
		return false
	}
	return c.serveForward(ctx, &h, req)
}

// reject answers a request that no policy has to be asked about.
func (c *client) reject(h *head, bad *badRequest) {
	q := Query{Protocol: ProtocolHTTP, Method: h.method}
	if _, rest, found := strings.Cut(h.target, "://"); found {
		q.Host = authorityOf(rest)
	}
	if h.method == http.MethodConnect {
		q.Protocol, q.Host = ProtocolConnect, h.target
	}
	c.answer(c.refuse(q, ReasonInvalidRequest, bad.message), bad.status)
}

// answer writes an answer of the proxy's own, which ends the connection.
func (c *client) answer(e Event, status int) {
	c.within(c.proxy.cfg.Limits.Head)
	if writeRefusal(c.conn, e, status) == nil {
		c.drain()
	}
}

// serveConnect serves a tunnel.
func (c *client) serveConnect(ctx context.Context, h *head) {
	q := Query{Protocol: ProtocolConnect, Method: h.method}
	upstream, e := c.openFor(ctx, h, q, h.target, 0)
	if upstream == nil {
		c.answer(e, statusOf(e.Reason))
		return
	}
	c.within(c.proxy.cfg.Limits.Head)
	if _, err := c.conn.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		upstream.Close()
		return
	}
	c.tunnel(ctx, upstream, e)
}

// serveForward forwards a request for an absolute URL.
func (c *client) serveForward(ctx context.Context, h *head, req *http.Request) bool {
	scheme, rest, found := strings.Cut(h.target, "://")
	if !found || !strings.EqualFold(scheme, "http") {
		c.reject(h, malformed("this is a proxy: it takes absolute http:// URLs, and CONNECT for everything else"))
		return false
	}
	q := Query{Protocol: ProtocolHTTP, Method: actualMethod(req), Body: h.hasBody()}
	upstream, e := c.openFor(ctx, h, q, authorityOf(rest), httpPort)
	if upstream == nil {
		c.answer(e, statusOf(e.Reason))
		return false
	}
	return c.exchange(ctx, upstream, e, h, req)
}

const httpPort = 80

// authorityOf is the part of a URL between its scheme and its path. It is what is decided about, whatever
// a parser of URLs would take for the host.
func authorityOf(rest string) string {
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		return rest[:i]
	}
	return rest
}

// openFor decides about the authority that a request is for, and connects. The usual port is that of an
// authority without one; 0 means that it must have one.
func (c *client) openFor(ctx context.Context, h *head, q Query, authority string, usual uint16) (net.Conn, Event) {
	name, port, err := splitAuthority(authority)
	q.Host, q.Port = name, port
	if err != nil {
		q.Host = authority
		return nil, c.refuse(q, ReasonInvalidHost, "the host is not acceptable: "+err.Error())
	}
	if port == 0 {
		q.Port = usual
	}
	if err := h.agrees(q); err != nil {
		return nil, c.refuse(q, ReasonHostMismatch, err.Error())
	}
	return c.open(ctx, q)
}

// agrees checks that the Host header means the host that the request is for. Servers
// look at either, and a policy was asked about one.
func (h *head) agrees(q Query) error {
	if !h.hasHost || sameHost(h.host, q) {
		return nil
	}
	return errors.New("the Host header names another host than the request")
}

// sameHost tells whether an authority is the host of a query. A host that is none agrees with
// everything, since the policy has the better reason to refuse it.
func sameHost(authority string, q Query) bool {
	target, err := parseHost(q.Host)
	if err != nil {
		return true
	}
	name, port, err := splitAuthority(authority)
	if err != nil || port != 0 && port != q.Port {
		return false
	}
	named, err := parseHost(name)
	return err == nil && named == target
}

// actualMethod is the method that a server may see in a request: some frameworks take it from a header.
func actualMethod(req *http.Request) string {
	for _, name := range []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"} {
		for _, value := range req.Header.Values(name) {
			if method := strings.ToUpper(value); !slices.Contains(readMethods, method) {
				return method
			}
		}
	}
	return req.Method
}
