// Package egress is a proxy that lets a session's commands reach the hosts that their
// profile lists, and nothing else.
//
// # The flow
//
// [Compile] makes [Rules] of a [Policy] once. [Rules.Decide] is a pure function: it says whether a
// host may be reached, by which entry and why, and serves the proxy and whoever explains a policy alike.
// A [Proxy] asks it for every request:
//
//	rules, err := egress.Compile(policy, guarded) // err: *FieldError
//	proxy, err := egress.New(egress.Config{Rules: func(netip.AddrPort) *egress.Rules { return rules }, OnEvent: record})
//	go func() { served <- proxy.Serve(ctx, listener) }()
//	environment = append(environment, egress.Environ(address)...)
//	...
//	proxy.Close(ctx) // lets requests end until ctx does, then breaks them; nothing is left
//
// One listener speaks HTTP (CONNECT and absolute URLs) and SOCKS5 without authentication; the first byte tells
// them apart. A request passes these steps, and stops at the first that refuses:
//
//	read       within the limits of time and size, by the letter of the specification
//	normalise  case, trailing dot, Unicode and every spelling of an address
//	decide     by the lists; nothing is resolved for a host that is refused
//	resolve    by the proxy, as an absolute name
//	decide     each address that the name has; one that is refused refuses the name
//	dial       an address that was decided about, and no other
//	relay      bytes both ways; a TLS client that then asks for another name is cut off
//
// # Invariants
//
//   - Nothing is dialled that Decide would refuse, whatever the bytes of the request.
//   - Each decision is one [Event], and it is told before the client can see the answer. A refusal carries the
//     same reason to the client: in the status line, a header and the body, or as a reply code of SOCKS.
//   - A request is forwarded with the host that was decided about, never with the one that was spelled.
//   - Without rules for a client nothing is allowed.
//   - Time, size and number of everything that a client or a server sends are bounded; see [Limits].
//   - Every goroutine belongs to a Serve, which returns after the last of them.
//
// What is inside of a tunnel is not looked at, except for the name in a TLS client's first message. The methods
// of HTTPS are hidden, so a policy with LimitedMethods allows no tunnels.
//
// The decisions and their reasons are in docs/design/egress.md.
package egress
