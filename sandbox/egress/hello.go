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

	// A record of TLS has a type, a version of two bytes and a length of two. The first record that a server
	// goes on after may have any of these types; what it holds begins with firstByte: a hello, a warning, a
	// change of ciphers and a heartbeat's request alike.
	firstRecord     = 20
	lastRecord      = 24
	recordHeartbeat = 24 // the kind that goes on after an answer, too
	firstByte       = 1
	recordHeader    = 5
	maxMajor        = 0x0f // of the versions that servers take from a client that has none yet
	maxRecordUpper  = 0x48 // the upper byte of the longest length: 16 KiB and what encryption may add

	// The hello of SSL 2, with which some clients offer TLS: a length with the upper bit set, the message's type, the version.
	oldHello      = 0x80
	oldHelloMajor = 3
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

// beginsTLS reads as far as it takes to tell whether a stream begins with TLS as the most tolerant of the servers reads it:
// some go on after an empty record, a warning or an odd version. It stops at the first byte that rules that
// out, because the server of another protocol may wait for just that.
func beginsTLS(r io.Reader) (bool, error) {
	var seen []byte
	for {
		var next [1]byte
		if _, err := io.ReadFull(r, next[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return false, nil
			}
			return false, err
		}
		seen = append(seen, next[0])
		look := looksLikeRecord
		if seen[0] >= oldHello {
			look = looksLikeOldHello
		}
		if isTLS, decided := look(seen); decided {
			return isTLS, nil
		}
	}
}

// looksLikeRecord judges the newest of the bytes that a stream begins with. Text never comes past the first; a
// binary protocol that begins with a length may come further.
func looksLikeRecord(seen []byte) (isTLS, decided bool) {
	newest := seen[len(seen)-1]
	switch len(seen) {
	case 1:
		return false, newest < firstRecord || newest > lastRecord
	case 2:
		return false, newest > maxMajor
	case 3:
		return false, false // the minor version, of which no server makes anything
	case 4:
		return false, newest > maxRecordUpper
	case recordHeader:
		empty := seen[3] == 0 && newest == 0
		return empty, empty
	default:
		return newest == firstByte || seen[0] == recordHeartbeat, true
	}
}

// looksLikeOldHello does the same for the hello of SSL 2. It has no name that could be read, so it is never passed on.
func looksLikeOldHello(seen []byte) (isTLS, decided bool) {
	newest := seen[len(seen)-1]
	switch len(seen) {
	case 1, 2: // the length
		return false, false
	case 3:
		return false, newest != firstByte
	default:
		return newest >= oldHelloMajor, true
	}
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
