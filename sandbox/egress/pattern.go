package egress

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// reach says which names a pattern covers, seen from its own.
type reach int

const (
	itself reach = iota
	below
	itselfAndBelow
)

// pattern is one entry of a list.
type pattern struct {
	field  string // such as network.allowedDomains[3]
	text   string // as the policy spells it
	reach  reach
	prefix netip.Prefix // valid for addresses only
	port   uint16       // 0 for every port
}

func (p pattern) String() string { return p.field + " " + strconv.Quote(p.text) }

func (p pattern) reject(reason string) *FieldError {
	return &FieldError{Field: p.field, Value: p.text, Reason: reason}
}

func (p pattern) covers(port uint16) bool { return p.port == 0 || p.port == port }

// list is an indexed list of patterns: the time to search it does not grow with its names.
type list struct {
	names    map[string][]pattern // by the name without its wildcard
	every    []pattern            // "*"
	prefixes []pattern
}

func parseList(field string, entries []string) (list, error) {
	l := list{names: make(map[string][]pattern, len(entries))}
	if len(entries) > maxEntries {
		return l, &FieldError{Field: field, Value: strconv.Itoa(len(entries)), Reason: fmt.Sprintf("has at most %d entries", maxEntries)}
	}
	for i, text := range entries {
		if err := l.add(pattern{field: fmt.Sprintf("%s[%d]", field, i), text: text}); err != nil {
			return l, err
		}
	}
	return l, nil
}

// add parses a pattern's text and files it.
func (l *list) add(p pattern) error {
	if strings.Contains(p.text, "://") {
		return p.reject("must be a domain or an address, not a URL")
	}
	body, port, err := cutPort(p.text)
	if err != nil {
		return p.reject(err.Error())
	}
	p.port = port
	if body == "*" {
		l.every = append(l.every, p)
		return nil
	}
	if strings.Contains(body, "/") {
		if p.prefix, err = netip.ParsePrefix(body); err != nil || p.prefix.Addr().Is4In6() {
			return p.reject("must be a prefix such as 10.0.0.0/8, or a domain")
		}
		if p.prefix != p.prefix.Masked() {
			return p.reject("has bits behind its length; did you mean " + p.prefix.Masked().String() + "?")
		}
		l.prefixes = append(l.prefixes, p)
		return nil
	}
	return l.addHost(p, body)
}

func (l *list) addHost(p pattern, body string) error {
	if rest, found := strings.CutPrefix(body, "**."); found {
		p.reach, body = itselfAndBelow, rest
	} else if rest, found := strings.CutPrefix(body, "*."); found {
		p.reach, body = below, rest
	}
	if strings.Contains(body, "*") {
		return p.reject("takes a wildcard only as its first label: *. or **., or * alone")
	}
	h, err := parseHost(body)
	if err != nil {
		return p.reject("is no host: " + err.Error())
	}
	if !h.addr.IsValid() {
		l.names[h.name] = append(l.names[h.name], p)
		return nil
	}
	if p.reach != itself {
		return p.reject("an address takes no wildcard; write a prefix such as 10.0.0.0/8")
	}
	// A policy is read by people, so that an address has one spelling in it.
	if plain, err := netip.ParseAddr(strings.Trim(body, "[]")); err != nil || plain != h.addr {
		return p.reject("must be spelled " + h.addr.String())
	}
	p.prefix = netip.PrefixFrom(h.addr, h.addr.BitLen())
	l.prefixes = append(l.prefixes, p)
	return nil
}

// cutPort takes the port off a pattern's text and returns the rest, without brackets around a prefix.
func cutPort(text string) (string, uint16, error) {
	if !strings.HasPrefix(text, "[") && strings.Count(text, ":") > 1 {
		return text, 0, nil // an address of IPv6, or a prefix
	}
	body, port, err := splitAuthority(text)
	if inner, found := strings.CutPrefix(body, "["); found && strings.Contains(inner, "/") {
		body = strings.TrimSuffix(inner, "]")
	}
	return body, port, err
}

// name finds the narrowest pattern that covers a name.
func (l *list) name(name string, port uint16) (pattern, bool) {
	suffix := name
	for {
		for _, p := range l.names[suffix] {
			here := suffix == name
			if p.covers(port) && (here && p.reach != below || !here && p.reach != itself) {
				return p, true
			}
		}
		_, rest, more := strings.Cut(suffix, ".")
		if !more {
			break
		}
		suffix = rest
	}
	for _, p := range l.every {
		if p.covers(port) {
			return p, true
		}
	}
	return pattern{}, false
}

// address finds the narrowest pattern that covers an address.
func (l *list) address(addr netip.Addr, port uint16) (pattern, bool) {
	best, found := pattern{}, false
	for _, p := range l.prefixes {
		if p.covers(port) && p.prefix.Contains(addr) && (!found || p.prefix.Bits() > best.prefix.Bits()) {
			best, found = p, true
		}
	}
	return best, found
}

// opens tells whether a pattern that lies in a range covers an address of it.
func (l *list) opens(r Range, addr netip.Addr, port uint16) bool {
	for _, p := range l.prefixes {
		if p.covers(port) && p.prefix.Contains(addr) && p.prefix.Bits() >= r.Prefix.Bits() {
			return true
		}
	}
	return false
}
