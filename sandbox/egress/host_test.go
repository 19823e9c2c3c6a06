package egress

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseHost(t *testing.T) {
	cases := map[string]struct {
		reason  string
		spelled string
		want    string // "" for an error
	}{
		"name":                 {reason: "the common case", spelled: "example.com", want: "example.com"},
		"case":                 {reason: "the DNS has no case", spelled: "ExAmPle.COM", want: "example.com"},
		"trailing dot":         {reason: "an absolute name is the same name", spelled: "example.com.", want: "example.com"},
		"two trailing dots":    {reason: "an empty label", spelled: "example.com.."},
		"leading dot":          {reason: "an empty label", spelled: ".example.com"},
		"only a dot":           {reason: "the root has no address", spelled: "."},
		"empty":                {reason: "nothing", spelled: ""},
		"single label":         {reason: "names of /etc/hosts are names", spelled: "localhost", want: "localhost"},
		"underscore":           {reason: "the DNS has them", spelled: "my_bucket.example.com", want: "my_bucket.example.com"},
		"hyphens":              {reason: "content networks use them", spelled: "r3---sn-x.example.com", want: "r3---sn-x.example.com"},
		"hyphen first":         {reason: "programs would take it for an option", spelled: "-oProxyCommand.example.com"},
		"Unicode":              {reason: "it is its punycode", spelled: "b\u00fccher.example", want: "xn--bcher-kva.example"},
		"Unicode in upper":     {reason: "mapped first", spelled: "B\u00dcCHER.example", want: "xn--bcher-kva.example"},
		"punycode":             {reason: "the same name", spelled: "xn--bcher-kva.example", want: "xn--bcher-kva.example"},
		"punycode in upper":    {reason: "the same name", spelled: "XN--BCHER-KVA.example", want: "xn--bcher-kva.example"},
		"punycode of ASCII":    {reason: "a second spelling of example.com", spelled: "xn--example-.com"},
		"punycode of nothing":  {reason: "no name", spelled: "xn--.com"},
		"broken punycode":      {reason: "no name", spelled: "xn--a\u00e4.com"},
		"sharp s":              {reason: "a letter of its own, not ss", spelled: "stra\u00dfe.example", want: "xn--strae-oqa.example"},
		"full-width":           {reason: "maps to ASCII", spelled: "\uff45\uff58ample.com", want: "example.com"},
		"ideographic dot":      {reason: "is a dot", spelled: "example\u3002com", want: "example.com"},
		"full-width slash":     {reason: "maps to what no name has", spelled: "example.com\uff0f.evil.com"},
		"zero-width joiner":    {reason: "invisible", spelled: "exam\u200dple.com"},
		"soft hyphen":          {reason: "ignored by the mapping", spelled: "exam\u00adple.com", want: "example.com"},
		"not UTF-8":            {reason: "no text", spelled: "ex\xffample.com"},
		"percent":              {reason: "nobody decodes it, so that everybody sees the same", spelled: "ex%61mple.com"},
		"user":                 {reason: "not part of a host", spelled: "example.com@evil.com"},
		"backslash":            {reason: "a slash to some", spelled: "example.com\\evil.com"},
		"slash":                {reason: "the end of a host", spelled: "example.com/evil.com"},
		"NUL":                  {reason: "an end to C programs", spelled: "example.com\x00.evil.com"},
		"space":                {reason: "no character of names", spelled: "example .com"},
		"newline":              {reason: "no character of names", spelled: "example.com\n"},
		"long label":           {reason: "63 bytes", spelled: strings.Repeat("a", 64) + ".com"},
		"long name":            {reason: "253 bytes", spelled: strings.Repeat("a.", 127) + "com"},
		"very long":            {reason: "not even looked at", spelled: strings.Repeat("a", 2000)},
		"IPv4":                 {reason: "an address", spelled: "192.0.2.7", want: "192.0.2.7"},
		"IPv4, trailing dot":   {reason: "an address to resolvers", spelled: "127.0.0.1.", want: "127.0.0.1"},
		"decimal":              {reason: "one number for all bytes", spelled: "2130706433", want: "127.0.0.1"},
		"octal":                {reason: "a leading zero", spelled: "0177.0.0.01", want: "127.0.0.1"},
		"octal, whole":         {reason: "one number", spelled: "017700000001", want: "127.0.0.1"},
		"hexadecimal":          {reason: "0x", spelled: "0x7f.0.0.1", want: "127.0.0.1"},
		"hexadecimal, upper":   {reason: "0X", spelled: "0X7F000001", want: "127.0.0.1"},
		"hexadecimal, nothing": {reason: "a zero to resolvers", spelled: "127.0.0.0x", want: "127.0.0.0"},
		"two parts":            {reason: "the last fills the rest", spelled: "127.1", want: "127.0.0.1"},
		"three parts":          {reason: "the last fills the rest", spelled: "169.254.43518", want: "169.254.169.254"},
		"mixed":                {reason: "each part in its own base", spelled: "0xa9.254.0251.0376", want: "169.254.169.254"},
		"zero":                 {reason: "this host", spelled: "0", want: "0.0.0.0"},
		"full-width digits":    {reason: "digits after the mapping", spelled: "\uff11\uff12\uff17.0.0.1", want: "127.0.0.1"},
		"circled digits":       {reason: "digits after the mapping", spelled: "\u2460\u2461\u2466.0.0.1", want: "127.0.0.1"},
		"bad octal":            {reason: "decimal to some, an error to others", spelled: "127.0.0.08"},
		"byte too large":       {reason: "an address to nobody", spelled: "256.0.0.1"},
		"last too large":       {reason: "an address to nobody", spelled: "127.0.65536"},
		"number too large":     {reason: "an address to nobody", spelled: "4294967296"},
		"five parts":           {reason: "ends in a number and is no address", spelled: "1.2.3.4.5"},
		"empty part":           {reason: "ends in a number and is no address", spelled: "127..1"},
		"name before number":   {reason: "ends in a number and is no address", spelled: "foo.1"},
		"hex without digits":   {reason: "a name", spelled: "0xg.example", want: "0xg.example"},
		"IPv6":                 {reason: "an address", spelled: "[2001:DB8:0::1]", want: "2001:db8::1"},
		"IPv6, bare":           {reason: "as SOCKS and people spell it", spelled: "2001:db8::1", want: "2001:db8::1"},
		"IPv6, mapped":         {reason: "an IPv4 address", spelled: "[::ffff:127.0.0.1]", want: "127.0.0.1"},
		"IPv6, mapped hex":     {reason: "an IPv4 address", spelled: "[::ffff:a9fe:a9fe]", want: "169.254.169.254"},
		"IPv6, zone":           {reason: "an interface of this host", spelled: "[fe80::1%eth0]"},
		"IPv6, escaped zone":   {reason: "an interface of this host", spelled: "[fe80::1%25eth0]"},
		"IPv6, zone on global": {reason: "hides what follows", spelled: "[2001:db8::1%.example.com]"},
		"IPv6, not closed":     {reason: "half a host", spelled: "[::1"},
		"IPv6, broken":         {reason: "no address", spelled: "[::1::]"},
		"bracketed name":       {reason: "brackets are for IPv6", spelled: "[example.com]"},
		"bracketed IPv4":       {reason: "brackets are for IPv6", spelled: "[127.0.0.1]"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseHost(c.spelled)
			if (err == nil) != (c.want != "") {
				t.Fatalf("parseHost(%q) = %q, %v, want %q (%s)", c.spelled, got, err, c.want, c.reason)
			}
			if err == nil && got.String() != c.want {
				t.Errorf("parseHost(%q) = %q, want %q (%s)", c.spelled, got, c.want, c.reason)
			}
		})
	}
}

