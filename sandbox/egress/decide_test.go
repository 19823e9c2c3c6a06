package egress

import (
	"net/netip"
	"strings"
	"testing"
)

// clusterRanges are what an operator guards.
var clusterRanges = []Range{
	{Prefix: netip.MustParsePrefix("10.244.0.0/16"), Name: "a pod of the cluster"},
	{Prefix: netip.MustParsePrefix("10.96.0.0/12"), Name: "a service of the cluster"},
	{Prefix: netip.MustParsePrefix("10.96.0.1/32"), Name: "the API server"},
	{Prefix: netip.MustParsePrefix("44.0.0.10/32"), Name: "the API server"},
}

func mustCompile(tb testing.TB, policy Policy) *Rules {
	tb.Helper()
	if policy.Methods == "" {
		policy.Methods = FullMethods
	}
	rules, err := Compile(policy, clusterRanges)
	if err != nil {
		tb.Fatal(err)
	}
	return rules
}

func TestDecide(t *testing.T) {
	cases := map[string]struct {
		reason   string
		allow    []string
		deny     []string
		host     string
		port     uint16 // 443 if 0
		resolved []string
		want     Reason
		rule     string // part of it
		says     string // part of the message
	}{
		"empty policy":       {reason: "nothing is allowed", host: "example.com", want: ReasonNotAllowed, says: "does not hold it"},
		"exact":              {reason: "listed", allow: []string{"example.com"}, host: "example.com", want: ReasonAllowed, rule: `network.allowedDomains[0] "example.com"`},
		"exact, other case":  {reason: "normalised on both sides", allow: []string{"Example.COM."}, host: "eXample.com.", want: ReasonAllowed},
		"exact, Unicode":     {reason: "normalised on both sides", allow: []string{"b\u00fccher.example"}, host: "XN--bcher-kva.example", want: ReasonAllowed},
		"below exact":        {reason: "only the name itself", allow: []string{"example.com"}, host: "www.example.com", want: ReasonNotAllowed},
		"suffix of a label":  {reason: "labels are whole", allow: []string{"**.example.com"}, host: "badexample.com", want: ReasonNotAllowed},
		"prefix":             {reason: "names end with the pattern", allow: []string{"**.example.com"}, host: "example.com.evil.net", want: ReasonNotAllowed},
		"star, itself":       {reason: "* needs a label", allow: []string{"*.example.com"}, host: "example.com", want: ReasonNotAllowed},
		"star, one below":    {reason: "* is any name below", allow: []string{"*.example.com"}, host: "a.example.com", want: ReasonAllowed},
		"star, two below":    {reason: "at any depth", allow: []string{"*.example.com"}, host: "a.b.example.com", want: ReasonAllowed},
		"two stars, itself":  {reason: "** has the name as well", allow: []string{"**.example.com"}, host: "example.com", want: ReasonAllowed},
		"two stars, below":   {reason: "at any depth", allow: []string{"**.example.com"}, host: "a.b.example.com", want: ReasonAllowed},
		"every name":         {reason: "*", allow: []string{"*"}, host: "anything.example", want: ReasonAllowed},
		"every name, number": {reason: "* is names only", allow: []string{"*"}, host: "93.184.215.14", want: ReasonNotAllowed},
		"narrowest rule":     {reason: "says most", allow: []string{"*", "*.example.com", "a.example.com"}, host: "a.example.com", want: ReasonAllowed, rule: "[2]"},
		"deny wins":          {reason: "also over a narrower one", allow: []string{"a.example.com"}, deny: []string{"**.example.com"}, host: "a.example.com", want: ReasonDenied, rule: "network.deniedDomains[0]"},
		"deny, exact":        {reason: "the others stay", allow: []string{"**.example.com"}, deny: []string{"b.example.com"}, host: "a.example.com", want: ReasonAllowed},
		"deny, spelled":      {reason: "normalised first", allow: []string{"*"}, deny: []string{"evil.example"}, host: "EVIL.example.", want: ReasonDenied},
		"deny below":         {reason: "the name itself stays", allow: []string{"**.example.com"}, deny: []string{"*.example.com"}, host: "example.com", want: ReasonAllowed},
		"port":               {reason: "an entry with a port is for it", allow: []string{"example.com:443"}, host: "example.com", want: ReasonAllowed},
		"other port":         {reason: "an entry with a port is for it alone", allow: []string{"example.com:443"}, host: "example.com", port: 22, want: ReasonNotAllowed, says: "example.com:22"},
		"deny a port":        {reason: "the others stay", allow: []string{"example.com"}, deny: []string{"example.com:22"}, host: "example.com", want: ReasonAllowed},
		"denied port":        {reason: "deny wins", allow: []string{"example.com"}, deny: []string{"example.com:22"}, host: "example.com", port: 22, want: ReasonDenied},
		"port of every name": {reason: "*:443", allow: []string{"*:443"}, host: "a.example", port: 80, want: ReasonNotAllowed},
		"second entry, port": {reason: "all entries of a name count", allow: []string{"example.com:443", "example.com:22"}, host: "example.com", port: 22, want: ReasonAllowed, rule: "[1]"},

		"address":                {reason: "listed", allow: []string{"93.184.215.14"}, host: "93.184.215.14", want: ReasonAllowed},
		"address, spelled":       {reason: "normalised first", allow: []string{"93.184.215.14"}, host: "0x5db8d70e", want: ReasonAllowed},
		"address, mapped":        {reason: "normalised first", allow: []string{"93.184.215.14"}, host: "::ffff:93.184.215.14", want: ReasonAllowed},
		"address of a prefix":    {reason: "listed", allow: []string{"93.184.0.0/16"}, host: "93.184.215.14", want: ReasonAllowed},
		"address, port":          {reason: "an entry with a port is for it alone", allow: []string{"93.184.215.14:443"}, host: "93.184.215.14", port: 80, want: ReasonNotAllowed},
		"address, denied prefix": {reason: "deny wins", allow: []string{"93.184.215.14"}, deny: []string{"93.184.0.0/16"}, host: "93.184.215.14", want: ReasonDenied},
		"IPv6, brackets, port":   {reason: "listed", allow: []string{"[2606:4700::1]:443"}, host: "2606:4700:0::1", want: ReasonAllowed},
		"IPv6 prefix, port":      {reason: "listed", allow: []string{"[2606:4700::/32]:443"}, host: "2606:4700::1", port: 80, want: ReasonNotAllowed},
		"name of an address":     {reason: "an address does not allow names", allow: []string{"93.184.215.14"}, host: "example.com", want: ReasonNotAllowed},

		"resolves":                {reason: "a public address", allow: []string{"example.com"}, host: "example.com", resolved: []string{"93.184.215.14", "2606:4700::1"}, want: ReasonAllowed},
		"resolves to loopback":    {reason: "rebinding", allow: []string{"example.com"}, host: "example.com", resolved: []string{"127.0.0.1"}, want: ReasonAddress, says: "example.com:443 at 127.0.0.1 is not allowed: 127.0.0.1 is a loopback address"},
		"resolves to both":        {reason: "one bad address refuses the name", allow: []string{"example.com"}, host: "example.com", resolved: []string{"93.184.215.14", "10.0.0.5"}, want: ReasonAddress},
		"resolves to a listed":    {reason: "the policy lists the address", allow: []string{"example.com", "10.0.0.5"}, host: "example.com", resolved: []string{"10.0.0.5"}, want: ReasonAllowed},
		"resolves to listed port": {reason: "for another port", allow: []string{"example.com", "10.0.0.5:5432"}, host: "example.com", resolved: []string{"10.0.0.5"}, want: ReasonAddress},
		"resolves to denied":      {reason: "deny wins", allow: []string{"example.com"}, deny: []string{"93.184.0.0/16"}, host: "example.com", resolved: []string{"93.184.215.14"}, want: ReasonDenied},
		"resolves to mapped":      {reason: "the address that is inside", allow: []string{"example.com"}, host: "example.com", resolved: []string{"::ffff:10.0.0.5"}, want: ReasonAddress},
		"resolves to mapped, ok":  {reason: "the address that is inside", allow: []string{"example.com"}, host: "example.com", resolved: []string{"::ffff:93.184.215.14"}, want: ReasonAllowed},
		"resolves to translated":  {reason: "the address that is inside", allow: []string{"example.com"}, host: "example.com", resolved: []string{"64:ff9b::a9fe:a9fe"}, want: ReasonAddress, says: "metadata"},
		"resolves by translator":  {reason: "a public address inside", allow: []string{"example.com"}, host: "example.com", resolved: []string{"64:ff9b::5db8:d70e"}, want: ReasonAllowed},
		"resolves to a zone":      {reason: "a link-local address", allow: []string{"example.com"}, host: "example.com", resolved: []string{"fe80::1%eth0"}, want: ReasonAddress},
		"resolves to a pod":       {reason: "guarded", allow: []string{"example.com"}, host: "example.com", resolved: []string{"10.244.3.4"}, want: ReasonAddress, says: "a pod of the cluster"},
		"resolves to public API":  {reason: "guarded, although public", allow: []string{"*"}, host: "example.com", resolved: []string{"44.0.0.10"}, want: ReasonAddress, says: "the API server"},

		"private, listed":       {reason: "an entry in the range opens it", allow: []string{"10.0.0.0/8"}, host: "10.1.2.3", want: ReasonAllowed},
		"private, all of IPv4":  {reason: "an entry around the range does not open it", allow: []string{"0.0.0.0/0"}, host: "10.1.2.3", want: ReasonAddress},
		"public, all of IPv4":   {reason: "nothing to open", allow: []string{"0.0.0.0/0"}, host: "93.184.215.14", want: ReasonAllowed},
		"pod, private listed":   {reason: "an entry around the range does not open it", allow: []string{"10.0.0.0/8"}, host: "10.244.3.4", want: ReasonAddress, says: "a pod of the cluster"},
		"pod, listed":           {reason: "listed itself", allow: []string{"10.244.3.4:8080"}, host: "10.244.3.4", port: 8080, want: ReasonAllowed},
		"API, services listed":  {reason: "the API server is narrower", allow: []string{"10.96.0.0/12"}, host: "10.96.0.1", want: ReasonAddress, says: "the API server"},
		"metadata, link-local":  {reason: "the service is narrower", allow: []string{"169.254.0.0/16"}, host: "169.254.169.254", want: ReasonAddress, says: "metadata"},
		"metadata, listed":      {reason: "a platform team may mean it", allow: []string{"169.254.169.254:80"}, host: "169.254.169.254", port: 80, want: ReasonAllowed},
		"IPv6, all":             {reason: "opens nothing", allow: []string{"::/0"}, host: "fd00::1", want: ReasonAddress},
		"IPv6, all, public":     {reason: "nothing to open", allow: []string{"::/0"}, host: "2606:4700::1", want: ReasonAllowed},
		"loopback, listed":      {reason: "a platform team may mean it", allow: []string{"127.0.0.1:5432"}, host: "127.1", port: 5432, want: ReasonAllowed},
		"loopback, translated":  {reason: "the address that is inside", allow: []string{"64:ff9b::/96"}, host: "64:ff9b::7f00:1", want: ReasonAddress, says: "loopback"},
		"translator, listed":    {reason: "the same host", allow: []string{"93.184.215.14"}, host: "64:ff9b::5db8:d70e", want: ReasonAllowed},
		"translator, denied":    {reason: "the same host", allow: []string{"64:ff9b::/96"}, deny: []string{"93.184.215.14"}, host: "64:ff9b::5db8:d70e", want: ReasonDenied},
		"this host, all listed": {reason: "nothing opens it", allow: []string{"0.0.0.0/0"}, host: "0.0.0.0", want: ReasonAddress, says: "this host"},

		"no host":   {reason: "malformed", allow: []string{"*"}, host: "", want: ReasonInvalidHost},
		"user":      {reason: "malformed", allow: []string{"*"}, host: "a@b.example", want: ReasonInvalidHost},
		"zone":      {reason: "malformed", allow: []string{"::/0"}, host: "2606:4700::1%eth0", want: ReasonInvalidHost, says: "zone"},
		"half addr": {reason: "malformed", allow: []string{"*"}, host: "1.2.3.4.5", want: ReasonInvalidHost},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			q := Query{Protocol: ProtocolConnect, Host: c.host, Port: c.port}
			if q.Port == 0 {
				q.Port = 443
			}
			for _, text := range c.resolved {
				q.Addresses = append(q.Addresses, netip.MustParseAddr(text))
			}
			d := mustCompile(t, Policy{AllowedDomains: c.allow, DeniedDomains: c.deny}).Decide(q)
			if d.Reason != c.want || d.Allowed != (c.want == ReasonAllowed) || d.Message == "" {
				t.Errorf("Decide(%+v) = %+v, want %s (%s)", q, d, c.want, c.reason)
			}
			if !strings.Contains(d.Rule, c.rule) || !strings.Contains(d.Message, c.says) {
				t.Errorf("Decide(%+v): rule %q, message %q, want %q and %q in them (%s)", q, d.Rule, d.Message, c.rule, c.says, c.reason)
			}
		})
	}
}

