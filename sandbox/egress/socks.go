package egress

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
)

// The numbers of SOCKS (RFC 1928).
const (
	socks4 = 4
	socks5 = 5

	socksNoAuth       = 0
	socksNoMethod     = 0xff
	socksConnect      = 1
	socksIPv4         = 1
	socksDomain       = 3
	socksIPv6         = 4
	socks4Rejected    = 0x5b
	socksHeader       = 4 // bytes: version, command, reserved, type of address
	socksReplySuccess = 0
)

// socksReplyOf is the reply code for a reason.
func socksReplyOf(reason Reason) byte {
	switch reason {
	case ReasonInvalidRequest, ReasonInternal:
		return 1 // general failure
	case ReasonUnresolvable, ReasonUnreachable:
		return 4 // host unreachable
	case ReasonConnectionRefused:
		return 5
	case ReasonTimedOut:
		return 6 // "TTL expired" is the nearest that there is
	default:
		return 2 // not allowed by the rules
	}
}

const (
	socksNoCommand = 7
	socksNoAddress = 8
)

// serveSOCKS serves a tunnel.
func (c *client) serveSOCKS(ctx context.Context) {
	if !c.greetSOCKS() {
		return
	}
	q, ok := c.readSOCKS()
	if !ok {
		return
	}
	upstream, e := c.open(ctx, q)
	if upstream == nil {
		c.replySOCKS(socksReplyOf(e.Reason)) //nolint:errcheck // the connection ends either way
		c.drain()
		return
	}
	if c.replySOCKS(socksReplySuccess) != nil {
		upstream.Close()
		return
	}
	c.tunnel(ctx, upstream, e)
}

// greetSOCKS agrees on no authentication.
func (c *client) greetSOCKS() bool {
	var fixed [2]byte
	if _, err := io.ReadFull(c.reader, fixed[:]); err != nil {
		return c.brokenSOCKS(err)
	}
	methods := make([]byte, fixed[1])
	if _, err := io.ReadFull(c.reader, methods); err != nil {
		return c.brokenSOCKS(io.ErrUnexpectedEOF)
	}
	if !bytes.Contains(methods, []byte{socksNoAuth}) {
		c.refuse(Query{Protocol: ProtocolSOCKS}, ReasonUnsupported, "the proxy takes SOCKS clients without authentication only")
		c.conn.Write([]byte{socks5, socksNoMethod}) //nolint:errcheck // the connection ends either way
		c.drain()
		return false
	}
	_, err := c.conn.Write([]byte{socks5, socksNoAuth})
	return err == nil
}

// readSOCKS reads the request; false means that it was refused and answered.
func (c *client) readSOCKS() (Query, bool) {
	q := Query{Protocol: ProtocolSOCKS}
	var header [socksHeader]byte
	if _, err := io.ReadFull(c.reader, header[:]); err != nil || header[0] != socks5 {
		return q, c.brokenSOCKS(err)
	}
	var size int
	switch header[3] {
	case socksIPv4:
		size = 4
	case socksIPv6:
		size = 16
	case socksDomain:
		length, err := c.reader.ReadByte()
		if err != nil {
			return q, c.brokenSOCKS(io.ErrUnexpectedEOF)
		}
		size = int(length)
	default:
		return q, c.unsupportedSOCKS(q, socksNoAddress, "the type of address is none of SOCKS")
	}
	address := make([]byte, size+2) // and the port
	if _, err := io.ReadFull(c.reader, address); err != nil {
		return q, c.brokenSOCKS(io.ErrUnexpectedEOF)
	}
	q.Port = binary.BigEndian.Uint16(address[size:])
	q.Host = string(address[:size])
	if header[3] != socksDomain {
		addr, _ := netip.AddrFromSlice(address[:size]) // of 4 or 16 bytes
		q.Host = addr.String()
	}
	if header[1] != socksConnect {
		return q, c.unsupportedSOCKS(q, socksNoCommand, "the proxy has the SOCKS command CONNECT only: it neither listens nor carries UDP")
	}
	return q, true
}

// brokenSOCKS refuses a request that broke off. A client that went away between two messages asked for nothing, and is not refused.
func (c *client) brokenSOCKS(err error) bool {
	if errors.Is(err, io.EOF) {
		return false
	}
	c.refuse(Query{Protocol: ProtocolSOCKS}, ReasonInvalidRequest, "the SOCKS request is malformed, or did not come in time")
	c.replySOCKS(socksReplyOf(ReasonInvalidRequest)) //nolint:errcheck // the connection ends either way
	c.drain()
	return false
}

func (c *client) unsupportedSOCKS(q Query, code byte, message string) bool {
	c.refuse(q, ReasonUnsupported, message)
	c.replySOCKS(code) //nolint:errcheck // the connection ends either way
	c.drain()
	return false
}

// replySOCKS replies without the address that the proxy connects from, which is nobody's business.
func (c *client) replySOCKS(code byte) error {
	c.within(c.proxy.cfg.Limits.Head)
	_, err := c.conn.Write([]byte{socks5, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0})
	return err
}

// refuseSOCKS4 answers the older protocol in its own words.
func (c *client) refuseSOCKS4() {
	c.refuse(Query{}, ReasonUnsupported, "the proxy speaks SOCKS5, not SOCKS4")
	c.conn.Write([]byte{0, socks4Rejected, 0, 0, 0, 0, 0, 0}) //nolint:errcheck // the connection ends either way
	c.drain()
}
