package config

import (
	"fmt"

	"execsession.dev/approval"
	"execsession.dev/sandbox"
)

// ParsePolicy reads a policy that nobody signed: the file of `agentd serve --local`
// and `agentd sandbox-exec`. It is as strict as a signed document.
func ParsePolicy(data []byte) (Policy, error) {
	var policy Policy
	if err := decodeStrict(data, &policy); err != nil {
		return Policy{}, fmt.Errorf("reading the policy: %w", err)
	}
	if err := policy.Validate(); err != nil {
		return Policy{}, fmt.Errorf("checking the policy: %w", err)
	}
	if err := refuseMissing(data, policy); err != nil {
		return Policy{}, fmt.Errorf("reading the policy: %w", err)
	}
	return policy, nil
}

// DefaultPolicy is the policy of a local agent that was given none: the workspace is
// writable, the network is closed.
func DefaultPolicy() Policy {
	return Policy{
		Sandbox: sandbox.Policy{
			Filesystem:  sandbox.Filesystem{Mode: sandbox.WorkspaceWrite},
			Network:     sandbox.Network{Mode: sandbox.NoNetwork},
			Enforcement: sandbox.Required,
		},
		Approval:    approval.Policy{Escalation: approval.EscalationNever},
		Environment: Environment{Inherit: InheritAll, SecretExcludes: true},
		Limits:      Limits{MaxProcesses: 64, ProtectedProcesses: 8, BackgroundPollMaxSeconds: 300},
		Output:      Output{Ledger: LedgerDigest},
	}
}

// DefaultShell is the shell of a local agent: detected, with a login shell allowed.
func DefaultShell() Shell {
	return Shell{Login: LoginAllowed, Persistence: PersistenceNone}
}

// Validate returns a *FieldError for the first value that is not acceptable.
func (s Shell) Validate() error { return s.validate("shell.") }
