package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"execsession.dev/agentd/config"
	"execsession.dev/api/v1alpha1"
	"execsession.dev/approval"
	"execsession.dev/sandbox"
	"execsession.dev/sandbox/egress"
)

// Compile turns a profile into the policy that agentd enforces. Values that the API
// server fills in are filled in here too, so that a profile means the same however it came.
func Compile(spec v1alpha1.SandboxProfileSpec) (config.Policy, error) {
	policy := config.Policy{
		Sandbox: sandbox.Policy{
			Filesystem: sandbox.Filesystem{
				Mode:          sandbox.FilesystemMode(or(spec.Filesystem.Mode, "WorkspaceWrite")),
				WritableRoots: texts(spec.Filesystem.WritableRoots),
				ReadOnlyPaths: texts(spec.Filesystem.ReadOnlyPaths),
				DeniedPaths:   texts(spec.Filesystem.DeniedPaths),
			},
			Network:        compileNetwork(spec.Network),
			Process:        compileProcess(spec.Process),
			Enforcement:    sandbox.Enforcement(or(spec.Enforcement, "Required")),
			MinLandlockABI: int(spec.MinLandlockABI),
		},
		Approval:    approval.Policy{Escalation: approval.EscalationNever},
		Environment: compileEnvironment(spec.Environment),
		Limits:      compileLimits(spec.Limits),
		Output:      config.Output{Ledger: string(or(spec.Output.Ledger, "Digest"))},
	}
	if err := policy.Validate(); err != nil {
		return config.Policy{}, fmt.Errorf("compiling the profile: %w", err)
	}
	return policy, nil
}

// PolicyHash is a hash of what a policy says, the same in every namespace.
func PolicyHash(policy config.Policy) (string, error) {
	data, err := json.Marshal(policy)
	if err != nil {
		return "", fmt.Errorf("hashing a policy: %w", err)
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// compileNetwork: what the author of a profile listed is reached by every method unless the profile says less;
// with Limited as the default, no list would let HTTPS through.
func compileNetwork(network v1alpha1.ProfileNetwork) sandbox.Network {
	compiled := sandbox.Network{
		Mode:           sandbox.NetworkMode(or(network.Mode, "None")),
		AllowedDomains: texts(network.AllowedDomains),
		DeniedDomains:  texts(network.DeniedDomains),
		Methods:        string(network.Methods),
	}
	if compiled.Mode == sandbox.ProxyNetwork {
		compiled.Methods = or(compiled.Methods, string(egress.FullMethods))
	}
	return compiled
}

func compileProcess(process *v1alpha1.ProfileProcess) sandbox.Process {
	if process == nil {
		return sandbox.Process{}
	}
	compiled := sandbox.Process{DeniedSyscalls: process.DeniedSyscalls}
	if process.Limits == nil {
		return compiled
	}
	compiled.Limits = map[string]uint64{}
	for name, value := range map[string]*int64{
		"nofile": process.Limits.OpenFiles,
		"fsize":  process.Limits.FileSizeBytes,
		"cpu":    process.Limits.CPUSeconds,
		"as":     process.Limits.AddressSpaceBytes,
		"nproc":  process.Limits.Processes,
		"core":   process.Limits.CoreBytes,
	} {
		if value != nil && *value >= 0 {
			compiled.Limits[name] = uint64(*value)
		}
	}
	return compiled
}

func compileEnvironment(env v1alpha1.ProfileEnvironment) config.Environment {
	compiled := config.Environment{
		Inherit:        string(or(env.Inherit, "All")),
		SecretExcludes: or(env.SecretExcludes, v1alpha1.SecretExcludesEnabled) == v1alpha1.SecretExcludesEnabled,
		Exclude:        texts(env.Exclude),
		IncludeOnly:    texts(env.IncludeOnly),
	}
	for _, variable := range env.Set {
		if compiled.Set == nil {
			compiled.Set = make(map[string]string, len(env.Set))
		}
		compiled.Set[variable.Name] = variable.Value
	}
	return compiled
}

func compileLimits(limits v1alpha1.ProfileLimits) config.Limits {
	protected := int32(8)
	if limits.ProtectedProcesses != nil {
		protected = *limits.ProtectedProcesses
	}
	return config.Limits{
		MaxProcesses:             int(or(limits.MaxProcesses, 64)),
		ProtectedProcesses:       int(protected),
		BackgroundPollMaxSeconds: int(or(limits.BackgroundPollMaxSeconds, 300)),
	}
}

func or[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}

func texts[T ~string](values []T) []string {
	if len(values) == 0 {
		return nil
	}
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}
