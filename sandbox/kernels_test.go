package sandbox

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// What the attempts meet on kernels that lack a right, beside what they meet on a new one.
var (
	// scopesDiffer is ABI 6: signals and abstract sockets.
	scopesDiffer = map[string]string{
		"its own abstract socket": "EPERM", "Unix pair": "EPROTONOSUPPORT",
		"signal by SIGIO": "EPERM", "own a socket by FIOSETOWN": "EPERM", "own a socket by SIOCSPGRP": "EPERM",
		"catch its own SIGIO": "EPERM", "SIGIO from a terminal": "EPERM", "SIGIO from a terminal by FIOASYNC": "EPERM",
		"signal a child's thread": "EPERM",
		"preempt the agent":       "", // the agent's runtime takes it for its own, and that is all it does
	}
	// unwatchedDiffer is where starts wait for the end of their thread instead.
	unwatchedDiffer = map[string]string{"own a socket by F_SETOWNEX": ""}
	// truncateDiffer is ABI 3.
	truncateDiffer = map[string]string{
		"truncate outside": "EPERM", "truncate in the workspace": "EPERM", "open outside with O_TRUNC": "EPERM",
		"open outside with O_TRUNC and mode 3": "EPERM", "openat2 outside with O_TRUNC": "ENOSYS",
	}
	// referDiffer is ABI 2.
	referDiffer = map[string]string{"rename between folders of the workspace": "EXDEV"}
)

// scopesTell and truncateTell are the rules by which it is told, because the kernel no longer refuses it without us.
var (
	scopesTell = map[string]string{
		"the agent's abstract socket": ruleAbstract, "its own abstract socket": ruleAbstract, "Unix pair": ruleAbstract,
		"signal by pidfd": ruleSignals, "kill": ruleSignals, "stop": ruleSignals, "terminate": ruleSignals, "kill its group": ruleSignals,
		"signal by SIGIO": ruleSignals, "signal the agent by the number of a thread": ruleSignals,
		"signal another command": ruleSignals, "look for another command": ruleSignals, "signal another command's group": ruleSignals,
		"signal another command's thread":   ruleSignals,
		"queue a signal to another command": ruleSignals, "signal another command by pidfd": ruleSignals,
		"own a socket by FIOSETOWN": ruleSignals, "own a socket by SIOCSPGRP": ruleSignals,
		"signal a child's thread": ruleSignals,
		"catch its own SIGIO":     ruleSignals, "SIGIO from a terminal": ruleSignals, "SIGIO from a terminal by FIOASYNC": ruleSignals,
	}
	truncateTell = map[string]string{
		"truncate outside": "truncate", "truncate in the workspace": "truncate",
		"open outside with O_TRUNC": "truncate", "open outside with O_TRUNC and mode 3": "truncate",
	}
)

