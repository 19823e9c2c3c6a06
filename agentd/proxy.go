package agentd

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"execsession.dev/agentd/config"
	"execsession.dev/sandbox"
	"execsession.dev/sandbox/egress"
)

// proxy is the session's egress proxy. It listens from the first policy that wants one
// to the end of agentd, at one address: commands that outlive a change of the policy
// reach no other, and what they may do there is what the present policy says. Its
// zero value listens nowhere.
type proxy struct {
	// rules are those in force; nil allows nothing.
	rules atomic.Pointer[egress.Rules]
	// The others are guarded by the policy's changeMu.
	server  *egress.Proxy
	address netip.AddrPort
	stop    context.CancelFunc
	served  chan struct{}
}

// listen starts the proxy unless it runs, and returns its address.
func (p *proxy) listen(onEvent func(egress.Event)) (netip.AddrPort, error) {
	if p.server != nil {
		return p.address, nil
	}
	server, err := egress.New(egress.Config{Rules: func(netip.AddrPort) *egress.Rules { return p.rules.Load() }, OnEvent: onEvent})
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("making the proxy: %w", err)
	}
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("listening for the proxy: %w", err)
	}
	address := netip.MustParseAddrPort(listener.Addr().String())
	ctx, stop := context.WithCancel(context.Background())
	p.server, p.address, p.stop, p.served = server, address, stop, make(chan struct{})
	go func() { // ends with close
		defer close(p.served)
		// An error means that it accepts no more: then nothing leaves.
		_ = server.Serve(ctx, listener)
	}()
	return address, nil
}

// close breaks what goes on: the commands have ended or are about to.
func (p *proxy) close() {
	if p.server == nil {
		return
	}
	p.stop()
	<-p.served
}

// proxyRules guard the addresses of the cluster and those of this pod beside what the proxy guards by itself.
func proxyRules(network sandbox.Network, guarded []egress.Range) (*egress.Rules, error) {
	own, err := egress.OwnRanges()
	if err != nil {
		return nil, fmt.Errorf("making the proxy's rules: %w", err)
	}
	return config.EgressRules(network, slices.Concat(guarded, own))
}

// proxyEnvironment adds the variables by which programs find the proxy; the policy's own win.
func proxyEnvironment(address netip.AddrPort, set map[string]string) map[string]string {
	if !address.IsValid() {
		return set
	}
	all := make(map[string]string)
	for _, variable := range egress.Environ(address) {
		name, value, _ := strings.Cut(variable, "=")
		all[name] = value
	}
	maps.Copy(all, set)
	return all
}
