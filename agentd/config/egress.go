package config

import (
	"errors"
	"fmt"
	"unicode"

	"execsession.dev/sandbox"
	"execsession.dev/sandbox/egress"
)

const (
	maxGuarded      = 1024
	maxGuardedBytes = 128 // of a name
)

// EgressRules are what the proxy of network mode Proxy is told, with the ranges that it guards
// beside its own. The error is an *egress.FieldError.
func EgressRules(network sandbox.Network, guarded []egress.Range) (*egress.Rules, error) {
	return egress.Compile(egress.Policy{
		AllowedDomains: network.AllowedDomains, DeniedDomains: network.DeniedDomains, Methods: egress.Methods(network.Methods),
	}, guarded)
}

// EgressRanges are a document's guarded ranges as the proxy takes them.
func EgressRanges(guarded []Range) []egress.Range {
	ranges := make([]egress.Range, len(guarded))
	for i, r := range guarded {
		ranges[i] = egress.Range{Prefix: r.Prefix, Name: r.Name}
	}
	return ranges
}

func (d ProfileDocument) validateGuarded() error {
	mode := d.Policy.Sandbox.Network.Mode
	switch {
	case len(d.Guarded) == 0:
		return nil
	case mode != sandbox.ProxyNetwork:
		return &FieldError{Field: "guarded", Value: len(d.Guarded), Reason: "must be empty in network mode " + string(mode)}
	case len(d.Guarded) > maxGuarded:
		return &FieldError{Field: "guarded", Value: len(d.Guarded), Reason: fmt.Sprintf("must be at most %d items", maxGuarded)}
	}
	for i, r := range d.Guarded {
		if err := checkGuardedName(fmt.Sprintf("guarded[%d].name", i), r.Name); err != nil {
			return err
		}
	}
	_, err := EgressRules(d.Policy.Sandbox.Network, EgressRanges(d.Guarded))
	if field, ok := errors.AsType[*egress.FieldError](err); ok {
		return &FieldError{Field: field.Field, Value: field.Value, Reason: field.Reason}
	}
	return err
}

// checkGuardedName keeps what a client is told in one line.
func checkGuardedName(field, name string) error {
	ok := name != "" && len(name) <= maxGuardedBytes
	for _, r := range name {
		ok = ok && r != unicode.ReplacementChar && unicode.IsPrint(r)
	}
	if ok {
		return nil
	}
	return &FieldError{Field: field, Value: name, Reason: fmt.Sprintf("must be 1 to %d printable characters", maxGuardedBytes)}
}
