package egress

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// answering is a DNS that gives the same addresses for every name.
type answering struct {
	*recorder
	addresses []netip.Addr
}

func (a *answering) LookupNetIP(_ context.Context, _, name string) ([]netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lookups = append(a.lookups, name)
	return slices.Clone(a.addresses), nil
}

// FuzzPolicyAndRequest sends any bytes to a proxy with any policy, whose names lead anywhere. What is dialled is held to a
// reading of the policy that shares nothing with the proxy's: the name was allowed and not denied, the address is one that
// it led to, and no address of this machine or of a private network unless the policy lists addresses.
func FuzzPolicyAndRequest(f *testing.F) {
	public, private := []byte{9, 8, 7, 6}, []byte{10, 0, 0, 5}
	for _, request := range fuzzRequests {
		f.Add("**.a.example rebind.example", "no.a.example", []byte(request), public)
	}
	tunnel := func(host string) []byte {
		return []byte("CONNECT " + host + ":443 HTTP/1.1\r\nHost: " + host + ":443\r\n\r\nhello")
	}
	f.Add("*", "a.example", tunnel("A.Example."), public)
	f.Add("*.example:443", "", tunnel("x.example"), private)
	f.Add("x.example", "*", tunnel("x.example"), public)
	f.Add("x.example", "9.8.7.0/24", tunnel("x.example"), public)
	f.Add("x.example", "", tunnel("x.example"), []byte{127, 0, 0, 1})
	f.Add("x.example", "", tunnel("x.example"), []byte{169, 254, 169, 254})
	f.Add("x.example", "", tunnel("x.example"), []byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x7f\x00\x00\x01"))
	f.Add("x.example", "", tunnel("x.example"), []byte("\x00\x64\xff\x9b\x00\x00\x00\x00\x00\x00\x00\x00\x0a\x00\x00\x05"))
	f.Add("10.0.0.0/8 x.example", "", tunnel("x.example"), private)
	f.Add("", "", tunnel("127.1"), public)
	f.Add("*", "", tunnel("2130706433"), public)
	f.Add("*", "", tunnel("0177.0.0.1"), public)
	f.Fuzz(func(t *testing.T, allow, deny string, request, resolved []byte) {
		policy := Policy{AllowedDomains: strings.Fields(allow), DeniedDomains: strings.Fields(deny), Methods: FullMethods}
		rules, err := Compile(policy, clusterRanges)
		if err != nil {
			return
		}
		r := &answering{recorder: &recorder{answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"}}
		if address, ok := netip.AddrFromSlice(resolved); ok {
			r.addresses = []netip.Addr{address}
		}
		proxy, err := New(Config{Rules: func(netip.AddrPort) *Rules { return rules }, OnEvent: r.OnEvent, Resolver: r, Dial: r.dial})
		if err != nil {
			t.Fatal(err)
		}
		c := newClient(proxy, &scripted{input: bytes.NewReader(request)})
		proxy.clients[c] = true
		c.serve(t.Context())
		proxy.forget(c)
		checkReach(t, policy, r)
	})
}

func checkReach(t *testing.T, policy Policy, r *answering) {
	t.Helper()
	for _, name := range r.lookups {
		plain := strings.TrimSuffix(name, ".")
		if !listsName(policy.AllowedDomains, plain, true) {
			t.Errorf("%q was looked up, and %q does not hold it", name, policy.AllowedDomains)
		}
		if listsName(policy.DeniedDomains, plain, false) {
			t.Errorf("%q was looked up, and %q denies it", name, policy.DeniedDomains)
		}
	}
	for _, to := range r.dials {
		byName := slices.Contains(r.addresses, to.Addr()) || slices.ContainsFunc(r.addresses, func(a netip.Addr) bool { return a.Unmap() == to.Addr().Unmap() })
		if !listsAddresses(policy.AllowedDomains) && (!byName || len(r.lookups) == 0) {
			t.Errorf("%v was dialled, which no allowed name led to", to)
		}
		if !listsAddresses(policy.AllowedDomains) && !plainlyPublic(to.Addr()) {
			t.Errorf("%v was dialled under %+v", to, policy)
		}
		if !slices.ContainsFunc(r.events, func(e Event) bool { return e.Verdict != Refused && e.Address == to.Addr() && e.Port == to.Port() }) {
			t.Errorf("%v was dialled, and no event tells of it: %+v", to, r.events)
		}
	}
}

// listsName says whether a list holds a name. Entries with a port count as the caller says; what is not ASCII, and so may
// stand for another spelling, counts the same way.
func listsName(entries []string, name string, doubtful bool) bool {
	for _, entry := range entries {
		entry = strings.ToLower(entry)
		if at := strings.LastIndexByte(entry, ':'); at >= 0 {
			if !doubtful {
				continue
			}
			entry = entry[:at]
		}
		if strings.IndexFunc(entry, func(r rune) bool { return r > 0x7E }) >= 0 {
			if doubtful {
				return true
			}
			continue
		}
		entry = strings.TrimSuffix(entry, ".")
		if base, below := strings.CutPrefix(entry, "**."); below && (name == base || strings.HasSuffix(name, "."+base)) {
			return true
		}
		if base, below := strings.CutPrefix(entry, "*."); below && strings.HasSuffix(name, "."+base) {
			return true
		}
		if entry == "*" || entry == name {
			return true
		}
	}
	return false
}

// listsAddresses says whether an entry may stand for an address: names end with a label that begins with a letter.
func listsAddresses(entries []string) bool {
	return slices.ContainsFunc(entries, func(entry string) bool {
		if strings.ContainsAny(entry, "[/") || strings.Count(entry, ":") > 1 {
			return true
		}
		entry, _, _ = strings.Cut(entry, ":")
		entry = strings.TrimSuffix(entry, ".")
		last := strings.ToLower(entry[strings.LastIndexByte(entry, '.')+1:])
		return last != "*" && (last == "" || last[0] < 'a' || last[0] > 'z')
	})
}

// plainlyPublic goes by what package netip knows, and by the ranges that are not in it.
func plainlyPublic(address netip.Addr) bool {
	address = address.Unmap()
	if translated.Contains(address) {
		bytes := address.As16()
		address = netip.AddrFrom4([4]byte(bytes[12:]))
	}
	closed := slices.ContainsFunc([]string{"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4", "fec0::/10", "44.0.0.10/32", "168.63.129.16/32"},
		func(prefix string) bool { return netip.MustParsePrefix(prefix).Contains(address) })
	return !closed && address.IsGlobalUnicast() && !address.IsPrivate() && !address.IsLoopback() && !address.IsLinkLocalUnicast()
}
