package egress

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// passes says whether a packet filter with the fence lets a connection through.
func (f Fence) passes(addr netip.Addr, port uint16) bool {
	return slices.ContainsFunc(f.Blocks, func(b Block) bool {
		return b.Prefix.Contains(addr) && (len(b.Ports) == 0 || slices.Contains(b.Ports, port)) &&
			!slices.ContainsFunc(b.Except, func(e netip.Prefix) bool { return e.Contains(addr) })
	})
}

// fenceNames are allowed entries and a name that each allows.
var fenceNames = map[string]string{
	"example.com": "example.com", "*.example.org:443": "a.example.org", "**.example.net:80": "example.net", "*": "any.test", "*:8443": "any.test",
}

// decides says whether the rules let a connection through: to the address itself, or to a name that has it.
func decides(r *Rules, entries []string, addr netip.Addr, port uint16) bool {
	if r.Decide(Query{Protocol: ProtocolConnect, Host: addr.String(), Port: port}).Allowed {
		return true
	}
	return slices.ContainsFunc(entries, func(entry string) bool {
		name, named := fenceNames[entry]
		return named && r.Decide(Query{Protocol: ProtocolConnect, Host: name, Port: port, Addresses: []netip.Addr{addr}}).Allowed
	})
}

// TestFenceIsWhatIsDecided compares the fence with the decisions for many policies, at every address near the edge of a range.
func TestFenceIsWhatIsDecided(t *testing.T) {
	entries := []string{
		"93.184.216.34", "93.184.216.0/24:443", "0.0.0.0/0", "10.0.0.0/8", "10.96.0.1:443", "10.244.0.0/16", "169.254.0.0/16:80", "169.254.169.254:80",
		"100.64.0.0/10", "127.0.0.1:8080", "::/0", "2000::/3", "fd00::/8", "2001:db8::1", "64:ff9b::/96", "64:ff9b::a00:0/104", "44.0.0.0/8", "44.0.0.10",
	}
	for entry := range fenceNames {
		entries = append(entries, entry)
	}
	slices.Sort(entries)
	guarded := [][]Range{
		nil,
		ranges("10.96.0.0/16", "a service", "10.244.0.0/16", "a pod", "44.0.0.10/32", "the API server", "2a00:1::/64", "a pod"),
		ranges("0.0.0.0/0", "all of IPv4"),
		ranges("::/0", "all of IPv6"),
	}
	addresses := edges(append(slices.Clone(everything), closedPrefixes(guarded, entries)...))
	random := rand.New(rand.NewPCG(4, 5)) // the same policies in every run
	allowed := 0
	for range 100 {
		var policy Policy
		policy.Methods = FullMethods
		for range random.IntN(4) {
			policy.AllowedDomains = append(policy.AllowedDomains, entries[random.IntN(len(entries))])
		}
		guard := guarded[random.IntN(len(guarded))]
		rules, err := Compile(policy, guard)
		if err != nil {
			t.Fatalf("compiling %q: %v", policy.AllowedDomains, err)
		}
		fence := rules.Fence()
		for _, addr := range addresses {
			for _, port := range []uint16{80, 443, 8080, 8443} {
				want := decides(rules, policy.AllowedDomains, addr, port)
				if got := fence.passes(addr, port); got != want {
					t.Fatalf("%q with guard %v: the fence lets %s port %d through: %v, the rules: %v\nfence: %+v", policy.AllowedDomains, guard, addr, port, got, want, fence)
				}
				if want {
					allowed++
				}
			}
		}
	}
	if allowed == 0 {
		t.Error("nothing was allowed, so nothing was compared")
	}
}

// closedPrefixes are all prefixes that a decision may depend on.
func closedPrefixes(guarded [][]Range, entries []string) []netip.Prefix {
	var all []netip.Prefix
	for _, table := range append(guarded, special, unreachable) {
		for _, r := range table {
			all = append(all, r.Prefix)
		}
	}
	l, err := parseList("entries", entries)
	if err != nil {
		panic(err) // the table of the test is wrong
	}
	for _, p := range l.prefixes {
		all = append(all, p.prefix)
	}
	for _, p := range all {
		if p.Addr().Is4() {
			all = append(all, behindTranslator(p))
		}
	}
	return all
}

// edges are the first and last addresses of prefixes, and those beside them.
func edges(prefixes []netip.Prefix) []netip.Addr {
	found := make(map[netip.Addr]bool)
	for _, p := range prefixes {
		last := lastOf(p)
		for _, addr := range []netip.Addr{p.Addr(), p.Addr().Prev(), p.Addr().Next(), last, last.Next(), last.Prev()} {
			if addr.IsValid() && !addr.Is4In6() { // those are spelled as IPv4
				found[addr] = true
			}
		}
	}
	var all []netip.Addr
	for addr := range found {
		all = append(all, addr)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

func TestFence(t *testing.T) {
	cases := map[string]struct {
		reason string
		allow  []string
		names  bool
		blocks []string
	}{
		"nothing":   {reason: "an empty list reaches nothing, not even the DNS"},
		"addresses": {reason: "addresses need no DNS", allow: []string{"192.0.2.7:443"}, blocks: []string{"192.0.2.7/32 [] [443]", "64:ff9b::c000:207/128 [] [443]"}},
		"wide": {
			reason: "a guarded range in a wide entry stays closed",
			allow:  []string{"10.0.0.0/8"},
			blocks: []string{"10.0.0.0/8 [10.96.0.0/16] []", "64:ff9b::a00:0/104 [64:ff9b::a60:0/112] []"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			rules, err := Compile(Policy{AllowedDomains: tc.allow, Methods: FullMethods}, ranges("10.96.0.0/16", "a service"))
			if err != nil {
				t.Fatal(err)
			}
			fence := rules.Fence()
			var blocks []string
			for _, b := range fence.Blocks {
				blocks = append(blocks, fmt.Sprintf("%v %v %v", b.Prefix, b.Except, b.Ports))
			}
			if diff := cmp.Diff(tc.blocks, blocks); diff != "" || fence.Names != tc.names {
				t.Errorf("%s: names %v, want %v; blocks -want +got\n%s", tc.reason, fence.Names, tc.names, diff)
			}
		})
	}
}

func TestFenceOfNames(t *testing.T) {
	rules, err := Compile(Policy{AllowedDomains: []string{"example.com:443", "*.example.org:80"}, Methods: FullMethods}, nil)
	if err != nil {
		t.Fatal(err)
	}
	fence := rules.Fence()
	if !fence.Names || len(fence.Blocks) != len(everything) {
		t.Fatalf("the fence is %+v, want names and one block for each of %v", fence, everything)
	}
	for _, b := range fence.Blocks {
		if diff := cmp.Diff([]uint16{80, 443}, b.Ports); diff != "" {
			t.Errorf("%s: ports -want +got\n%s", b.Prefix, diff)
		}
	}
	for _, m := range Metadata() {
		if fence.passes(m.Addr(), 80) {
			t.Errorf("%s is let through", m)
		}
	}
}

func TestCollapse(t *testing.T) {
	var in, want []netip.Prefix
	for _, text := range []string{"10.1.0.0/16", "::/3", "10.0.0.0/8", "10.0.0.0/8", "9.0.0.0/8", "::1/128", "11.0.0.0/8"} {
		in = append(in, netip.MustParsePrefix(text))
	}
	for _, text := range []string{"9.0.0.0/8", "10.0.0.0/8", "11.0.0.0/8", "::/3"} {
		want = append(want, netip.MustParsePrefix(text))
	}
	if diff := cmp.Diff(want, Collapse(in), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