func TestSplitAuthority(t *testing.T) {
	cases := map[string]struct {
		authority string
		name      string
		port      uint16
		fails     bool
	}{
		"name and port":     {authority: "example.com:443", name: "example.com", port: 443},
		"name":              {authority: "example.com", name: "example.com"},
		"IPv6 and port":     {authority: "[::1]:8080", name: "[::1]", port: 8080},
		"IPv6":              {authority: "[::1]", name: "[::1]"},
		"IPv6 bare":         {authority: "::1", fails: true},
		"two ports":         {authority: "example.com:80:443", fails: true},
		"behind a bracket":  {authority: "[::1]443", fails: true},
		"bracket open":      {authority: "[::1:443", fails: true},
		"empty port":        {authority: "example.com:", fails: true},
		"zero":              {authority: "example.com:0", fails: true},
		"too large":         {authority: "example.com:65536", fails: true},
		"far too large":     {authority: "example.com:18446744073709551617", fails: true},
		"a sign":            {authority: "example.com:+80", fails: true},
		"a service":         {authority: "example.com:http", fails: true},
		"user and password": {authority: "user:password@example.com:80", fails: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			host, port, err := splitAuthority(c.authority)
			if (err != nil) != c.fails {
				t.Fatalf("splitAuthority(%q): error %v, want one: %t", c.authority, err, c.fails)
			}
			if err == nil && (host != c.name || port != c.port) {
				t.Errorf("splitAuthority(%q) = %q, %d, want %q, %d", c.authority, host, port, c.name, c.port)
			}
		})
	}
}

// FuzzParseHost holds the normal form to what the rest relies on: it is its own normal form, and a name is
// one that no resolver can take for an address.
func FuzzParseHost(f *testing.F) {
	for _, seed := range []string{"example.com", "EXAMPLE.com.", "127.1", "0x7f.1", "[::ffff:1.2.3.4]", "fe80::1%eth0", "b\u00fccher.example", "xn--bcher-kva.example", "\u2460.1", "a.0x", "1e3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, spelled string) {
		h, err := parseHost(spelled)
		if err != nil {
			return
		}
		again, err := parseHost(h.String())
		if err != nil || again != h {
			t.Fatalf("parseHost(%q) = %q, whose own normal form is %q (%v)", spelled, h, again, err)
		}
		if (h.name == "") != h.addr.IsValid() {
			t.Fatalf("parseHost(%q) is both or neither: %+v", spelled, h)
		}
		if h.addr.IsValid() {
			if h.addr.Is4In6() || h.addr.Zone() != "" {
				t.Fatalf("parseHost(%q) = %v, which has a second spelling", spelled, h.addr)
			}
			return
		}
		if _, err := netip.ParseAddr(h.name); err == nil || endsInNumber(h.name) {
			t.Fatalf("parseHost(%q) = %q, an address as a name", spelled, h.name)
		}
		if h.name != strings.ToLower(h.name) || strings.HasSuffix(h.name, ".") {
			t.Fatalf("parseHost(%q) = %q, which is no normal form", spelled, h.name)
		}
	})
}
