package sandbox

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Compile turns a policy into a Launcher for this layout and kernel. The error is
// a *FieldError for a value that is not acceptable and a *NotEnforceableError
// when enforcement is Required and something cannot be enforced; it lists all of it.
func Compile(policy Policy, layout Layout, caps Capabilities) (*Launcher, error) {
	if err := policy.Validate(); err != nil {
		return nil, err
	}
	if err := layout.validate(); err != nil {
		return nil, err
	}
	plan, limiter, err := newLimitedPlan(policy, layout, caps)
	if err != nil {
		return nil, fmt.Errorf("compiling policy: %w", err)
	}
	if policy.Enforcement == Required && len(plan.gaps) > 0 {
		_ = limiter.close() // nobody has used it
		return nil, &NotEnforceableError{Gaps: plan.gaps}
	}
	launcher, err := newLauncher(plan, caps, limiter)
	if err != nil {
		_ = limiter.close() // nobody has used it
		return nil, err
	}
	launcher.made = origin{policy: policy, layout: layout, caps: caps, gaps: plan.gaps}
	return launcher, nil
}

// newLimitedPlan makes a plan and its limiter. A command that could signal the thread that starts it has no scope of signals.
func newLimitedPlan(policy Policy, layout Layout, caps Capabilities) (*plan, *limiter, error) {
	plan, err := newPlan(policy, layout, caps, hardLimit)
	if err != nil {
		return nil, nil, err
	}
	limiter, missing := plan.newLimiter()
	if missing == nil || !plan.openStarter() {
		return plan, limiter, nil
	}
	caps.LandlockABI = abiScopes - 1
	if plan, err = newPlan(policy, layout, caps, hardLimit); err != nil {
		return nil, nil, err
	}
	plan.note("Landlock is used as if it had ABI %d: in a later one's scopes, a start would need a program in memory: %v", caps.LandlockABI, missing)
	limiter, _ = plan.newLimiter() // What is missing is a gap of the plan.
	return plan, limiter, nil
}

func newLauncher(p *plan, caps Capabilities, limiter *limiter) (*Launcher, error) {
	launcher := &Launcher{noNewPrivs: caps.NoNewPrivs, limiter: limiter, report: p.report(caps)}
	if caps.NoNewPrivs && caps.Seccomp {
		if err := launcher.addFilters(p, caps); err != nil {
			return nil, err
		}
	}
	if !caps.NoNewPrivs {
		p.abi = 0
	}
	rules, err := newRuleset(p)
	if err != nil {
		return nil, err
	}
	launcher.rules = []*ruleset{rules}
	launcher.threads.again = rules.fd < 0 && len(launcher.program) == 0
	launcher.threads.none = launcher.threads.again && hasNothingToLose(caps)
	return launcher, nil
}

// hasNothingToLose is whether the process is already what a thread becomes that nothing else confines. Capabilities that
// are permitted and not in effect count: a program that is executed might get them.
func hasNothingToLose(caps Capabilities) bool {
	sets, err := threadCapabilities()
	if err != nil || sets[0].Permitted|sets[1].Permitted != 0 {
		return false
	}
	if !caps.NoNewPrivs {
		return true
	}
	noNewPrivs, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	return err == nil && noNewPrivs == 1
}

// addFilters makes the filter and, where a supervisor is possible, its twin for one.
func (l *Launcher) addFilters(p *plan, caps Capabilities) error {
	arch, ok := architectures[caps.Arch]
	if !ok {
		return fmt.Errorf("assembling filter: there are no numbers for the architecture %q", caps.Arch)
	}
	var err error
	l.decisions = indexRules(arch, p.rules)
	if l.program, err = newProgram(arch, p.rules); err != nil || !caps.UserNotify {
		return err
	}
	l.notifyFlags, l.names = caps.NotifyFlags, syscallNames(arch, p.rules)
	l.access = broker{mode: p.network, proxy: p.proxy, scopes: p.abi < abiScopes}
	l.brokered = slices.ContainsFunc(p.rules, func(r rule) bool { return r.then == askOwner })
	l.observed, err = newProgram(arch, observed(p.rules))
	return err
}

// newProgram assembles a filter in the kernel's form.
func newProgram(arch architecture, rules []rule) ([]unix.SockFilter, error) {
	raw, err := assemble(arch, rules)
	if err != nil {
		return nil, err
	}
	program := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		program[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return program, nil
}

func (p *plan) report(caps Capabilities) Report {
	report := Report{
		LandlockABI: p.abi,
		Seccomp:     caps.NoNewPrivs && caps.Seccomp,
		Denials:     caps.NoNewPrivs && caps.Seccomp && caps.UserNotify,
		Network:     string(p.network),
		Enforced:    len(p.gaps) == 0,
		NotEnforced: sentences(p.gaps),
		Notes:       p.notes,
	}
	if !caps.NoNewPrivs {
		report.LandlockABI = 0
	}
	if !report.Seccomp {
		report.Network = string(OpenNetwork)
	}
	return report
}

// hardLimit is the bound that children cannot raise.
func hardLimit(number int) (uint64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(number, &limit); err != nil {
		return 0, err
	}
	return limit.Max, nil
}
