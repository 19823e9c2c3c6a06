package egress

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestCompileErrors(t *testing.T) {
	many := strings.Split(strings.Repeat("example.com,", maxEntries+1), ",")[:maxEntries+1]
	allow := func(entries ...string) Policy { return Policy{AllowedDomains: entries, Methods: FullMethods} }
	deny := func(entries ...string) Policy { return Policy{DeniedDomains: entries, Methods: FullMethods} }
	cases := map[string]struct {
		reason string
		policy Policy
		field  string
		value  string
		says   string
	}{
		"no methods":          {reason: "a forgotten field does not widen", policy: Policy{}, field: "network.methods", says: "Limited, Full"},
		"unknown methods":     {reason: "spelled exactly", policy: Policy{Methods: "full"}, field: "network.methods", value: "full"},
		"empty":               {reason: "no entry", policy: allow("a.example", ""), field: "network.allowedDomains[1]"},
		"URL":                 {reason: "a common mistake", policy: allow("https://example.com"), field: "network.allowedDomains[0]", value: "https://example.com", says: "URL"},
		"path":                {reason: "a common mistake", policy: allow("example.com/path"), field: "network.allowedDomains[0]", says: "prefix"},
		"space":               {reason: "not trimmed", policy: allow(" example.com"), field: "network.allowedDomains[0]"},
		"wildcard within":     {reason: "no such patterns", policy: allow("a.*.example.com"), field: "network.allowedDomains[0]", says: "first label"},
		"wildcard in a label": {reason: "no such patterns", policy: allow("*example.com"), field: "network.allowedDomains[0]", says: "first label"},
		"three stars":         {reason: "no such patterns", policy: allow("***.example.com"), field: "network.allowedDomains[0]", says: "first label"},
		"two stars alone":     {reason: "one does", policy: allow("**"), field: "network.allowedDomains[0]"},
		"wildcard of nothing": {reason: "no name", policy: allow("*."), field: "network.allowedDomains[0]"},
		"wildcard of address": {reason: "addresses have prefixes", policy: allow("*.0.0.1"), field: "network.allowedDomains[0]", says: "prefix"},
		"all denied":          {reason: "an empty list of allowed ones says it", policy: deny("*"), field: "network.deniedDomains[0]", value: "*"},
		"all denied, a port":  {reason: "the same", policy: deny("*:22"), field: "network.deniedDomains[0]"},
		"port 0":              {reason: "no port", policy: allow("example.com:0"), field: "network.allowedDomains[0]", says: "65535"},
		"port name":           {reason: "no port", policy: allow("example.com:https"), field: "network.allowedDomains[0]", says: "65535"},
		"decimal address":     {reason: "people read policies", policy: allow("2130706433"), field: "network.allowedDomains[0]", says: "127.0.0.1"},
		"octal address":       {reason: "people read policies", policy: deny("0177.0.0.1"), field: "network.deniedDomains[0]", says: "127.0.0.1"},
		"mapped address":      {reason: "people read policies", policy: allow("::ffff:10.0.0.1"), field: "network.allowedDomains[0]", says: "10.0.0.1"},
		"mapped prefix":       {reason: "people read policies", policy: allow("::ffff:10.0.0.0/104"), field: "network.allowedDomains[0]"},
		"brackets twice":      {reason: "one pair holds an address", policy: allow("[[2001:db8::/32]"), field: "network.allowedDomains[0]"},
		"zone":                {reason: "an interface of this host", policy: allow("fe80::1%eth0"), field: "network.allowedDomains[0]"},
		"bits behind":         {reason: "either part may be the mistake", policy: allow("10.1.2.3/8"), field: "network.allowedDomains[0]", says: "10.0.0.0/8"},
		"this host":           {reason: "loopback by another name", policy: allow("0.0.0.0"), field: "network.allowedDomains[0]", says: "this host"},
		"multicast":           {reason: "no connections", policy: allow("ff02::1"), field: "network.allowedDomains[0]", says: "multicast"},
		"too many":            {reason: "bounded", policy: allow(many...), field: "network.allowedDomains", value: "4097"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			rules, err := Compile(c.policy, nil)
			var field *FieldError
			if !errors.As(err, &field) || rules != nil {
				t.Fatalf("Compile: %v, %v, want a *FieldError (%s)", rules, err, c.reason)
			}
			if field.Field != c.field || !strings.Contains(field.Reason, c.says) || c.value != "" && field.Value != c.value {
				t.Errorf("Compile: %v, want field %s, value %q, %q in the reason (%s)", err, c.field, c.value, c.says, c.reason)
			}
		})
	}
}

func TestFieldError(t *testing.T) {
	err := &FieldError{Field: "network.methods", Value: "full", Reason: "must be one of Limited, Full"}
	if want := `network.methods: value "full": must be one of Limited, Full`; err.Error() != want {
		t.Errorf("%q, want %q", err.Error(), want)
	}
}

// TestOwnRanges guards what this machine is reached by.
func TestOwnRanges(t *testing.T) {
	own, err := OwnRanges()
	if err != nil {
		t.Fatal(err)
	}
	loopback := Range{Prefix: netip.MustParsePrefix("127.0.0.1/32"), Name: nameLoopback}
	if !slices.Contains(own, loopback) {
		t.Errorf("%v, want 127.0.0.1 among them", own)
	}
	if _, err := Compile(Policy{Methods: FullMethods}, own); err != nil {
		t.Error(err)
	}
}

func TestCompileGuardedRanges(t *testing.T) {
	for name, prefix := range map[string]netip.Prefix{
		"none":        {},
		"bits behind": netip.MustParsePrefix("10.1.2.3/8"),
		"mapped":      netip.MustParsePrefix("::ffff:10.0.0.0/104"),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(Policy{Methods: FullMethods}, []Range{{Prefix: prefix, Name: "a thing"}})
			var field *FieldError
			if !errors.As(err, &field) || field.Field != "guarded[0]" {
				t.Errorf("Compile: %v, want a *FieldError for guarded[0]", err)
			}
		})
	}
}
