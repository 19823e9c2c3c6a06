package config

import (
	"crypto/ed25519"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"execsession.dev/sandbox"
	"execsession.dev/sandbox/egress"
)

func guardedDocument(guarded ...Range) ProfileDocument {
	doc := profileDocument()
	doc.Policy.Sandbox.Network = sandbox.Network{Mode: sandbox.ProxyNetwork, AllowedDomains: []string{"*"}, Methods: "Full"}
	doc.Guarded = guarded
	return doc
}

func TestGuardedRangesArrive(t *testing.T) {
	public, private := newKey(t, 0)
	services := Range{Prefix: netip.MustParsePrefix("93.184.0.0/16"), Name: "a service of the cluster"}
	sealed := mustSeal(t, KindProfile, guardedDocument(services), private)
	opened, _, err := OpenProfile(sealed, []ed25519.PublicKey{public})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := EgressRules(opened.Policy.Sandbox.Network, EgressRanges(opened.Guarded))
	if err != nil {
		t.Fatal(err)
	}
	query := egress.Query{Protocol: egress.ProtocolConnect, Host: "example.com", Port: 443, Addresses: []netip.Addr{netip.MustParseAddr("93.184.216.34")}}
	if d := rules.Decide(query); d.Reason != egress.ReasonAddress || !strings.Contains(d.Message, services.Name) {
		t.Errorf("an allowed name at a service's address: %+v, want %s for %q", d, egress.ReasonAddress, services.Name)
	}
	plain := guardedDocument()
	data, err := payloadOf(KindProfile, plain)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "guarded") {
		t.Errorf("a document without guarded ranges speaks of them: %s", data)
	}
}

func TestGuardedRangesThatAreRefused(t *testing.T) {
	prefix := netip.MustParsePrefix("10.96.0.0/16")
	cases := map[string]struct {
		reason string
		change func(*ProfileDocument)
		field  string
	}{
		"none":          {"they may be missing", func(d *ProfileDocument) { d.Guarded = nil }, ""},
		"good":          {"one with a name", func(*ProfileDocument) {}, ""},
		"other mode":    {"nothing would guard them", func(d *ProfileDocument) { d.Policy.Sandbox.Network = sandbox.Network{Mode: sandbox.OpenNetwork} }, "guarded"},
		"too many":      {"bounded", func(d *ProfileDocument) { d.Guarded = make([]Range, maxGuarded+1) }, "guarded"},
		"no prefix":     {"nothing is guarded", func(d *ProfileDocument) { d.Guarded[0].Prefix = netip.Prefix{} }, "guarded[0]"},
		"bits behind":   {"either part may be the mistake", func(d *ProfileDocument) { d.Guarded[0].Prefix = netip.MustParsePrefix("10.96.0.1/16") }, "guarded[0]"},
		"mapped":        {"addresses are compared as IPv4", func(d *ProfileDocument) { d.Guarded[0].Prefix = netip.MustParsePrefix("::ffff:10.0.0.0/104") }, "guarded[0]"},
		"no name":       {"a refusal says what it is", func(d *ProfileDocument) { d.Guarded[0].Name = "" }, "guarded[0].name"},
		"long name":     {"bounded", func(d *ProfileDocument) { d.Guarded[0].Name = strings.Repeat("n", maxGuardedBytes+1) }, "guarded[0].name"},
		"lines in name": {"it stands in a header", func(d *ProfileDocument) { d.Guarded[0].Name = "a\r\nX: y" }, "guarded[0].name"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			doc := guardedDocument(Range{Prefix: prefix, Name: "a service of the cluster"})
			tc.change(&doc)
			err := doc.Validate()
			var field *FieldError
			if errors.As(err, &field); tc.field == "" && err == nil || field != nil && field.Field == tc.field {
				return
			}
			t.Errorf("%s: got %v, want a FieldError of %q", tc.reason, err, tc.field)
		})
	}
}
