package sandbox

import (
	"net/netip"
	"strconv"
)

// planNetwork replaces a mode that cannot be enforced by one that is narrower, never
// wider.
//
// Loopback and Proxy are walls first: a process gets no socket for the internet but
// from the supervisor, and that one is bound to the loopback device, which nobody without
// CAP_NET_RAW can undo; with Proxy, Landlock adds the port. Behind the walls it harms nobody
// that the supervisor's look at an address is a look at memory that may change: it is
// there to refuse at once, with a reason, what would otherwise run into the wall.
func (p *plan) planNetwork(policy Policy, layout Layout, caps Capabilities) {
	mode := policy.Network.Mode
	if mode != LoopbackNetwork && mode != ProxyNetwork {
		return
	}
	reason := ""
	switch {
	case caps.NotifyTaken:
		reason = "a supervisor above this process has taken the kernel's only place for one, so that nobody can hand out sockets"
	case !caps.UserNotify:
		reason = "the kernel has no supervisor for filters, so that nobody can hand out sockets"
	case !caps.BindToDevice:
		reason = "the kernel does not let sockets be bound to the loopback device"
	case mode == ProxyNetwork && p.abi < abiPorts:
		reason = "Landlock ABI " + strconv.Itoa(abiPorts) + " is missing, so that nothing bounds the port"
	case mode == ProxyNetwork && !layout.Proxy.IsValid():
		reason = "no proxy was started"
	}
	if reason != "" {
		p.gap("network.mode", string(mode), reason+"; None holds instead")
		p.network = NoNetwork
		return
	}
	if mode == ProxyNetwork {
		p.proxy = layout.Proxy
	}
}

// mayConnect decides about an address of the internet families.
func mayConnect(mode NetworkMode, proxy, to netip.AddrPort) bool {
	address := to.Addr().Unmap()
	switch mode {
	case LoopbackNetwork:
		// The kernel takes the unspecified address for the loopback's.
		return address.IsLoopback() || address.IsUnspecified()
	case ProxyNetwork:
		return address == proxy.Addr().Unmap() && to.Port() == proxy.Port()
	case NoNetwork, OpenNetwork:
	}
	return false
}
