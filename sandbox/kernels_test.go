package sandbox

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestOlderKernels forces older Landlock ABIs: a policy is refused, or what a later
// kernel would do is done by other means; and BestEffort says what is missing.
func TestOlderKernels(t *testing.T) {
	requireABI(t, 6)
	cases := map[string]struct {
		reason   string
		abi      int
		noFilter bool
		refused  []string // the gaps' fields under Required; empty if it runs
		network  string
		want     map[string]string
		notes    []string
	}{
		"ABI 0": {
			reason: "no Landlock: files are open, and that is said", abi: 0,
			refused: []string{"landlockABI", "landlockABI"}, network: "None",
			want: map[string]string{"write outside": "", "truncate in the workspace": "", "TCP": "EACCES", "ptrace attach": "EPERM", "prlimit of the agent": "EPERM"},
		},
		"ABI 1": {
			reason: "no renames between folders", abi: 1,
			refused: []string{"landlockABI"}, network: "None", notes: []string{"ABI 2", "ABI 3", "ABI 5", "ABI 9"},
			want: map[string]string{
				"write outside": "EACCES", "rename between folders of the workspace": "EXDEV", "write and rename as an editor": "",
				"truncate outside": "EPERM", "read hidden": "EACCES", "TCP": "EACCES",
			},
		},
		"ABI 2": {
			reason: "the filter stands in for truncate", abi: 2,
			refused: []string{"landlockABI"}, network: "None", notes: []string{"ABI 3", "ABI 5", "ABI 9"},
			want: map[string]string{
				"write outside": "EACCES", "rename between folders of the workspace": "", "truncate outside": "EPERM", "truncate in the workspace": "EPERM",
				"open outside with O_TRUNC": "EPERM", "open outside with O_TRUNC and mode 3": "EPERM", "openat2 outside with O_TRUNC": "ENOSYS",
				"create at the workspace's top": "", "read the agent's environment": "EACCES", "hard link into the workspace": "EXDEV", "write /dev/null": "",
			},
		},
		"ABI 4": {
			reason: "ioctl on devices by number only", abi: 4,
			refused: []string{"landlockABI"}, network: "None", notes: []string{"ABI 5", "ABI 9"},
			want: map[string]string{"truncate outside": "EACCES", "truncate in the workspace": "", "TIOCSTI": "EPERM", "use a new terminal": "", "open a disk": "EACCES"},
		},
		"ABI 5": {
			reason: "signals and abstract sockets are open, and that is said", abi: 5,
			refused: []string{"landlockABI"}, network: "None",
			want: map[string]string{"the agent's abstract socket": "", "write outside": "EACCES", "use a new terminal": ""},
		},
		"ABI 6": {
			reason: "everything", abi: 6, network: "None", notes: []string{"ABI 9"},
			want: map[string]string{"the agent's abstract socket": "EPERM", "terminate": "EPERM", "write outside": "EACCES", "status": ""},
		},
		"no seccomp": {
			reason: "the network is open, and that is said", abi: 7, noFilter: true,
			refused: []string{"seccomp"}, network: "Open",
			want: map[string]string{"UDP": "", "write outside": "EACCES", "read the agent's environment": "EACCES"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, false)
			maps.DeleteFunc(c.want, func(name, _ string) bool { return unavailable(t, name, false) })
			order := agentOrder{Policy: Default(), Layout: s.layout(), ForceABI: &c.abi, NoFilter: c.noFilter, Attempts: slices.Sorted(maps.Keys(c.want))}
			answer := runAgent(t, s, order, false)
			var fields []string
			for _, gap := range answer.Gaps {
				fields = append(fields, gap.Field)
			}
			if !slices.Equal(fields, c.refused) {
				t.Errorf("%s: Required: got gaps %v, want %v", c.reason, answer.Gaps, c.refused)
			}
			if len(c.refused) > 0 {
				if len(answer.Outcomes) > 0 {
					t.Fatalf("%s: a refused policy ran something", c.reason)
				}
				order.Policy.Enforcement = BestEffort
				answer = runAgent(t, s, order, false)
			}
			report := answer.Report
			if report.Enforced != (len(c.refused) == 0) || len(report.NotEnforced) != len(c.refused) || report.LandlockABI != c.abi || report.Network != c.network || report.Seccomp == c.noFilter {
				t.Errorf("%s: got report %+v", c.reason, report)
			}
			for _, note := range c.notes {
				if !slices.ContainsFunc(report.Notes, func(n string) bool { return strings.Contains(n, note+" ") }) {
					t.Errorf("%s: notes lack %q: %q", c.reason, note, report.Notes)
				}
			}
			compareOutcomes(t, c.reason, c.want, answer)
		})
	}
}
