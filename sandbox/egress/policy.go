package egress

import (
	"fmt"
	"net/netip"
	"strconv"
)

// Methods says what a client may do with the hosts that it may reach.
type Methods string

// The methods.
const (
	// LimitedMethods allows plain HTTP that reads: GET, HEAD and OPTIONS without a body. Tunnels, which
	// hide their methods, are refused.
	LimitedMethods Methods = "Limited"
	// FullMethods allows every method and tunnels.
	FullMethods Methods = "Full"
)

// Policy says which hosts may be reached. The zero value is invalid: a policy is
// always complete, so that a field that was forgotten can not widen it.
//
// An entry of a list is one of these, each with an optional :port that narrows it to that port:
//
//	example.com         the name itself
//	*.example.com       every name below it, at any depth
//	**.example.com      the name itself and every name below it
//	*                   every name, but no address (AllowedDomains only)
//	192.0.2.7, 2001:db8::1, 10.0.0.0/8, [2001:db8::1]:443    an address, or every address of a prefix
//
// A denied entry wins over an allowed one. Empty lists allow nothing.
type Policy struct {
	AllowedDomains []string `json:"allowedDomains,omitempty"`
	DeniedDomains  []string `json:"deniedDomains,omitempty"`
	Methods        Methods  `json:"methods"`
}

// maxEntries bounds each list of a policy.
const maxEntries = 4096

// Rules are a policy that was checked and indexed. They do not change.
type Rules struct {
	allow   list
	deny    list
	guarded []Range
	methods Methods
}

// Compile checks a policy. The guarded ranges, such as the cluster's pods, services and API servers, are
// refused beside those that nobody may reach by default; a range's name is part of the reason that a client gets.
// The error is a *FieldError for the first value that is not acceptable.
func Compile(policy Policy, guarded []Range) (*Rules, error) {
	rules := &Rules{methods: policy.Methods}
	if policy.Methods != LimitedMethods && policy.Methods != FullMethods {
		return nil, &FieldError{Field: "network.methods", Value: string(policy.Methods), Reason: "must be one of Limited, Full"}
	}
	for i, r := range guarded {
		if !r.Prefix.IsValid() || r.Prefix != r.Prefix.Masked() || r.Prefix.Addr().Is4In6() {
			return nil, &FieldError{Field: fmt.Sprintf("guarded[%d]", i), Value: r.Prefix.String(), Reason: "must be a prefix such as 10.0.0.0/8, without bits behind its length"}
		}
		rules.guarded = append(rules.guarded, r)
	}
	var err error
	if rules.allow, err = parseList("network.allowedDomains", policy.AllowedDomains); err != nil {
		return nil, err
	}
	if rules.deny, err = parseList("network.deniedDomains", policy.DeniedDomains); err != nil {
		return nil, err
	}
	if len(rules.deny.every) > 0 {
		return nil, rules.deny.every[0].reject("would refuse every name: leave the allowed entries out instead")
	}
	for _, p := range rules.allow.prefixes {
		if r, found := within(unreachable, p.prefix); found {
			return nil, p.reject("is " + r.Name + ", where no connection can be made to")
		}
	}
	return rules, nil
}

// FieldError says that a value of a policy is not acceptable.
type FieldError struct {
	// Field is the path of the field as a document spells it, such as network.allowedDomains[1].
	Field string
	// Value is the value that was refused.
	Value string
	// Reason says what the field takes.
	Reason string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: value %q: %s", e.Field, e.Value, e.Reason)
}

// Range is a prefix of addresses and what it is.
type Range struct {
	Prefix netip.Prefix
	// Name continues the sentence "it is ...", such as "a service of the cluster".
	Name string
}

// portSuffix spells a port as the end of an authority.
func portSuffix(port uint16) string { return ":" + strconv.Itoa(int(port)) }
