package egress

import (
	"net/netip"
	"slices"
	"strings"
)

// Protocol says how a client asks.
type Protocol string

// The protocols.
const (
	// ProtocolHTTP is a request with an absolute URL, whose method and headers are seen.
	ProtocolHTTP Protocol = "HTTP"
	// ProtocolConnect is a tunnel by HTTP CONNECT.
	ProtocolConnect Protocol = "CONNECT"
	// ProtocolSOCKS is a tunnel by SOCKS5.
	ProtocolSOCKS Protocol = "SOCKS5"
)

// Reason is the machine-readable reason of a decision.
type Reason string

// The reasons of a decision about a host.
const (
	// ReasonAllowed means that the host may be reached.
	ReasonAllowed Reason = "Allowed"
	// ReasonNotAllowed means that no entry of the policy allows the host.
	ReasonNotAllowed Reason = "NotAllowed"
	// ReasonDenied means that an entry of the policy denies the host or the address that it has.
	ReasonDenied Reason = "Denied"
	// ReasonAddress means that the address is a special or a guarded one, and that the policy does not list it.
	ReasonAddress Reason = "AddressNotAllowed"
	// ReasonMethod means that the policy's methods are Limited and this would do more than read.
	ReasonMethod Reason = "MethodNotAllowed"
	// ReasonInvalidHost means that the host is no name and no address, or that the port is none.
	ReasonInvalidHost Reason = "InvalidHost"
	// ReasonHostMismatch means that a request names two different hosts.
	ReasonHostMismatch Reason = "HostMismatch"
	// ReasonServerName means that a TLS client asked, through a tunnel, for another name than the tunnel's.
	ReasonServerName Reason = "ServerNameMismatch"
	// ReasonNoPolicy means that no rules hold for the client.
	ReasonNoPolicy Reason = "NoPolicy"
)

// Query is a question about a host.
type Query struct {
	Protocol Protocol
	// Method is the method of ProtocolHTTP.
	Method string
	// Body says whether the request has one, for ProtocolHTTP.
	Body bool
	// Host is the host in any spelling, without a port.
	Host string
	Port uint16
	// Addresses are those that the name resolved to; none before it was resolved, and none for an address.
	Addresses []netip.Addr
}

// Decision answers a Query.
type Decision struct {
	Allowed bool
	Reason  Reason
	// Message says the reason to people.
	Message string
	// Rule is the entry of the policy that decided, as field and text; empty where none did.
	Rule string
	// Host is the host in its normal form; empty if it has none.
	Host string
	// Address is the address that was refused, or the host itself where that is an address.
	Address netip.Addr
}

// Decide says whether a host may be reached. It is a pure function of its input. For a name the answer holds for
// exactly the addresses of the query; without any it says whether the name may be resolved.
func (r *Rules) Decide(q Query) Decision {
	if r == nil {
		return Decision{Reason: ReasonNoPolicy, Message: "no network policy holds for this client"}
	}
	h, err := parseHost(q.Host)
	switch {
	case err != nil:
		return Decision{Reason: ReasonInvalidHost, Message: "the host is not acceptable: " + err.Error()}
	case q.Port == 0:
		return Decision{Reason: ReasonInvalidHost, Message: "the port is not acceptable: it is a number from 1 to 65535", Host: h.String()}
	}
	d := Decision{Host: h.String(), Address: h.addr}
	if h.addr.IsValid() {
		d = r.decideAddress(d, q.Port)
	} else {
		d = r.decideName(d, q)
	}
	if d.Allowed {
		d = r.decideMethod(d, q)
	}
	return d
}

func (r *Rules) decideName(d Decision, q Query) Decision {
	if p, found := r.deny.name(d.Host, q.Port); found {
		return d.denied(p, q.Port)
	}
	p, found := r.allow.name(d.Host, q.Port)
	if !found {
		return d.notAllowed(q.Port)
	}
	for _, addr := range q.Addresses {
		if refused, bad := r.refuseDestination(d, addr, q.Port); bad {
			return refused
		}
	}
	return d.allowedBy(p, q.Port)
}