// TestSpecialAddresses goes through what nobody may reach by default, as an address and as what an allowed name resolves to.
func TestSpecialAddresses(t *testing.T) {
	rules := mustCompile(t, Policy{AllowedDomains: []string{"*", "0.0.0.0/0", "::/0"}})
	special := map[string]string{ // address: what the reason says that it is
		"0.0.0.0": "this host", "0.1.2.3": "this host", "::": "this host",
		"127.0.0.1": "loopback", "127.255.255.254": "loopback", "::1": "loopback",
		"10.0.0.1": "private", "172.16.0.1": "private", "172.31.255.255": "private", "192.168.1.1": "private",
		"fc00::1": "private", "fdff::1": "private", "fec0::1": "private", "64:ff9b:1::1": "private",
		"100.64.0.1": "carrier", "100.127.255.255": "carrier",
		"169.254.0.1": "link-local", "fe80::1": "link-local", "febf::1": "link-local",
		"169.254.169.254": "metadata", "169.254.170.2": "metadata", "100.100.100.200": "metadata", "168.63.129.16": "metadata",
		"192.0.0.192": "metadata", "fd00:ec2::254": "metadata", "fd20:ce::254": "metadata",
		"224.0.0.1": "multicast", "239.255.255.255": "multicast", "ff02::1": "multicast",
		"255.255.255.255": "broadcast", "240.0.0.1": "reserved", "::127.0.0.1": "reserved", "::ffff:0:7f00:1": "reserved", "4000::1": "reserved", "100::1": "reserved",
		"192.0.0.1": "protocol", "2001::1": "protocol", "2001:2::1": "protocol", "2001:20::1": "protocol",
		"192.88.99.1": "tunnels", "2002:7f00:1::1": "tunnels",
		"198.18.0.1": "benchmarks", "198.19.255.255": "benchmarks",
		"192.0.2.1": "documentation", "198.51.100.1": "documentation", "203.0.113.1": "documentation", "2001:db8::1": "documentation", "3fff::1": "documentation",
	}
	for text, says := range special {
		addr := netip.MustParseAddr(text)
		for name, q := range map[string]Query{
			"literal":  {Host: text, Port: 443},
			"resolved": {Host: "example.com", Port: 443, Addresses: []netip.Addr{addr}},
		} {
			if d := rules.Decide(q); d.Allowed || d.Reason != ReasonAddress || d.Address != addr || !strings.Contains(d.Message, says) {
				t.Errorf("%s %s: %+v, want %s with %q in the message", name, text, d, ReasonAddress, says)
			}
		}
	}
	for _, text := range []string{
		"1.1.1.1", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.1", "126.255.255.255", "128.0.0.1", "168.63.129.15",
		"172.15.255.255", "172.32.0.1", "192.0.1.1", "192.167.255.255", "198.17.255.255", "198.20.0.1", "223.255.255.255",
		"2600::1", "2001:200::1", "2001:4860:4860::8888", "3ffe::1", "64:ff9b::101:101",
	} {
		addr := netip.MustParseAddr(text)
		for name, q := range map[string]Query{
			"literal":  {Host: text, Port: 443},
			"resolved": {Host: "example.com", Port: 443, Addresses: []netip.Addr{addr}},
		} {
			if d := rules.Decide(q); !d.Allowed {
				t.Errorf("%s %s: %+v, want it allowed", name, text, d)
			}
		}
	}
}

