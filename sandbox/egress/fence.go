package egress

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// Fence is what rules let through, in the words of a packet filter: addresses and ports, for names mean nothing to it.
// It is the narrowest that never stands in the way of what [Rules.Decide] allows, but for denied entries: those are
// the proxy's alone.
type Fence struct {
	// Names says whether some name may be resolved. If none may, nothing has to reach the DNS.
	Names bool
	// Blocks are the addresses that connections may be made to.
	Blocks []Block
}

// Block is a part of the addresses, by TCP.
type Block struct {
	Prefix netip.Prefix
	// Except are parts of Prefix that are left out. None of them is all of it, and none covers another.
	Except []netip.Prefix
	// Ports are in order; none of them is every port.
	Ports []uint16
}

// everything are the prefixes of all addresses. What lies behind a translator is one of its own, since the
// range around it is refused.
var everything = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"), translated}

// Fence says which addresses the rules may connect to.
func (r *Rules) Fence() Fence {
	f := fencing{}
	for _, table := range [][]Range{unreachable, special, r.guarded} {
		for _, c := range table {
			if translated.Contains(c.Prefix.Addr()) && c.Prefix.Bits() >= translated.Bits() {
				continue // nobody has addresses of his own there
			}
			f.plain = append(f.plain, c.Prefix)
			if c.Prefix.Addr().Is4() {
				f.mapped = append(f.mapped, behindTranslator(c.Prefix))
			}
		}
	}
	ports, named := r.allow.namedPorts()
	if f.Names = named; named {
		// An allowed name may have any address that nothing refuses.
		for _, prefix := range everything {
			f.add(Block{Prefix: prefix, Ports: ports}, opens{})
		}
	}
	for _, p := range r.allow.prefixes {
		f.addEntry(p)
	}
	return f.Fence
}

// fencing is a fence that is being made, and what is refused unless an entry lies in it: ranges, and those of
// IPv4 as a translator shows them.
type fencing struct {
	Fence
	plain, mapped []netip.Prefix
}

// opens says which of the ranges around a block are opened by the entry that it is for.
type opens struct{ plain, mapped bool }

func (f *fencing) addEntry(p pattern) {
	block := Block{Prefix: p.prefix}
	if p.port != 0 {
		block.Ports = []uint16{p.port}
	}
	f.add(block, opens{plain: true})
	switch {
	case p.prefix.Addr().Is4():
		block.Prefix = behindTranslator(p.prefix)
		f.add(block, opens{mapped: true})
	case p.prefix.Bits() < translated.Bits() && p.prefix.Contains(translated.Addr()):
		block.Prefix = translated
		f.add(block, opens{})
	}
}

// add adds a block unless all of it is refused.
func (f *fencing) add(block Block, opened opens) {
	inside := translated.Contains(block.Prefix.Addr()) && block.Prefix.Bits() >= translated.Bits()
	var parts []netip.Prefix
	for _, r := range f.plain {
		if block.holds(r) {
			parts = append(parts, r)
			continue
		}
		// The translator's prefix is in the middle of a refused range and is none itself.
		if !opened.plain && !inside && r.Contains(block.Prefix.Addr()) {
			return
		}
	}
	for _, r := range f.mapped {
		if block.holds(r) {
			parts = append(parts, r)
			continue
		}
		if !opened.mapped && r.Contains(block.Prefix.Addr()) {
			return
		}
	}
	block.Except = Collapse(parts)
	f.Blocks = append(f.Blocks, block)
}

// holds says whether a prefix is a part of the block, and not all of it.
func (b Block) holds(part netip.Prefix) bool {
	return part.Bits() > b.Prefix.Bits() && b.Prefix.Contains(part.Addr())
}

// behindTranslator is the prefix under which a translator reaches one of IPv4.
func behindTranslator(prefix netip.Prefix) netip.Prefix {
	bytes, inner := translated.Addr().As16(), prefix.Addr().As4()
	copy(bytes[12:], inner[:])
	return netip.PrefixFrom(netip.AddrFrom16(bytes), translated.Bits()+prefix.Bits())
}

// namedPorts are the ports at which names are allowed, none for all, and whether any name is.
func (l *list) namedPorts() (ports []uint16, named bool) {
	found := make(map[uint16]bool)
	for _, patterns := range l.names {
		for _, p := range patterns {
			found[p.port] = true
		}
	}
	for _, p := range l.every {
		found[p.port] = true
	}
	if found[0] || len(found) == 0 {
		return nil, found[0]
	}
	return slices.Sorted(maps.Keys(found)), true
}

// Collapse orders prefixes and drops those that others cover.
func Collapse(prefixes []netip.Prefix) []netip.Prefix {
	sorted := slices.Clone(prefixes)
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var kept []netip.Prefix
	for _, p := range sorted {
		if len(kept) == 0 || !kept[len(kept)-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return kept
}

// Metadata are the addresses at which clouds answer questions about a machine, and all link-local ones.
func Metadata() []netip.Prefix {
	var found []netip.Prefix
	for _, r := range special {
		if r.Name == nameMetadata || r.Name == nameLinkLocal {
			found = append(found, r.Prefix)
		}
	}
	return Collapse(found)
}