func (r *Rules) decideAddress(d Decision, port uint16) Decision {
	if refused, bad := r.refuseDestination(d, d.Address, port); bad {
		return refused
	}
	for _, addr := range destinations(d.Address) {
		if p, found := r.allow.address(addr, port); found {
			return d.allowedBy(p, port)
		}
	}
	return d.notAllowed(port)
}

// refuseDestination refuses an address that is denied or that may only be reached where the policy lists it.
func (r *Rules) refuseDestination(d Decision, addr netip.Addr, port uint16) (Decision, bool) {
	d.Address = addr
	if !addr.IsValid() {
		d.Reason, d.Message = ReasonAddress, "an address of "+d.Host+" is not valid"
		return d, true
	}
	for _, end := range destinations(addr) {
		if p, found := r.deny.address(end, port); found {
			return d.denied(p, port), true
		}
		if obstacle, found := r.obstacle(end, port); found {
			d.Reason = ReasonAddress
			d.Message = d.describe(port) + " is not allowed: " + end.String() + " is " + obstacle.Name + ", and the policy does not list it"
			return d, true
		}
	}
	return d, false
}

func (r *Rules) decideMethod(d Decision, q Query) Decision {
	if r.methods == FullMethods {
		return d
	}
	if q.Protocol == ProtocolHTTP && slices.Contains(readMethods, q.Method) && !q.Body {
		return d
	}
	d.Allowed, d.Reason, d.Rule = false, ReasonMethod, `network.methods "Limited"`
	if q.Protocol != ProtocolHTTP {
		d.Message = "a tunnel to " + d.Host + portSuffix(q.Port) + " is not allowed: the policy's methods are Limited and a tunnel hides its methods"
		return d
	}
	d.Message = "the request is not allowed: the policy's methods are Limited to GET, HEAD and OPTIONS without a body"
	return d
}

// readMethods are those that LimitedMethods allows.
var readMethods = []string{"GET", "HEAD", "OPTIONS"}

// DecideServerName says whether a TLS client that reached a host through a tunnel may ask for a name
// there. It is a pure function of its input. Several names share an address, so that without this check a tunnel to an
// allowed one would lead to the others.
func (r *Rules) DecideServerName(tunnel string, port uint16, name string) Decision {
	if r == nil {
		return Decision{Reason: ReasonNoPolicy, Message: "no network policy holds for this client"}
	}
	from, err := parseHost(tunnel)
	if err != nil {
		return Decision{Reason: ReasonInvalidHost, Message: "the host is not acceptable: " + err.Error()}
	}
	to, err := parseHost(name)
	if err != nil {
		return Decision{Reason: ReasonServerName, Message: "the server name of the TLS client is not acceptable: " + err.Error()}
	}
	d := Decision{Host: to.String(), Address: to.addr}
	if p, found := r.deny.name(to.name, port); found {
		return d.denied(p, port)
	}
	// A policy that lists an address trusts it with every name.
	if from == to || from.addr.IsValid() {
		d.Allowed, d.Reason, d.Message = true, ReasonAllowed, "the server name is the tunnel's"
		return d
	}
	d.Reason = ReasonServerName
	d.Message = "the tunnel leads to " + from.String() + " and the TLS client asks for " + to.String() + " in it"
	return d
}

// describe spells the host, with the address it resolved to where that is something else.
func (d Decision) describe(port uint16) string {
	text := d.Host + portSuffix(port)
	if strings.Contains(d.Host, ":") {
		text = "[" + d.Host + "]" + portSuffix(port)
	}
	if d.Address.IsValid() && d.Address.String() != d.Host {
		text += " at " + d.Address.String()
	}
	return text
}

func (d Decision) denied(p pattern, port uint16) Decision {
	d.Reason, d.Rule = ReasonDenied, p.String()
	d.Message = d.describe(port) + " is denied by " + d.Rule
	return d
}

func (d Decision) allowedBy(p pattern, port uint16) Decision {
	d.Allowed, d.Reason, d.Rule = true, ReasonAllowed, p.String()
	d.Message = d.describe(port) + " is allowed by " + d.Rule
	return d
}

func (d Decision) notAllowed(port uint16) Decision {
	d.Reason = ReasonNotAllowed
	d.Message = d.describe(port) + " is not allowed: the policy's list of allowed domains does not hold it"
	return d
}
