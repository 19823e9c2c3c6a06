package agentd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/ledger"
	"execsession.dev/sandbox"
	"execsession.dev/sandbox/egress"
	"execsession.dev/unifiedexec"
)

// Reasons of an invalid policy, in GetStatus and in the ledger.
const (
	ReasonDocumentMissing   = "DocumentMissing"
	ReasonDocumentMalformed = "DocumentMalformed"
	ReasonDocumentForged    = "DocumentForged"
	ReasonDocumentInvalid   = "DocumentInvalid"
	ReasonDocumentForeign   = "DocumentForeign"
	ReasonDocumentOutdated  = "DocumentOutdated"
	ReasonProfileOutOfSync  = "ProfileOutOfSync"
	ReasonNotEnforceable    = "NotEnforceable"
	ReasonNotUsable         = "NotUsable"

	// reasonStopping is never told: calls get the error of an agent that is ending.
	reasonStopping = "Stopping"
)

// syncPatience is how long a call that launches waits for a profile document that is
// on its way: the kubelet brings both files within a fraction of a second.
const syncPatience = 2 * time.Second

// documents are a policy's sources after verification, or why there are none.
type documents struct {
	policy config.Policy
	shell  config.Shell
	// guarded are the cluster's own addresses, for the proxy.
	guarded  []egress.Range
	hash     string
	revision int64
	// reason is empty when the documents are valid.
	reason  string
	message string
}

// same says whether two readings mean the same, so that nothing has to change.
func (d documents) same(other documents) bool {
	if d.reason != "" || other.reason != "" {
		return d.reason == other.reason && d.message == other.message
	}
	// The revision stands for the whole session document and the hash for the profile.
	return d.hash == other.hash && d.revision == other.revision && d.shell == other.shell
}

// policyState is a policy in force, or its absence. It does not change once made.
type policyState struct {
	documents
	launcher *sandbox.Launcher // nil when invalid
	// narrowed are those of commands that ask for less.
	narrowed narrowedLaunchers
	// rules and proxy are set in network mode Proxy.
	rules   *egress.Rules
	proxy   netip.AddrPort
	report  sandbox.Report
	changed chan struct{} // closed when another state replaced this one
}

func (s *policyState) valid() bool { return s.reason == "" }

// policyError says that nothing may start, and why.
type policyError struct {
	reason  string
	message string
}

func (e *policyError) Error() string {
	return fmt.Sprintf("no command runs without a valid policy: %s: %s", e.reason, e.message)
}

// errPolicyReplaced is the gate's answer when the policy changed between a call's
// admission and its start.
var errPolicyReplaced = errors.New("the policy changed while the command was being started")

// engineSettings is what the policy needs of the engine.
type engineSettings interface {
	Configure(unifiedexec.Settings) error
}

// policy holds the policy in force.
type policy struct {
	layout sandbox.Layout
	caps   sandbox.Capabilities
	// base is the part of the engine's settings that no document changes.
	base   unifiedexec.Settings
	engine engineSettings
	// denials is told what commands are refused.
	denials *denials
	// proxy serves network mode Proxy.
	proxy proxy
	// onChange is told every change, in order.
	onChange func(*policyState)

	changeMu sync.Mutex // held while one state replaces another

	// gateMu is read-locked during a start, so that replacing a state waits for the
	// starts that rely on it.
	gateMu sync.RWMutex
	state  *policyState
}

// newPolicy begins without a policy: nothing runs until adopt is called.
func newPolicy(layout sandbox.Layout, caps sandbox.Capabilities, base unifiedexec.Settings) *policy {
	return &policy{
		layout: layout, caps: caps, base: base,
		onChange: func(*policyState) {},
		state: &policyState{
			documents: documents{reason: ReasonDocumentMissing, message: "no document was read yet"},
			changed:   make(chan struct{}),
		},
	}
}

// current returns the state in force.
func (p *policy) current() *policyState {
	p.gateMu.RLock()
	defer p.gateMu.RUnlock()
	return p.state
}

// adopt takes over what was read. Documents that cannot be put into force leave no
// policy, whatever was in force before.
func (p *policy) adopt(read documents) {
	p.changeMu.Lock()
	defer p.changeMu.Unlock()
	held := p.current()
	if held.reason == reasonStopping || held.same(read) {
		return
	}
	next := &policyState{documents: read, changed: make(chan struct{})}
	// What the kernel offers is told also while nothing uses it.
	next.report.LandlockABI, next.report.Seccomp = p.caps.LandlockABI, p.caps.Seccomp
	if next.valid() {
		p.compile(next)
	}
	p.replace(next)
	p.onChange(next)
}

// compile fills in the launcher, or the reason why there is none.
func (p *policy) compile(next *policyState) {
	launcher, err := p.newLauncher(next)
	if err != nil {
		next.reason, next.message = ReasonNotUsable, err.Error()
		if gaps := new(sandbox.NotEnforceableError); errors.As(err, &gaps) {
			next.reason = ReasonNotEnforceable
			for _, gap := range gaps.Gaps {
				next.report.NotEnforced = append(next.report.NotEnforced, gap.String())
			}
		}
		return
	}
	next.launcher, next.report = launcher, launcher.Report()
	if err := p.engine.Configure(p.settings(next)); err != nil {
		next.reason, next.message = ReasonNotUsable, err.Error()
		return
	}
	launcher.Prepare()
}