func TestDecideMethods(t *testing.T) {
	limited := mustCompile(t, Policy{AllowedDomains: []string{"example.com"}, Methods: LimitedMethods})
	full := mustCompile(t, Policy{AllowedDomains: []string{"example.com"}})
	cases := map[string]struct {
		reason string
		query  Query
		want   Reason // with Limited; with Full all are allowed
	}{
		"GET":             {reason: "reads", query: Query{Protocol: ProtocolHTTP, Method: "GET"}, want: ReasonAllowed},
		"HEAD":            {reason: "reads", query: Query{Protocol: ProtocolHTTP, Method: "HEAD"}, want: ReasonAllowed},
		"OPTIONS":         {reason: "reads", query: Query{Protocol: ProtocolHTTP, Method: "OPTIONS"}, want: ReasonAllowed},
		"GET with a body": {reason: "carries something out", query: Query{Protocol: ProtocolHTTP, Method: "GET", Body: true}, want: ReasonMethod},
		"POST":            {reason: "writes", query: Query{Protocol: ProtocolHTTP, Method: "POST"}, want: ReasonMethod},
		"get":             {reason: "methods have a case, and this one is unknown", query: Query{Protocol: ProtocolHTTP, Method: "get"}, want: ReasonMethod},
		"TRACE":           {reason: "not on the list", query: Query{Protocol: ProtocolHTTP, Method: "TRACE"}, want: ReasonMethod},
		"CONNECT":         {reason: "hides its methods", query: Query{Protocol: ProtocolConnect, Method: "CONNECT"}, want: ReasonMethod},
		"SOCKS":           {reason: "hides its methods", query: Query{Protocol: ProtocolSOCKS}, want: ReasonMethod},
		"no protocol":     {reason: "a question that forgot it is not answered with yes", query: Query{Method: "GET"}, want: ReasonMethod},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.query.Host, c.query.Port = "example.com", 80
			if d := limited.Decide(c.query); d.Reason != c.want || d.Allowed != (c.want == ReasonAllowed) || !d.Allowed && d.Rule != `network.methods "Limited"` {
				t.Errorf("Limited: %+v, want %s (%s)", d, c.want, c.reason)
			}
			if d := full.Decide(c.query); !d.Allowed {
				t.Errorf("Full: %+v, want it allowed", d)
			}
		})
	}
}