// TestOlderKernelsRun makes every attempt on the kernels on which the default policy runs: what a later right would
// refuse is refused by what stands in for it, and told.
func TestOlderKernelsRun(t *testing.T) {
	requireABI(t, 6)
	requireDenials(t)
	cases := map[string]struct {
		reason  string
		abi     int
		above   []string
		differs []map[string]string
		tells   []map[string]string
		notes   []string
	}{
		"ABI 1": {
			reason: "no renames between folders; Linux 5.15, whose callers call again when a signal interrupts them", abi: 1, above: []string{withoutKillable},
			differs: []map[string]string{scopesDiffer, truncateDiffer, referDiffer}, tells: []map[string]string{scopesTell, truncateTell},
			notes: []string{"ABI 2", "ABI 3", "ABI 5", "ABI 6", "ABI 9"},
		},
		"ABI 2": {
			reason: "the filter stands in for truncate; Linux 6.1", abi: 2,
			differs: []map[string]string{scopesDiffer, truncateDiffer}, tells: []map[string]string{scopesTell, truncateTell},
			notes: []string{"ABI 3", "ABI 5", "ABI 6", "ABI 9"},
		},
		"ABI 4": {
			reason: "ioctl on devices by number only; Linux 6.8", abi: 4,
			differs: []map[string]string{scopesDiffer}, tells: []map[string]string{scopesTell}, notes: []string{"ABI 5", "ABI 6", "ABI 9"},
		},
		"ABI 5": {
			reason: "a supervisor stands in for the scopes", abi: 5,
			differs: []map[string]string{scopesDiffer}, tells: []map[string]string{scopesTell}, notes: []string{"ABI 6", "ABI 9"},
		},
		"ABI 6": {reason: "Landlock does it", abi: 6, notes: []string{"ABI 9"}},
		"ABI 6 below a supervisor": {
			reason: "nothing needs one of ours", abi: 6, above: []string{supervisorAbove}, differs: []map[string]string{unwatchedDiffer},
			notes: []string{"denials are not observed: a supervisor above", "ABI 9"},
		},
		"ABI 6 without supervisors": {
			reason: "nothing needs one", abi: 6, above: []string{withoutSupervisor}, differs: []map[string]string{unwatchedDiffer},
			notes: []string{"denials are not observed: the kernel"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if raceDetector && c.abi != 2 {
				t.Skip("under the race detector one kernel is enough: the supervisor's code is the same for all")
			}
			s := newStage(t, false)
			want, rules := maps.Clone(expected), maps.Clone(observedRules)
			for i, differs := range c.differs {
				maps.Copy(want, differs)
				if i < len(c.tells) {
					maps.Copy(rules, c.tells[i])
				}
			}
			maps.DeleteFunc(want, func(name, _ string) bool { return attempts[name] == nil || unavailable(t, name, false) })
			order := agentOrder{Policy: Default(), Layout: s.layout(), ForceABI: &c.abi, Above: c.above, Attempts: slices.Sorted(maps.Keys(want))}
			answer := runAgent(t, s, order, false)
			report := answer.Report
			observed := !slices.Contains(c.above, supervisorAbove) && !slices.Contains(c.above, withoutSupervisor)
			if answer.CompileError != "" || !report.Enforced || report.LandlockABI != c.abi || report.Denials != observed {
				t.Fatalf("%s: compile error %q, report %+v", c.reason, answer.CompileError, report)
			}
			compareNotes(t, c.reason, c.notes, report)
			compareOutcomes(t, c.reason, want, answer)
			if !observed {
				rules = nil
			}
			compareDenialsBy(t, c.reason, want, rules, answer)
		})
	}
}

// TestOlderKernelsRefuse lists the kernels on which Required runs nothing. BestEffort runs with less, and says what.
func TestOlderKernelsRefuse(t *testing.T) {
	requireABI(t, 6)
	requireDenials(t)
	files := map[string]string{"write outside": "EACCES", "read hidden": "EACCES", "create at the workspace's top": "", "TCP": "EACCES", "ptrace attach": "EPERM"}
	noFiles := map[string]string{"write outside": "", "truncate in the workspace": "", "TCP": "EACCES", "ptrace attach": "EPERM", "prlimit of the agent": "EPERM"}
	walled := map[string]string{"look for another command": "EPERM", "signal a child": "", "the agent's abstract socket": "EPERM"}
	open := map[string]string{"look for another command": "", "signal a child": "", "the agent's abstract socket": "", "Unix pair": ""}
	forced := func(abi int) *int { return &abi }
	cases := map[string]struct {
		reason   string
		abi      *int
		above    []string
		noFilter bool
		gaps     []string // the fields and what their reasons hold
		network  NetworkMode
		want     []map[string]string
	}{
		"ABI 0": {
			reason: "no Landlock: files are open", abi: forced(0), gaps: []string{"landlockABI: no Landlock"}, network: NoNetwork,
			want: []map[string]string{noFiles, walled},
		},
		"Landlock missing": {
			reason: "the kernel was built without it: its calls do not exist", above: []string{withoutLandlock},
			gaps: []string{"landlockABI: no Landlock"}, network: NoNetwork, want: []map[string]string{noFiles, walled},
		},
		"Landlock missing, below a supervisor": {
			reason: "nor can anything stand in for its scopes", above: []string{supervisorAbove, withoutLandlock},
			gaps: []string{"landlockABI: no Landlock", "landlockABI: ABI 6 is missing, and so is a supervisor"}, network: NoNetwork, want: []map[string]string{noFiles, open},
		},
		"ABI 1 below a supervisor": {
			reason: "nothing can stand in for the scopes", abi: forced(1), above: []string{supervisorAbove},
			gaps: []string{"landlockABI: ABI 6 is missing, and so is a supervisor"}, network: NoNetwork, want: []map[string]string{files, open},
		},
		"ABI 2 below a supervisor": {
			reason: "nothing can stand in for the scopes", abi: forced(2), above: []string{supervisorAbove},
			gaps: []string{"landlockABI: ABI 6 is missing, and so is a supervisor"}, network: NoNetwork,
			want: []map[string]string{files, open, {"truncate in the workspace": "EPERM"}},
		},
		"ABI 4 below a supervisor": {
			reason: "nothing can stand in for the scopes", abi: forced(4), above: []string{supervisorAbove},
			gaps: []string{"landlockABI: ABI 6 is missing, and so is a supervisor"}, network: NoNetwork, want: []map[string]string{files, open},
		},
		"ABI 2 without supervisors": {
			reason: "nothing can stand in for the scopes", abi: forced(2), above: []string{withoutSupervisor},
			gaps: []string{"landlockABI: ABI 6 is missing, and so is a supervisor"}, network: NoNetwork, want: []map[string]string{files, open},
		},
		"no seccomp": {
			reason: "the network is open", abi: forced(7), noFilter: true, gaps: []string{"seccomp: rule about the network"}, network: OpenNetwork,
			want: []map[string]string{{"UDP": "", "write outside": "EACCES", "read the agent's environment": "EACCES", "look for another command": "EPERM"}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, false)
			want := make(map[string]string)
			for _, outcomes := range c.want {
				maps.Copy(want, outcomes)
			}
			order := agentOrder{Policy: Default(), Layout: s.layout(), ForceABI: c.abi, NoFilter: c.noFilter, Above: c.above, Attempts: slices.Sorted(maps.Keys(want))}
			answer := runAgent(t, s, order, false)
			compareGaps(t, c.reason, c.gaps, answer.Gaps)
			if len(answer.Outcomes) > 0 {
				t.Fatalf("%s: a refused policy ran something", c.reason)
			}
			order.Policy.Enforcement = BestEffort
			answer = runAgent(t, s, order, false)
			report := answer.Report
			if report.Enforced || len(report.NotEnforced) != len(c.gaps) || report.Network != string(c.network) || report.Seccomp == c.noFilter {
				t.Errorf("%s: got report %+v", c.reason, report)
			}
			compareOutcomes(t, c.reason, want, answer)
		})
	}
}

