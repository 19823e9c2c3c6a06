package egress

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// unreachable are the ranges that no connection may go to whatever a policy says: they name no other host.
var unreachable = ranges(
	"0.0.0.0/8", "an address of this host itself", // Linux connects 0.0.0.0 to loopback
	"::/128", "an address of this host itself",
	"224.0.0.0/4", "a multicast address",
	"ff00::/8", "a multicast address",
	"255.255.255.255/32", "the broadcast address",
)

// Names of ranges that more than one table or function speaks of.
const (
	nameLoopback  = "a loopback address"
	nameLinkLocal = "a link-local address"
	nameMetadata  = "the metadata service of a cloud"
)

// special are the ranges that are refused unless a policy lists an entry that lies inside of them:
// whatever IANA's registries of special addresses do not call globally reachable, and the addresses at which
// clouds answer a machine's questions about itself, some of which are in ranges that are public otherwise.
var special = ranges(
	"127.0.0.0/8", nameLoopback,
	"::1/128", nameLoopback,
	"169.254.0.0/16", nameLinkLocal,
	"fe80::/10", nameLinkLocal,
	"169.254.169.254/32", nameMetadata,
	"169.254.170.2/32", nameMetadata, // credentials of a container
	"100.100.100.200/32", nameMetadata,
	"168.63.129.16/32", nameMetadata,
	"192.0.0.192/32", nameMetadata,
	"fd00:ec2::/32", nameMetadata,
	"fd20:ce::254/128", nameMetadata,
	"10.0.0.0/8", "a private address",
	"172.16.0.0/12", "a private address",
	"192.168.0.0/16", "a private address",
	"fc00::/7", "a private address",
	"fec0::/10", "a private address", // site-local, of old
	"64:ff9b:1::/48", "a private address", // a network's own translator
	"100.64.0.0/10", "an address of a carrier's shared range",
	"192.0.0.0/24", "an address of a protocol",
	"2001::/23", "an address of a protocol", // Teredo, benchmarks and ORCHID among them
	"2002::/16", "an address that tunnels to another one", // 6to4
	"192.88.99.0/24", "an address that tunnels to another one",
	"198.18.0.0/15", "an address for benchmarks",
	"192.0.2.0/24", "an address for documentation",
	"198.51.100.0/24", "an address for documentation",
	"203.0.113.0/24", "an address for documentation",
	"2001:db8::/32", "an address for documentation",
	"3fff::/20", "an address for documentation",
	"240.0.0.0/4", "a reserved address",
	// Of IPv6 only 2000::/3 is handed out.
	"::/3", "a reserved address",
	"4000::/2", "a reserved address",
	"8000::/1", "a reserved address",
)

// translated is the well-known prefix under which a translator reaches the IPv4 address in the last four
// bytes. That one is looked at instead.
var translated = netip.MustParsePrefix("64:ff9b::/96")

// ranges makes a table of pairs of a prefix and its name.
func ranges(pairs ...string) []Range {
	table := make([]Range, 0, len(pairs)/2)
	for pair := range slices.Chunk(pairs, 2) {
		table = append(table, Range{Prefix: netip.MustParsePrefix(pair[0]), Name: pair[1]})
	}
	return table
}

// OwnRanges returns the addresses of this host's interfaces, to be guarded: the other
// containers of a pod listen there, and not every pod has a private address.
func OwnRanges() ([]Range, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of this host: %w", err)
	}
	var own []Range
	for _, address := range addresses {
		if prefix, err := netip.ParsePrefix(address.String()); err == nil {
			addr := prefix.Addr().Unmap()
			name := "an address of this host itself"
			if addr.IsLoopback() {
				name = nameLoopback
			}
			own = append(own, Range{Prefix: netip.PrefixFrom(addr, addr.BitLen()), Name: name})
		}
	}
	return own, nil
}

// within finds the range of a table that a prefix lies in.
func within(table []Range, prefix netip.Prefix) (Range, bool) {
	for _, r := range table {
		if r.Prefix.Bits() <= prefix.Bits() && r.Prefix.Contains(prefix.Addr()) {
			return r, true
		}
	}
	return Range{}, false
}

// destinations lists what a connection to an address reaches: the address, and behind a translator
// also the one that is inside of it.
func destinations(addr netip.Addr) []netip.Addr {
	addr = addr.Unmap().WithZone("")
	if !translated.Contains(addr) {
		return []netip.Addr{addr}
	}
	bytes := addr.As16()
	return []netip.Addr{addr, netip.AddrFrom4([4]byte(bytes[12:]))}
}

// obstacle finds a range that an address lies in and that no entry of the policy opens for the port. An entry opens a
// range only by lying in it, so that 0.0.0.0/0 opens none and 169.254.0.0/16 does not open the metadata service.
func (r *Rules) obstacle(addr netip.Addr, port uint16) (Range, bool) {
	if found, in := within(unreachable, netip.PrefixFrom(addr, addr.BitLen())); in {
		return found, true
	}
	narrowest, refused := Range{}, false
	for _, table := range [][]Range{special, r.guarded} {
		for _, candidate := range table {
			if !candidate.covers(addr) || r.allow.opens(candidate, addr, port) {
				continue
			}
			// The narrowest range says most about an address; of equal ones the caller's, which come last.
			if !refused || candidate.Prefix.Bits() >= narrowest.Prefix.Bits() {
				narrowest, refused = candidate, true
			}
		}
	}
	return narrowest, refused
}

// covers tells whether an address lies in the range. The translator's prefix is in
// the middle of a reserved range, and is none itself.
func (r Range) covers(addr netip.Addr) bool {
	if translated.Contains(addr) && r.Prefix.Bits() < translated.Bits() {
		return false
	}
	return r.Prefix.Contains(addr)
}