func TestDecideServerName(t *testing.T) {
	rules := mustCompile(t, Policy{AllowedDomains: []string{"**.example.com", "93.184.215.14"}, DeniedDomains: []string{"secret.example.com"}})
	cases := map[string]struct {
		reason string
		tunnel string
		name   string
		want   Reason
	}{
		"same":           {reason: "the common case", tunnel: "www.example.com", name: "www.example.com", want: ReasonAllowed},
		"other case":     {reason: "the same name", tunnel: "www.example.com", name: "WWW.example.com", want: ReasonAllowed},
		"other, allowed": {reason: "a tunnel is for one name", tunnel: "www.example.com", name: "api.example.com", want: ReasonServerName},
		"other":          {reason: "another site of the same network", tunnel: "www.example.com", name: "evil.example", want: ReasonServerName},
		"denied":         {reason: "the reason is the denial", tunnel: "www.example.com", name: "secret.example.com", want: ReasonDenied},
		"to an address":  {reason: "the policy trusts the address", tunnel: "93.184.215.14", name: "git.example.org", want: ReasonAllowed},
		"denied, there":  {reason: "deny wins", tunnel: "93.184.215.14", name: "secret.example.com", want: ReasonDenied},
		"malformed":      {reason: "no name", tunnel: "www.example.com", name: "a b", want: ReasonServerName},
		"address":        {reason: "another host", tunnel: "www.example.com", name: "127.0.0.1", want: ReasonServerName},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := rules.DecideServerName(c.tunnel, 443, c.name)
			if d.Reason != c.want || d.Allowed != (c.want == ReasonAllowed) || d.Message == "" {
				t.Errorf("DecideServerName(%q, %q) = %+v, want %s (%s)", c.tunnel, c.name, d, c.want, c.reason)
			}
		})
	}
}