// newLauncher compiles the sandbox. In network mode Proxy, the proxy has to listen before.
func (p *policy) newLauncher(next *policyState) (*sandbox.Launcher, error) {
	layout := p.layout
	network := next.policy.Sandbox.Network
	if network.Mode == sandbox.ProxyNetwork {
		address, err := p.proxy.listen(p.denials.refusedByProxy)
		if err != nil {
			return nil, err
		}
		if next.rules, err = proxyRules(network, next.guarded); err != nil {
			return nil, err
		}
		layout.Proxy, next.proxy = address, address
	}
	return sandbox.Compile(next.policy.Sandbox, layout, p.caps)
}

// replace puts next into force once no start relies on the old state any more.
func (p *policy) replace(next *policyState) {
	p.gateMu.Lock()
	old := p.state
	p.state = next
	// Commands that were started under another policy meet the rules of this one, or none.
	p.proxy.rules.Store(next.rules)
	p.gateMu.Unlock()
	close(old.changed)
	closeLauncher(old)
	if !next.valid() {
		closeLauncher(next)
	}
}

func closeLauncher(s *policyState) {
	s.narrowed.close()
	if s.launcher != nil {
		// Close only releases the ruleset; there is nothing to do about an error.
		_ = s.launcher.Close()
	}
}

// settings are the engine's settings under a state.
func (p *policy) settings(s *policyState) unifiedexec.Settings {
	settings := p.base
	settings.Start = p.gate(s)
	set := proxyEnvironment(s.proxy, s.policy.Environment.Set)
	if settings.Home != "" { // a pod's; on somebody's machine git asks with reason whose a folder is
		set = gitEnvironment(settings.Workdir, set)
	}
	settings.Environment = unifiedexec.EnvironmentPolicy{
		Inherit:     unifiedexec.Inherit(s.policy.Environment.Inherit),
		KeepSecrets: !s.policy.Environment.SecretExcludes,
		Exclude:     s.policy.Environment.Exclude,
		Set:         set,
		IncludeOnly: s.policy.Environment.IncludeOnly,
	}
	settings.Shell = unifiedexec.ShellSettings{
		Path:        s.shell.Path,
		Login:       unifiedexec.Login(s.shell.Login),
		Persistence: unifiedexec.Persistence(s.shell.Persistence),
		Snapshot:    true,
	}
	settings.Limits.MaxProcesses = s.policy.Limits.MaxProcesses
	settings.Limits.ProtectedProcesses = s.policy.Limits.ProtectedProcesses
	settings.Limits.BackgroundPollMax = time.Duration(s.policy.Limits.BackgroundPollMaxSeconds) * time.Second
	return settings
}

// gate is the engine's StartFunc under a state for what is no command of anybody: the shells of its own.
func (p *policy) gate(s *policyState) unifiedexec.StartFunc {
	return func(argv0 string, argv []string, attr *syscall.ProcAttr) (int, error) {
		return p.starter(s, s.launcher, &launch{})(argv0, argv, attr)
	}
}

// starter is the engine's StartFunc of one command under a state: it starts nothing once that state is no longer in force.
func (p *policy) starter(s *policyState, launcher *sandbox.Launcher, launched *launch) unifiedexec.StartFunc {
	return func(argv0 string, argv []string, attr *syscall.ProcAttr) (int, error) {
		p.gateMu.RLock()
		defer p.gateMu.RUnlock()
		if p.state != s {
			return 0, errPolicyReplaced
		}
		pid, err := launcher.StartWatched(argv0, argv, attr, p.denials.watch(launched))
		if err == nil {
			p.denials.begun(launched, pid)
		}
		return pid, err
	}
}

// closedGate is the engine's StartFunc until the first policy.
func closedGate(string, []string, *syscall.ProcAttr) (int, error) { return 0, errPolicyReplaced }

// admit returns the policy in force, or a *policyError. It waits a little for a pair
// of documents that is merely out of sync.
func (p *policy) admit(ctx context.Context) (*policyState, error) {
	var patience <-chan time.Time
	for {
		s := p.current()
		if s.valid() {
			return s, nil
		}
		if s.reason == reasonStopping {
			return nil, unifiedexec.ErrClosed
		}
		refusal := &policyError{reason: s.reason, message: s.message}
		if s.reason != ReasonProfileOutOfSync {
			return nil, refusal
		}
		if patience == nil {
			patience = time.After(syncPatience)
		}
		select {
		case <-s.changed:
		case <-patience:
			return nil, refusal
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// launchAttempts bounds how often a start is tried again because the policy changed
// under it; each attempt is admitted anew.
const launchAttempts = 3

// launch admits and starts, again if the policy was replaced in between.
func (p *policy) launch(ctx context.Context, start func(*policyState) error) error {
	var err error
	for range launchAttempts {
		var s *policyState
		if s, err = p.admit(ctx); err != nil {
			return err
		}
		if err = start(s); !errors.Is(err, errPolicyReplaced) {
			return err
		}
		// The engine may know the next state an instant before it is in force.
		if err := s.waitForChange(ctx); err != nil {
			return err
		}
	}
	return err
}

// waitForChange waits until another state is in force.
func (s *policyState) waitForChange(ctx context.Context) error {
	patience := time.NewTimer(syncPatience)
	defer patience.Stop()
	select {
	case <-s.changed:
		return nil
	case <-patience.C:
		return errPolicyReplaced
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close leaves no policy in force, for good.
func (p *policy) close() {
	p.changeMu.Lock()
	defer p.changeMu.Unlock()
	p.replace(&policyState{
		documents: documents{reason: reasonStopping, message: "agentd is ending"},
		changed:   make(chan struct{}),
	})
	p.proxy.close()
}

func (s *policyState) ledger() ledger.Policy {
	return ledger.Policy{
		Valid: s.valid(), Reason: s.reason, Message: s.message,
		ProfileHash: s.hash, SessionRevision: s.revision,
	}
}
