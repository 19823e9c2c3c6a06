package egress

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

const (
	maxSpelling = 1024 // of a host, before it is normalised
	maxName     = 253
	maxLabel    = 63
)

// toASCII turns Unicode labels into what the DNS holds. Underscores and hyphens are
// more liberally used in the DNS than in the registries' rules.
var toASCII = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.BidiRule(), idna.StrictDomainName(false), idna.CheckHyphens(false))

// host is a host in its one normal form: a name in lower case without a trailing dot, or an address.
type host struct {
	name string
	addr netip.Addr
}

func (h host) String() string {
	if h.addr.IsValid() {
		return h.addr.String()
	}
	return h.name
}

// authority spells the host as a URL and a Host header do.
func (h host) authority(port, usual uint16) string {
	text := h.String()
	if h.addr.Is6() {
		text = "[" + text + "]"
	}
	if port == usual {
		return text
	}
	return text + portSuffix(port)
}

// parseHost normalises a host. Whatever some resolver would read as an address is an address here, because
// a name that is compared as a name and then connected to as an address passes every list.
func parseHost(spelled string) (host, error) {
	switch {
	case spelled == "":
		return host{}, errors.New("it is empty")
	case len(spelled) > maxSpelling:
		return host{}, fmt.Errorf("it has more than %d bytes", maxSpelling)
	case !utf8.ValidString(spelled):
		return host{}, errors.New("it is no valid UTF-8")
	}
	if inner, found := strings.CutPrefix(spelled, "["); found {
		inner, closed := strings.CutSuffix(inner, "]")
		if !closed || !strings.Contains(inner, ":") {
			return host{}, errors.New("brackets hold an IPv6 address")
		}
		return parseIPv6(inner)
	}
	if strings.Contains(spelled, ":") {
		return parseIPv6(spelled)
	}
	name, err := normaliseName(spelled)
	if err != nil {
		return host{}, err
	}
	if endsInNumber(name) {
		addr, err := parseIPv4(name)
		return host{addr: addr}, err
	}
	return host{name: name}, checkName(name)
}

func parseIPv6(text string) (host, error) {
	if strings.Contains(text, "%") {
		// A zone chooses an interface of this host. It is of use for link-local addresses only, and
		// there are many ways to hide something behind it.
		return host{}, errors.New("an address with a zone is not allowed")
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return host{}, errors.New("it is no valid IPv6 address")
	}
	return host{addr: addr.Unmap()}, nil
}

// normaliseName maps a name to lower-case ASCII and removes one trailing dot.
func normaliseName(name string) (string, error) {
	ascii := strings.IndexFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
	if !ascii {
		mapped, err := toASCII.ToASCII(name)
		if err != nil {
			return "", errors.New("it is no valid international name")
		}
		name = mapped
	}
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	for label := range strings.SplitSeq(name, ".") {
		if !strings.HasPrefix(label, "xn--") {
			continue
		}
		// What does not come back the same is a second spelling of some other name, or none at all.
		if again, err := toASCII.ToASCII(label); err != nil || again != label {
			return "", errors.New("it is no valid international name")
		}
	}
	return name, nil
}

func checkName(name string) error {
	if len(name) > maxName {
		return fmt.Errorf("it has more than %d bytes", maxName)
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabel {
			return fmt.Errorf("a label has from 1 to %d bytes", maxLabel)
		}
		if label[0] == '-' || label[len(label)-1] == '-' {
			return errors.New("a label begins or ends with a hyphen")
		}
		for i := range len(label) {
			if c := label[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return fmt.Errorf("a name has no character %q", c)
			}
		}
	}
	return nil
}

// endsInNumber tells whether a resolver may take a name for an IPv4 address: its last label is a number.
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if last == "" {
		return false
	}
	if digits, hex := strings.CutPrefix(last, "0x"); hex {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// parseIPv4 reads an IPv4 address as inet_aton does: up to four numbers, each decimal, octal after a 0 or
// hexadecimal after 0x, of which the last fills the bytes that are left.
func parseIPv4(text string) (netip.Addr, error) {
	invalid := errors.New("it is no valid IPv4 address")
	parts := strings.Split(text, ".")
	if len(parts) > 4 {
		return netip.Addr{}, invalid
	}
	var value uint64
	for i, part := range parts {
		number, err := parseNumber(part)
		room := uint64(math.MaxUint8)
		if i == len(parts)-1 {
			room = 1<<(8*(5-len(parts))) - 1
		}
		if err != nil || number > room {
			return netip.Addr{}, invalid
		}
		if i < len(parts)-1 {
			number <<= 8 * (3 - i)
		}
		value |= number
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), nil
}

func parseNumber(text string) (uint64, error) {
	digits, hex := strings.CutPrefix(text, "0x")
	switch {
	case hex && digits == "":
		return 0, nil
	case hex:
		return strconv.ParseUint(digits, 16, 64)
	case len(text) > 1 && text[0] == '0':
		return strconv.ParseUint(text, 8, 64)
	default:
		return strconv.ParseUint(text, 10, 64)
	}
}

// splitAuthority splits host:port as a URL, a CONNECT request or a Host header hold it, without normalising the host.
// The port is 0 where there is none.
func splitAuthority(authority string) (string, uint16, error) {
	var name, port string
	var found bool
	switch {
	case strings.HasPrefix(authority, "["):
		end := strings.IndexByte(authority, ']')
		if end < 0 {
			return authority, 0, errors.New("a bracket is not closed")
		}
		name = authority[:end+1]
		rest := authority[end+1:]
		if rest != "" && rest[0] != ':' {
			return authority, 0, errors.New("a port or nothing follows a bracket")
		}
		port, found = strings.CutPrefix(rest, ":")
	case strings.Count(authority, ":") > 1:
		return authority, 0, errors.New("an IPv6 address stands in brackets")
	default:
		name, port, found = strings.Cut(authority, ":")
	}
	if !found {
		return name, 0, nil
	}
	number, err := parsePort(port)
	return name, number, err
}

func parsePort(text string) (uint16, error) {
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 {
		return 0, errors.New("a port is a number from 1 to 65535")
	}
	return uint16(number), nil
}