func TestNoRulesAllowNothing(t *testing.T) {
	var none *Rules
	if d := none.Decide(Query{Protocol: ProtocolConnect, Host: "example.com", Port: 443}); d.Allowed || d.Reason != ReasonNoPolicy {
		t.Errorf("Decide: %+v", d)
	}
	if d := none.DecideServerName("example.com", 443, "example.com"); d.Allowed || d.Reason != ReasonNoPolicy {
		t.Errorf("DecideServerName: %+v", d)
	}
	zero := &Rules{}
	if d := zero.Decide(Query{Protocol: ProtocolConnect, Host: "example.com", Port: 443}); d.Allowed {
		t.Errorf("Decide: %+v", d)
	}
}

// FuzzDecide holds the rules to what people rely on: an entry more in the denied ones never allows more, an
// entry less in the allowed ones neither, and an allowed host resolves to special addresses only where they are listed.
func FuzzDecide(f *testing.F) {
	f.Add("**.example.com", "secret.example.com", "a.example.com", uint16(443), []byte{10, 0, 0, 5})
	f.Add("10.0.0.0/8", "*.0x", "0x0a000005", uint16(80), []byte{127, 0, 0, 1})
	f.Add("*:443", "[fd00::/8]:1", "[64:ff9b::a00:5]", uint16(443), []byte("\x00\x64\xff\x9b00000000\xa9\xfe\xa9\xfe"))
	f.Fuzz(func(t *testing.T, allow, deny, asked string, port uint16, resolved []byte) {
		compile := func(allowed, denied []string) *Rules {
			rules, err := Compile(Policy{AllowedDomains: allowed, DeniedDomains: denied, Methods: FullMethods}, clusterRanges)
			if err != nil {
				return nil
			}
			return rules
		}
		q := Query{Protocol: ProtocolConnect, Host: asked, Port: port}
		if addr, ok := netip.AddrFromSlice(resolved); ok {
			q.Addresses = []netip.Addr{addr}
		}
		open := compile([]string{allow}, nil)
		if open == nil {
			return
		}
		allowed := open.Decide(q).Allowed
		if closed := compile([]string{allow}, []string{deny}); closed != nil && closed.Decide(q).Allowed && !allowed {
			t.Fatalf("denying %q allows %q", deny, asked)
		}
		if compile(nil, nil).Decide(q).Allowed {
			t.Fatalf("an empty policy allows %q", asked)
		}
		if wider := compile([]string{allow, "example.com"}, nil); allowed && !wider.Decide(q).Allowed {
			t.Fatalf("one more allowed entry refuses %q", asked)
		}
		if allowed && len(open.allow.prefixes) == 0 && len(q.Addresses) == 1 {
			ends := destinations(q.Addresses[0])
			if last := ends[len(ends)-1]; last.IsPrivate() || last.IsLoopback() || last.IsLinkLocalUnicast() || last.IsMulticast() || last.IsUnspecified() {
				t.Fatalf("the policy %q allows %q at %v", allow, asked, last)
			}
		}
	})
}
