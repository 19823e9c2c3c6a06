package sandbox

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// unixStays is what no network mode changes.
var unixStays = map[string]string{
	"Unix socket": "", "Unix pair": "", "a Unix socket in the workspace": "", "its own abstract socket": "",
	"the agent's abstract socket": "EPERM", "netlink route": "", "netlink audit": "EAFNOSUPPORT", "vsock": "EAFNOSUPPORT",
	"UDP": "EACCES", "UDP over IPv6": "EACCES", "ping socket": "EACCES", "fast open": "EPERM", "fast open by option": "EPERM",
}

// networkOutcomes are what the attempts meet in the modes that a supervisor brokers.
var networkOutcomes = map[NetworkMode]map[string]string{
	LoopbackNetwork: {
		"dial the proxy": "", "connect to the proxy": "", "connect to the proxy by IPv6": "", "dial another port": "", "connect to any": "",
		"connect outside": "EACCES", "connect outside, mapped": "EACCES", "connect outside, IPv6": "EACCES",
		"connect outside, the proxy's port": "EACCES", "connect to the metadata service": "EACCES",
		"connect with a short address": "EINVAL", "connect with no address": "EFAULT",
		"leave the device": "EPERM", "leave the device by number": "EPERM", "leave the device by a disconnect": "",
		"serve on every address": "", "serve on loopback": "", "fill the table": "EMFILE", "flags of a new socket": "",
		"TCP": "", "TCP over IPv6": "", "TCP, nonblocking": "", "MPTCP": "EPROTONOSUPPORT", "SCTP": "EPROTONOSUPPORT", "raw socket": "EPROTONOSUPPORT",
	},
	ProxyNetwork: {
		"dial the proxy": "", "connect to the proxy": "", "connect to the proxy by IPv6": "", "dial another port": "EACCES", "connect to any": "EACCES",
		"connect outside": "EACCES", "connect outside, mapped": "EACCES", "connect outside, IPv6": "EACCES",
		"connect outside, the proxy's port": "EACCES", "connect to the metadata service": "EACCES",
		"connect with a short address": "EINVAL", "connect with no address": "EFAULT",
		"leave the device": "EPERM", "leave the device by number": "EPERM", "leave the device by a disconnect": "",
		"serve on every address": "EACCES", "serve on loopback": "EACCES", "fill the table": "EMFILE", "flags of a new socket": "", "swap the address": "",
		"TCP": "", "TCP over IPv6": "", "TCP, nonblocking": "", "MPTCP": "EPROTONOSUPPORT", "SCTP": "EPROTONOSUPPORT", "raw socket": "EPROTONOSUPPORT",
	},
	NoNetwork: {
		"dial the proxy": "EACCES", "connect to the proxy": "EACCES", "dial another port": "EACCES", "connect outside": "EACCES", "connect outside, IPv6": "EACCES",
		"serve on loopback": "EACCES", "flags of a new socket": "EACCES", "TCP": "EACCES", "MPTCP": "EACCES",
	},
}

// networkRules says by which rule what is refused is told; kernelRefuses is refused by the kernel without us.
var (
	networkRules = map[string]string{
		"dial the proxy": "connect", "connect to the proxy": "connect", "dial another port": "connect", "connect to any": "connect",
		"connect outside": "connect", "connect outside, mapped": "connect", "connect outside, IPv6": "connect",
		"connect outside, the proxy's port": "connect", "connect to the metadata service": "connect",
		"serve on every address": "bind", "serve on loopback": "bind",
	}
	networkAddresses = map[string]string{
		"connect outside": outsider, "connect outside, mapped": "[::ffff:203.0.113.1]:80", "connect outside, IPv6": "[2001:db8::1]:443",
		"connect to the metadata service": "169.254.169.254:80", "serve on loopback": "127.0.0.1:0", "serve on every address": "0.0.0.0:0",
	}
)

func TestNetworkModes(t *testing.T) {
	requireABI(t, 6)
	requireDenials(t)
	for mode, outcomes := range networkOutcomes {
		for _, asRoot := range []bool{false, true} {
			name := string(mode)
			if asRoot {
				name += " as root"
			}
			t.Run(name, func(t *testing.T) {
				if raceDetector && (asRoot || mode != ProxyNetwork) {
					t.Skip("under the race detector one mode is enough: the agent's code is the same for all")
				}
				s := newStage(t, asRoot)
				want := maps.Clone(unixStays)
				maps.Copy(want, outcomes)
				order := agentOrder{Policy: with(func(p *Policy) { p.Network.Mode = mode }), Layout: s.layout(), Attempts: slices.Sorted(maps.Keys(want))}
				answer := runAgent(t, s, order, asRoot)
				if answer.CompileError != "" || !answer.Report.Enforced || answer.Report.Network != string(mode) {
					t.Fatalf("compile error %q, report %+v", answer.CompileError, answer.Report)
				}
				compareOutcomes(t, name, want, answer)
				compareNetworkDenials(t, mode, want, answer)
			})
		}
	}
}

