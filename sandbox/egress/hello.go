package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"
)

const (
	// maxHello bounds a TLS client's first message; with keys that resist quantum computers it has about 2 KiB.
	maxHello = 32 << 10

	recordHandshake = 22
	messageHello    = 1
	helloPrefix     = 6 // bytes: the record's type, version and length, the message's type
)

// accessDenied is the TLS alert that a server sends to a client that it does not want.
var accessDenied = []byte{21, 3, 3, 0, 2, 2, 49}

// checkHello looks at the first bytes that the client sends into a tunnel. Where they begin TLS, the name that is asked for
// must be one that the tunnel may lead to; else the client gets an alert and the tunnel ends with errCutOff. The
// reader that it returns has everything, from the first byte on.
func (c *client) checkHello(ctx context.Context, source io.Reader, down *endpoint, e Event) (io.Reader, error) {
	seen := new(bytes.Buffer)
	isTLS, err := beginsTLS(io.TeeReader(source, seen))
	if err != nil {
		return nil, err
	}
	rest := func() io.Reader { return io.MultiReader(seen, source) }
	if !isTLS {
		return rest(), nil
	}
	begin := bytes.Clone(seen.Bytes())
	limited := &io.LimitedReader{R: source, N: maxHello}
	name, err := serverName(ctx, io.MultiReader(bytes.NewReader(begin), io.TeeReader(limited, seen)))
	var d Decision
	switch {
	case errors.Is(err, errNoHello):
		d = Decision{Reason: ReasonServerName, Message: "the TLS client's first message cannot be read"}
	case err != nil:
		return nil, err
	case name == "":
		return rest(), nil
	default:
		d = c.proxy.cfg.Rules(c.remote).DecideServerName(e.Host, e.Port, name)
	}
	if d.Allowed {
		return rest(), nil
	}
	c.tellDecision(Query{Protocol: e.Protocol, Method: e.Method, Host: name, Port: e.Port}, d, Refused)
	down.Write(accessDenied) //nolint:errcheck // the tunnel ends either way
	return nil, errCutOff
}

// beginsTLS reads as far as it takes to tell whether a stream begins with a TLS client's first message. It
// stops at the first byte that is none, because the server of another protocol may wait for just that.
func beginsTLS(r io.Reader) (bool, error) {
	var prefix [helloPrefix]byte
	for i := range prefix {
		if _, err := io.ReadFull(r, prefix[i:i+1]); err != nil {
			if errors.Is(err, io.EOF) {
				return false, nil
			}
			return false, err
		}
		switch {
		case i == 0 && prefix[0] != recordHandshake, i == 1 && prefix[1] != 3, i == 5 && prefix[5] != messageHello:
			return false, nil
		}
	}
	return true, nil
}

// errNoHello means that bytes that begin like a TLS client's first message are none that can be read. A server
// may read it nevertheless, so that it can not be passed on.
var errNoHello = errors.New("no readable TLS hello")

// serverName reads a TLS client's first message with the parser of the TLS library and returns the name it asks for.
func serverName(ctx context.Context, r io.Reader) (string, error) {
	name, found := "", false
	errFound := errors.New("found")
	source := &helloReader{r: r}
	err := tls.Server(source, &tls.Config{
		MinVersion: tls.VersionTLS12, // of no consequence: the handshake stops before a version is chosen
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name, found = hello.ServerName, true
			return nil, errFound
		},
	}).HandshakeContext(ctx)
	switch {
	case found:
		return name, nil
	case source.err != nil && !errors.Is(source.err, io.EOF):
		return "", source.err
	default:
		return "", errors.Join(errNoHello, err)
	}
}

// helloReader is a connection that only reads, and keeps the error that ended it.
type helloReader struct {
	net.Conn
	r   io.Reader
	err error
}

func (h *helloReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	if err != nil {
		h.err = err
	}
	return n, err
}

func (h *helloReader) Write(p []byte) (int, error)      { return len(p), nil }
func (h *helloReader) Close() error                     { return nil }
func (h *helloReader) SetDeadline(time.Time) error      { return nil }
func (h *helloReader) SetReadDeadline(time.Time) error  { return nil }
func (h *helloReader) SetWriteDeadline(time.Time) error { return nil }
