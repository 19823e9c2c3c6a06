package config

import (
	"execsession.dev/sandbox"
	"execsession.dev/sandbox/egress"
)

// EgressRules are what the proxy of network mode Proxy is told, with the ranges that it guards
// beside its own. The error is an *egress.FieldError.
func EgressRules(network sandbox.Network, guarded []egress.Range) (*egress.Rules, error) {
	return egress.Compile(egress.Policy{
		AllowedDomains: network.AllowedDomains, DeniedDomains: network.DeniedDomains, Methods: egress.Methods(network.Methods),
	}, guarded)
}