// compareNetworkDenials: what a rule of ours refused is told with where it led; what the kernel refused, or its
// walls, is not.
func compareNetworkDenials(t *testing.T, mode NetworkMode, want map[string]string, answer agentAnswer) {
	t.Helper()
	for name, text := range want {
		got := answer.Outcomes[name].Denials
		rule := networkRules[name]
		if mode == NoNetwork && (networkAttempts[name] != nil || observedRules[name] == "socket") {
			rule = "socket"
		} else if observedRules[name] != "" {
			rule = observedRules[name]
		}
		if text == "" || rule == "" {
			if len(got) > 0 && name != "swap the address" {
				t.Errorf("%s: was refused nothing by us, yet there is %+v", name, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Rule != rule {
			t.Errorf("%s: got %+v, want one denial by %q", name, got, rule)
			continue
		}
		if address := networkAddresses[name]; address != "" && rule != "socket" && got[0].Address != address {
			t.Errorf("%s: the denial tells the address %q, want %q", name, got[0].Address, address)
		}
	}
}

func TestMayConnect(t *testing.T) {
	proxy := netip.MustParseAddrPort("127.0.0.1:3128")
	cases := map[string]struct{ loopback, proxy bool }{
		"127.0.0.1:3128": {true, true}, "[::ffff:127.0.0.1]:3128": {true, true}, "127.0.0.1:80": {true, false}, "127.0.0.2:3128": {true, false},
		"[::1]:3128": {true, false}, "0.0.0.0:3128": {true, false}, "[::]:3128": {true, false}, "10.0.0.1:3128": {false, false},
		"[fe80::1]:3128": {false, false}, "169.254.169.254:80": {false, false}, "[::ffff:10.0.0.1]:3128": {false, false}, "[64:ff9b::7f00:1]:3128": {false, false},
	}
	for address, want := range cases {
		to := netip.MustParseAddrPort(address)
		if got := mayConnect(LoopbackNetwork, netip.AddrPort{}, to); got != want.loopback {
			t.Errorf("Loopback, %s: got %v", address, got)
		}
		if got := mayConnect(ProxyNetwork, proxy, to); got != want.proxy {
			t.Errorf("Proxy, %s: got %v", address, got)
		}
		if mayConnect(NoNetwork, proxy, to) || mayConnect(OpenNetwork, proxy, to) {
			t.Errorf("%s: only brokered modes have a say", address)
		}
	}
}

// TestBrokeredModesNeed lists what Loopback and Proxy cannot do without; None holds instead, or nothing runs.
func TestBrokeredModesNeed(t *testing.T) {
	s := newStage(t, true)
	able := newKernel
	able.UserNotify, able.BindToDevice = true, true
	cases := map[string]struct {
		mode   NetworkMode
		change func(*Capabilities, *Layout)
		reason string
	}{
		"Loopback with all":        {LoopbackNetwork, func(*Capabilities, *Layout) {}, ""},
		"Loopback needs no ports":  {LoopbackNetwork, func(c *Capabilities, _ *Layout) { c.LandlockABI = 2 }, ""},
		"Proxy with all":           {ProxyNetwork, func(*Capabilities, *Layout) {}, ""},
		"Proxy on ABI 4":           {ProxyNetwork, func(c *Capabilities, _ *Layout) { c.LandlockABI = 4 }, ""},
		"Proxy on ABI 3":           {ProxyNetwork, func(c *Capabilities, _ *Layout) { c.LandlockABI = 3 }, "Landlock ABI 4 is missing"},
		"Proxy without proxy":      {ProxyNetwork, func(_ *Capabilities, l *Layout) { l.Proxy = netip.AddrPort{} }, "no proxy was started"},
		"a supervisor above":       {ProxyNetwork, func(c *Capabilities, _ *Layout) { c.UserNotify, c.NotifyTaken = false, true }, "taken"},
		"no supervisor":            {LoopbackNetwork, func(c *Capabilities, _ *Layout) { c.UserNotify = false }, "no supervisor"},
		"no binding to the device": {LoopbackNetwork, func(c *Capabilities, _ *Layout) { c.BindToDevice = false }, "loopback device"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			caps, layout := able, s.layout()
			layout.Proxy = netip.MustParseAddrPort("127.0.0.1:3128")
			c.change(&caps, &layout)
			p, err := newPlan(with(func(p *Policy) { p.Network.Mode = c.mode }), layout, caps, unlimited)
			check(t, err)
			i := slices.IndexFunc(p.gaps, func(g Gap) bool { return g.Field == "network.mode" })
			switch {
			case c.reason == "" && (i >= 0 || p.network != c.mode):
				t.Errorf("got %s with the gaps %v", p.network, p.gaps)
			case c.reason != "" && (i < 0 || !strings.Contains(p.gaps[i].Reason, c.reason) || p.network != NoNetwork):
				t.Errorf("got %s with the gaps %v, want None for want of %q", p.network, p.gaps, c.reason)
			}
		})
	}
}
