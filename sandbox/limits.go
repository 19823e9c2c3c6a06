package sandbox

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// limits are the resource limits that a policy may name, with the kernel's numbers.
var limits = map[string]int{
	"cpu":    0,
	"fsize":  1,
	"core":   4,
	"nproc":  6,
	"nofile": 7,
	"as":     9,
}

// limitSetting is a limit that the limiter sets.
type limitSetting struct {
	name       string
	number     int
	soft, hard uint64
}

// validateLimits refuses a limit without a name, and core dumps: they would hold what the command had in
// memory, and nobody but the node's own handler could fetch them.
func (p Process) validateLimits() error {
	for _, name := range slices.Sorted(maps.Keys(p.Limits)) {
		reason := ""
		if _, known := limits[name]; !known {
			reason = "the limit is unknown; limits are " + strings.Join(slices.Sorted(maps.Keys(limits)), ", ")
		} else if name == "core" && p.Limits[name] > 0 {
			reason = "core dumps are off for every command, so that only 0 can be kept"
		}
		if reason != "" {
			return &FieldError{Field: fmt.Sprintf("process.limits[%q]", name), Value: strconv.FormatUint(p.Limits[name], 10), Reason: reason}
		}
	}
	return nil
}

// planLimits decides which limits have to be set. One that the agent already lives under is inherited,
// and no command can raise it.
func (p *plan) planLimits(policy Policy, inherited func(limit int) (uint64, error)) error {
	for _, name := range slices.Sorted(maps.Keys(policy.Process.Limits)) {
		field, wanted := "process.limits."+name, policy.Process.Limits[name]
		have, err := inherited(limits[name])
		if err != nil {
			return fmt.Errorf("reading limit %q: %w", name, err)
		}
		if name == "nproc" {
			if uncountedUser() {
				p.gap(field, strconv.FormatUint(wanted, 10), "the kernel does not count the processes of user 0")
				continue
			}
			p.note("%s %d: the kernel counts all processes and threads of the user in its user namespace; without hostUsers: false those are of every pod of the node that runs as this user", field, wanted)
		}
		if name == "core" {
			wanted = noCore // 0 would be less
		}
		if have < wanted && name != "core" {
			p.note("%s %d: the agent itself lives under %d, which holds", field, wanted, have)
		}
		if have > wanted {
			p.limits = append(p.limits, newLimitSetting(name, wanted))
		}
	}
	return nil
}

// newLimitSetting leaves nothing to raise. For processor time the second between SIGXCPU, which tells why, and SIGKILL
// is added: with both at once only SIGKILL would come.
func newLimitSetting(name string, wanted uint64) limitSetting {
	hard := wanted
	if name == "cpu" && wanted < math.MaxInt64 {
		hard++
	}
	return limitSetting{name: name, number: limits[name], soft: wanted, hard: hard}
}

// uncountedUser is whether this is user 0 of the node, whose processes the kernel makes without a limit.
func uncountedUser() bool {
	if os.Geteuid() != 0 {
		return false
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	fields := strings.Fields(string(ids))
	return err != nil || len(fields) > 1 && fields[0] == "0" && fields[1] == "0"
}
