package network

import (
	"net/netip"
	"slices"

	"execsession.dev/agentd/config"
	"execsession.dev/sandbox/egress"
)

// Ranges are the cluster's own addresses. They are in order, and none covers another of its kind.
type Ranges struct {
	// Given are those that the operator was told. Pods and Nodes that lie in one of them are left
	// out, so that nodes which come and go change nothing.
	Given      []netip.Prefix
	Pods       []netip.Prefix
	Nodes      []netip.Prefix
	Services   []netip.Prefix
	APIServers []netip.Prefix
}

// maxOfAKind bounds the ranges of a document, and the exceptions of a NetworkPolicy.
const maxOfAKind = 128

// tidy brings ranges into the form that their comments promise.
func (r Ranges) tidy() Ranges {
	r.Given = merge(r.Given)
	for _, kind := range []*[]netip.Prefix{&r.Pods, &r.Nodes} {
		*kind = slices.DeleteFunc(slices.Clone(*kind), func(p netip.Prefix) bool { return covered(p, r.Given) })
	}
	for _, kind := range []*[]netip.Prefix{&r.Pods, &r.Nodes, &r.Services, &r.APIServers} {
		*kind = bounded(merge(*kind))
	}
	return r
}

// Guarded are the ranges as a profile document holds them.
func (r Ranges) Guarded() []config.Range {
	var all []config.Range
	// Of equal ranges the proxy names the last.
	for _, kind := range []struct {
		prefixes []netip.Prefix
		name     string
	}{
		{r.Given, "an address of the cluster"},
		{r.Nodes, "a node of the cluster"},
		{r.Pods, "a pod of the cluster"},
		{r.Services, "a service of the cluster"},
		{r.APIServers, "an API server of the cluster"},
	} {
		for _, p := range kind.prefixes {
			all = append(all, config.Range{Prefix: p, Name: kind.name})
		}
	}
	return all
}

func covered(p netip.Prefix, by []netip.Prefix) bool {
	return slices.ContainsFunc(by, func(b netip.Prefix) bool { return b.Bits() <= p.Bits() && b.Contains(p.Addr()) })
}

// merge drops prefixes that others cover and joins two halves of one: the parts that
// nodes have of the pods' range are neighbours.
func merge(prefixes []netip.Prefix) []netip.Prefix {
	kept := egress.Collapse(prefixes)
	for i := 0; i+1 < len(kept); {
		whole := parent(kept[i])
		if kept[i].Bits() != kept[i+1].Bits() || kept[i].Bits() == 0 || whole != parent(kept[i+1]) {
			i++
			continue
		}
		kept = slices.Replace(kept, i, i+2, whole)
		i = max(0, i-1) // it may be a half as well
	}
	return kept
}

func parent(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(p.Addr(), max(0, p.Bits()-1)).Masked()
}

// bounded makes ranges wider until they are few enough: rather too much is guarded than
// some of it not.
func bounded(prefixes []netip.Prefix) []netip.Prefix {
	for len(prefixes) > maxOfAKind {
		longest := slices.MaxFunc(prefixes, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() }).Bits()
		for i, p := range prefixes {
			if p.Bits() == longest {
				prefixes[i] = parent(p)
			}
		}
		prefixes = merge(prefixes)
	}
	return prefixes
}
