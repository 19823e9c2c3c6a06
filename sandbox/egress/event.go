package egress

import (
	"net/netip"
	"strings"
	"time"
)

// Verdict says what became of a request.
type Verdict string

// The verdicts.
const (
	// Allowed means that the connection was made.
	Allowed Verdict = "Allowed"
	// Refused means that the proxy refused, for the policy or for its own limits.
	Refused Verdict = "Refused"
	// Failed means that the policy allows the host and that it could not be reached.
	Failed Verdict = "Failed"
)

// The reasons of what is not a decision about a host.
const (
	// ReasonInvalidRequest means that the request breaks its protocol or the proxy's limits of size and time.
	ReasonInvalidRequest Reason = "InvalidRequest"
	// ReasonUnsupported means a command or a kind of address of SOCKS that the proxy does not have, or SOCKS4.
	ReasonUnsupported Reason = "UnsupportedCommand"
	// ReasonTooManyConnections means that the proxy has as many connections as it may have.
	ReasonTooManyConnections Reason = "TooManyConnections"
	// ReasonUnresolvable means that the name has no address.
	ReasonUnresolvable Reason = "Unresolvable"
	// ReasonUnreachable means that no address of the host accepts a connection.
	ReasonUnreachable Reason = "Unreachable"
	// ReasonConnectionRefused means that the host refuses connections at the port.
	ReasonConnectionRefused Reason = "ConnectionRefused"
	// ReasonTimedOut means that the DNS, or the host, did not answer in time.
	ReasonTimedOut Reason = "TimedOut"
	// ReasonBadAnswer means that the host's answer is not HTTP.
	ReasonBadAnswer Reason = "BadAnswer"
	// ReasonInternal means an error of the proxy itself.
	ReasonInternal Reason = "InternalError"
)

// Event is one decision of the proxy.
type Event struct {
	Time time.Time
	// Client is the client's end of its connection to the proxy.
	Client netip.AddrPort
	// Protocol is empty where the client was refused before it said one.
	Protocol Protocol
	// Method is the method of a request by HTTP.
	Method string
	// Asked is the host as the client spelled it, at most 256 bytes of it, in valid UTF-8, and
	// without what stands before an @, which may be a password.
	Asked string
	// Host is the host in its normal form; empty if it has none.
	Host string
	Port uint16
	// Address is the address that was connected, or that was refused; the zero one if it did not come to that.
	Address netip.Addr
	Verdict Verdict
	Reason  Reason
	// Rule is the entry of the policy that decided; empty where none did.
	Rule string
	// Message says the reason to people.
	Message string
}

// Usage is what an allowed connection carried, told when it ends.
type Usage struct {
	// Event is the one that told of the connection.
	Event Event
	// Sent and Received are bytes to and from the host.
	Sent, Received int64
	Duration       time.Duration
}

// maxAsked bounds the spelling of a host in an event.
const maxAsked = 256

// quoteAsked makes what a client sent fit for a record.
func quoteAsked(asked string) string {
	if i := strings.LastIndexByte(asked, '@'); i >= 0 {
		asked = "***" + asked[i:]
	}
	if len(asked) > maxAsked {
		asked = asked[:maxAsked]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(asked, "?"))
}