func compareGaps(t *testing.T, reason string, want []string, gaps []Gap) {
	t.Helper()
	matches := func(gap Gap, text string) bool {
		field, part, _ := strings.Cut(text, ": ")
		return gap.Field == field && strings.Contains(gap.Reason, part)
	}
	if !slices.EqualFunc(gaps, want, matches) {
		t.Errorf("%s: Required: got the gaps %v, want %v", reason, gaps, want)
	}
}

func compareNotes(t *testing.T, reason string, want []string, report Report) {
	t.Helper()
	for _, note := range want {
		if !slices.ContainsFunc(report.Notes, func(n string) bool { return strings.Contains(n, note+" ") }) {
			t.Errorf("%s: notes lack %q: %q", reason, note, report.Notes)
		}
	}
}

// TestNetworkModesOnOlderKernels: what stands in for the scopes changes nothing about the modes, nor by which rule a refusal is told.
func TestNetworkModesOnOlderKernels(t *testing.T) {
	requireABI(t, 6)
	requireDenials(t)
	open := map[string]string{"dial the proxy": "", "connect to the proxy": "", "dial another port": "", "connect to any": "", "TCP": "", "UDP": ""}
	for mode, c := range map[NetworkMode]struct {
		abi      int
		outcomes map[string]string
	}{NoNetwork: {2, networkOutcomes[NoNetwork]}, LoopbackNetwork: {2, networkOutcomes[LoopbackNetwork]}, ProxyNetwork: {4, networkOutcomes[ProxyNetwork]}, OpenNetwork: {2, open}} {
		t.Run(string(mode), func(t *testing.T) {
			if raceDetector {
				t.Skip("under the race detector the newer kernel is enough: the agent's code is the same")
			}
			s := newStage(t, false)
			want := maps.Clone(c.outcomes)
			for name, text := range unixStays {
				if _, known := want[name]; !known && scopesTell[name] == "" && (mode != OpenNetwork || !strings.HasPrefix(text, "EACCES")) {
					want[name] = text
				}
			}
			order := agentOrder{Policy: with(func(p *Policy) { p.Network.Mode = mode }), Layout: s.layout(), ForceABI: &c.abi, Attempts: slices.Sorted(maps.Keys(want))}
			answer := runAgent(t, s, order, false)
			if answer.CompileError != "" || !answer.Report.Enforced || answer.Report.Network != string(mode) {
				t.Fatalf("compile error %q, report %+v", answer.CompileError, answer.Report)
			}
			compareOutcomes(t, string(mode), want, answer)
			compareNetworkDenials(t, mode, want, answer)
		})
	}
}
