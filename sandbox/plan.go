package sandbox

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"github.com/landlock-lsm/go-landlock/landlock"
)

// grant gives rights to a path and, if it is a folder, to everything below it.
type grant struct {
	path   string
	rights landlock.AccessFSSet
}

// plan is a policy turned into rules, before the kernel sees them.
type plan struct {
	abi     int
	network NetworkMode
	// proxy is set with ProxyNetwork.
	proxy  netip.AddrPort
	grants []grant
	rules  []rule
	// limits are those that the agent does not live under itself.
	limits []limitSetting
	// agent is this process if a supervisor in it answers what the rules ask, else 0.
	agent int
	gaps  []Gap
	notes []string
}

func (p *plan) gap(field, value, reason string) {
	p.gaps = append(p.gaps, Gap{Field: field, Value: value, Reason: reason})
}

func (p *plan) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// newPlan decides everything that Compile decides. It reads the file system, but
// changes and opens nothing.
func newPlan(policy Policy, layout Layout, caps Capabilities, inherited func(limit int) (uint64, error)) (*plan, error) {
	p := &plan{abi: effectiveABI(caps), network: policy.Network.Mode}
	if caps.NoNewPrivs && caps.Seccomp && caps.UserNotify {
		p.agent = os.Getpid()
	}
	p.planKernel(policy, caps)
	p.planNetwork(policy, layout, caps)
	if err := p.planLimits(policy, inherited); err != nil {
		return nil, err
	}
	if err := p.planFiles(policy, layout); err != nil {
		return nil, err
	}
	p.rules = filterRules(policy, p.network, p.abi, p.agent)
	return p, nil
}

func (p *plan) planKernel(policy Policy, caps Capabilities) {
	for _, level := range missingLevels(p.abi) {
		open := level.gap != "" && (level.asked == nil || p.agent == 0)
		if open {
			p.gap("landlockABI", strconv.Itoa(p.abi), level.gap)
		}
		if !open && level.note != "" {
			p.notes = append(p.notes, level.note)
		}
	}
	if p.abi < policy.MinLandlockABI {
		p.gap("minLandlockABI", strconv.Itoa(policy.MinLandlockABI), fmt.Sprintf("the kernel has Landlock ABI %d", p.abi))
	}
	if !caps.NoNewPrivs {
		p.gap("noNewPrivs", "false", "the kernel cannot set no_new_privs, without which neither Landlock nor a filter can be used")
	}
	if !caps.Seccomp {
		p.gap("seccomp", "false", "the kernel or the container refuses filters, so that no rule about the network or system calls holds")
		return
	}
	switch {
	case caps.NotifyTaken:
		p.note("denials are not observed: a supervisor above this process has taken the kernel's only place for one; the filter refuses the same calls itself")
	case !caps.UserNotify:
		p.note("denials are not observed: the kernel has no supervisor for filters; the filter refuses the same calls itself")
	}
}
