package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"execsession.dev/approval"
	"execsession.dev/sandbox"
	"execsession.dev/sandbox/egress"
)

// Values of Environment.Inherit.
const (
	InheritAll  = "All"
	InheritCore = "Core"
	InheritNone = "None"
)

// Values of Output.Ledger.
const (
	LedgerDigest = "Digest"
	LedgerFull   = "Full"
)

// Values of Shell.Login.
const (
	LoginAllowed   = "Allowed"
	LoginForbidden = "Forbidden"
)

// Values of Shell.Persistence.
const (
	PersistenceNone        = "None"
	PersistenceEnvironment = "Environment"
)

// Values of ProfileRef.Kind.
const (
	KindSandboxProfile        = "SandboxProfile"
	KindClusterSandboxProfile = "ClusterSandboxProfile"
)

const (
	maxPathBytes = 4096
	maxNameBytes = 253
	// maxProcesses is far above what a person or an agent uses; it bounds the memory
	// of the output logs.
	maxProcesses = 4096
	// minPollSeconds is the shortest wait of an empty poll.
	minPollSeconds = 5
	maxPollSeconds = 24 * 60 * 60
	maxListItems   = 1024
)

func (d ProfileDocument) header() (int, Kind) { return d.Version, d.Kind }

func (d SessionDocument) header() (int, Kind) { return d.Version, d.Kind }

// Validate checks every value.
func (d ProfileDocument) Validate() error {
	return firstOf(
		checkName("namespace", d.Namespace),
		checkOneOf("profile.kind", d.Profile.Kind, KindSandboxProfile, KindClusterSandboxProfile),
		checkName("profile.name", d.Profile.Name),
		checkName("profile.uid", d.Profile.UID),
		checkRange("profile.generation", d.Profile.Generation, 1, 1<<62),
		d.Policy.validate("policy."),
		d.validateGuarded(),
	)
}

// Validate checks every value.
func (d SessionDocument) Validate() error {
	return firstOf(
		checkName("namespace", d.Namespace),
		checkName("name", d.Name),
		checkName("uid", d.UID),
		checkRange("revision", d.Revision, 1, 1<<62),
		checkName("profile.uid", d.Profile.UID),
		checkHash("profile.hash", d.Profile.Hash),
		d.Shell.validate("shell."),
	)
}

// Validate checks every value. A policy is complete: nothing has a default, so that
// a value that was forgotten cannot widen it.
func (p Policy) Validate() error { return p.validate("") }

func (p Policy) validate(at string) error {
	return firstOf(
		validateSandbox(at+"sandbox.", p.Sandbox),
		checkOneOf(at+"approval.escalation", p.Approval.Escalation, approval.EscalationNever),
		p.Environment.validate(at+"environment."),
		checkRange(at+"limits.maxProcesses", p.Limits.MaxProcesses, 1, maxProcesses),
		checkRange(at+"limits.protectedProcesses", p.Limits.ProtectedProcesses, 0, p.Limits.MaxProcesses),
		checkRange(at+"limits.backgroundPollMaxSeconds", p.Limits.BackgroundPollMaxSeconds, minPollSeconds, maxPollSeconds),
		checkOneOf(at+"output.ledger", p.Output.Ledger, LedgerDigest, LedgerFull),
	)
}

// validateSandbox names the field as this document spells it.
func validateSandbox(at string, p sandbox.Policy) error {
	err := p.Validate()
	if field, ok := errors.AsType[*sandbox.FieldError](err); ok {
		return &FieldError{Field: at + field.Field, Value: field.Value, Reason: field.Reason}
	}
	if err != nil || p.Network.Mode != sandbox.ProxyNetwork {
		return err
	}
	_, err = EgressRules(p.Network, nil)
	if field, ok := errors.AsType[*egress.FieldError](err); ok {
		return &FieldError{Field: at + field.Field, Value: field.Value, Reason: field.Reason}
	}
	return err
}

func (e Environment) validate(at string) error {
	err := firstOf(
		checkOneOf(at+"inherit", e.Inherit, InheritAll, InheritCore, InheritNone),
		checkPatterns(at+"exclude", e.Exclude),
		checkPatterns(at+"includeOnly", e.IncludeOnly),
		checkLength(at+"set", len(e.Set)),
	)
	for _, name := range slices.Sorted(maps.Keys(e.Set)) {
		value := e.Set[name]
		err = firstOf(err, checkVariable(at+"set", name))
		if strings.ContainsRune(value, 0) {
			err = firstOf(err, &FieldError{Field: at + "set[" + strconv.Quote(name) + "]", Value: value, Reason: "must not hold a NUL byte"})
		}
	}
	return err
}

func (s Shell) validate(at string) error {
	err := firstOf(
		checkOneOf(at+"login", s.Login, LoginAllowed, LoginForbidden),
		checkOneOf(at+"persistence", s.Persistence, PersistenceNone, PersistenceEnvironment),
	)
	if s.Path != "" {
		err = firstOf(err, checkPath(at+"path", s.Path))
	}
	return err
}

// firstOf returns the first error, so that a check reads as a list.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkOneOf[T ~string](field string, value T, allowed ...T) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	words := make([]string, len(allowed))
	for i, a := range allowed {
		words[i] = string(a)
	}
	return &FieldError{Field: field, Value: string(value), Reason: "must be one of " + strings.Join(words, ", ")}
}

func checkRange[T int | int64](field string, value, low, high T) error {
	if value >= low && value <= high {
		return nil
	}
	return &FieldError{Field: field, Value: value, Reason: fmt.Sprintf("must be from %d to %d", low, high)}
}

func checkLength(field string, items int) error {
	if items <= maxListItems {
		return nil
	}
	return &FieldError{Field: field, Value: items, Reason: fmt.Sprintf("must be at most %d items", maxListItems)}
}

// checkName allows what names and uids of Kubernetes objects are made of.
func checkName(field, value string) error {
	if value != "" && len(value) <= maxNameBytes && strings.IndexFunc(value, notInName) < 0 {
		return nil
	}
	return &FieldError{Field: field, Value: value,
		Reason: fmt.Sprintf("must be 1 to %d letters, digits, dots, dashes or colons", maxNameBytes)}
}

func notInName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != ':'
}

func checkHash(field, value string) error {
	digits, ok := strings.CutPrefix(value, "sha256:")
	if sum, err := hex.DecodeString(digits); ok && err == nil && len(sum) == 32 && digits == strings.ToLower(digits) {
		return nil
	}
	return &FieldError{Field: field, Value: value, Reason: `must be "sha256:" and 64 lower-case hex digits`}
}

func checkPath(field, value string) error {
	if path.IsAbs(value) && path.Clean(value) == value && len(value) < maxPathBytes && !strings.ContainsRune(value, 0) {
		return nil
	}
	return &FieldError{Field: field, Value: value, Reason: "must be an absolute path without . or .. or a slash at its end"}
}

func checkPatterns(field string, values []string) error {
	err := checkLength(field, len(values))
	for i, value := range values {
		err = firstOf(err, checkVariable(fmt.Sprintf("%s[%d]", field, i), value))
	}
	return err
}

func checkVariable(field, name string) error {
	if name != "" && len(name) <= maxNameBytes && !strings.ContainsAny(name, "=\x00") {
		return nil
	}
	return &FieldError{Field: field, Value: name, Reason: "must be a variable's name, without = or NUL"}
}
