package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

var newKernel = Capabilities{Arch: "amd64", LandlockABI: newestABI, LandlockErrata: 0xF, NoNewPrivs: true, Seccomp: true}

func unlimited(int) (uint64, error) { return ^uint64(0), nil }

// rightsOf is what the grants give at a path: the union over the path and everything above it.
func rightsOf(grants []grant, path string) landlock.AccessFSSet {
	var rights landlock.AccessFSSet
	for _, g := range grants {
		if within(path, g.path) {
			rights |= g.rights
		}
	}
	return rights
}

// grantCase is one row of the specification of what a policy grants.
type grantCase struct {
	reason string
	change func(*Policy, *Layout)
	read   []string
	write  []string
	closed []string
	notes  []string
}

func grantCases(at func(rel string) string) map[string]grantCase {
	return map[string]grantCase{
		"WorkspaceWrite": {
			reason: "read everywhere, write in the layout's folders, nothing of the agent's",
			change: func(*Policy, *Layout) {},
			read:   []string{"/usr/bin", "/etc/passwd", "/proc/self", at("outside"), at("agent/bin")},
			write:  []string{at("workspace/a"), at("home"), at("tmp/x")},
			closed: []string{at("agent/config/profile.json"), at("agent/journal"), "/dev/vda", "/not-there-yet"},
			notes:  []string{"entry by entry"},
		},
		"ReadOnly": {
			reason: "write nowhere",
			change: func(p *Policy, _ *Layout) { p.Filesystem.Mode = ReadOnly },
			read:   []string{at("workspace/a"), at("home"), "/usr"},
			closed: []string{at("agent/config")},
		},
		"FullAccess": {
			reason: "write everywhere but in the agent's and the kernel's folders",
			change: func(p *Policy, _ *Layout) { p.Filesystem.Mode = FullAccess },
			read:   []string{"/proc/sys/kernel", "/sys"},
			write:  []string{"/etc", at("outside"), at("agent/bin")},
			closed: []string{at("agent/config"), at("agent/journal/log")},
		},
		"more roots": {
			reason: "a root of the policy",
			change: func(p *Policy, _ *Layout) { p.Filesystem.WritableRoots = []string{at("outside")} },
			write:  []string{at("outside/file"), at("workspace")},
		},
		"missing root": {
			reason: "grants nothing and is noted",
			change: func(p *Policy, _ *Layout) { p.Filesystem.WritableRoots = []string{at("nowhere")} },
			notes:  []string{"filesystem.writableRoots[0] \"" + at("nowhere") + "\" grants nothing: does not exist"},
		},
		"root behind a link": {
			reason: "a command could have put it there",
			change: func(p *Policy, _ *Layout) { p.Filesystem.WritableRoots = []string{at("workspace/link")} },
			read:   []string{at("outside")},
			notes:  []string{"symbolic link"},
		},
		"denied folder": {
			reason: "its neighbours stay readable",
			change: func(p *Policy, _ *Layout) { p.Filesystem.DeniedPaths = []string{at("outside")} },
			read:   []string{at("agent/bin"), "/etc/passwd"},
			write:  []string{at("workspace")},
			closed: []string{at("outside"), at("outside/file")},
		},
		"denied by a link": {
			reason: "what counts is where the link leads",
			change: func(p *Policy, _ *Layout) { p.Filesystem.DeniedPaths = []string{at("agent/to-outside")} },
			closed: []string{at("outside/file")},
		},
		"denied and missing": {
			reason: "created later, it has no rights",
			change: func(p *Policy, _ *Layout) { p.Filesystem.DeniedPaths = []string{at("outside/secret")} },
			read:   []string{at("outside/file")},
			closed: []string{at("outside/secret")},
		},
		"denied device": {
			reason: "it is not granted with the other devices",
			change: func(p *Policy, _ *Layout) { p.Filesystem.DeniedPaths = []string{"/dev/null"} },
			closed: []string{"/dev/null", "/dev/vda"},
		},
		"read-only device": {
			reason: "it is not granted with the other devices",
			change: func(p *Policy, _ *Layout) { p.Filesystem.ReadOnlyPaths = []string{"/dev/pts"} },
			closed: []string{"/dev/pts/0"},
		},
		"denied by a pattern": {
			reason: "what matches now is left out; what does not stays readable",
			change: func(p *Policy, _ *Layout) { p.Filesystem.DeniedPaths = []string{at("out*/f[a-i]le")} },
			read:   []string{at("outside-too/x")},
			closed: []string{at("outside/file")},
			notes:  []string{"(matches: 1)"},
		},
		"pattern that matches a root": {
			reason: "what takes away wins",
			change: func(p *Policy, _ *Layout) { p.Filesystem.DeniedPaths = []string{at("h*e/**")} },
			write:  []string{at("tmp")},
			closed: []string{at("home/x")},
			notes:  []string{"not writable"},
		},
		"pattern in a folder that is read-only": {
			reason: "nobody can make a match there",
			change: func(p *Policy, _ *Layout) {
				p.Filesystem.ReadOnlyPaths = []string{at("home")}
				p.Filesystem.DeniedPaths = []string{at("home/*.key")}
			},
			read: []string{at("home/file")},
		},
		"read-only and outside": {
			reason: "nothing outside can be written anyway",
			change: func(p *Policy, _ *Layout) {
				p.Filesystem.ReadOnlyPaths = []string{at("outside"), "/usr", at("nowhere")}
			},
			read:  []string{at("outside/file"), "/usr/bin"},
			write: []string{at("workspace")},
		},
		"read-only root": {
			reason: "what takes away wins",
			change: func(p *Policy, _ *Layout) { p.Filesystem.ReadOnlyPaths = []string{at("home")} },
			read:   []string{at("home")},
			write:  []string{at("tmp")},
			notes:  []string{"not writable"},
		},
	}
}

func TestPlanGrants(t *testing.T) {
	s := newStage(t, true)
	at := func(rel string) string { return filepath.Join(s.base, rel) }
	check(t, os.Symlink(at("outside"), at("workspace/link")))
	check(t, os.Symlink(at("outside"), at("agent/to-outside")))
	check(t, os.MkdirAll(at("outside-too"), 0o755))
	for name, c := range grantCases(at) {
		t.Run(name, func(t *testing.T) {
			policy, layout := Default(), s.layout()
			c.change(&policy, &layout)
			check(t, policy.Validate())
			p, err := newPlan(policy, layout, newKernel, unlimited)
			check(t, err)
			if len(p.gaps) > 0 {
				t.Errorf("%s: gaps %v", c.reason, p.gaps)
			}
			for _, path := range c.read {
				if got := rightsOf(p.grants, path); got != readRights {
					t.Errorf("%s: %s: got %v, want reading", c.reason, path, got)
				}
			}
			for _, path := range c.write {
				if got := rightsOf(p.grants, path); got&writeRights != writeRights {
					t.Errorf("%s: %s: got %v, want writing", c.reason, path, got)
				}
			}
			for _, path := range c.closed {
				if got := rightsOf(p.grants, path); got&^ll.AccessFSReadDir != 0 {
					t.Errorf("%s: %s: got %v, want at most listing", c.reason, path, got)
				}
			}
			for _, note := range c.notes {
				if !slices.ContainsFunc(p.notes, func(n string) bool { return strings.Contains(n, note) }) {
					t.Errorf("%s: notes %q lack %q", c.reason, p.notes, note)
				}
			}
		})
	}
}

func TestPlanGaps(t *testing.T) {
	s := newStage(t, true)
	at := func(rel string) string { return filepath.Join(s.base, rel) }
	cases := map[string]struct {
		reason string
		change func(*Policy, *Capabilities)
		fields []string
		values []string
	}{
		"Loopback":         {"no supervisor", func(p *Policy, _ *Capabilities) { p.Network.Mode = LoopbackNetwork }, []string{"network.mode"}, []string{"Loopback"}},
		"Proxy":            {"no supervisor", func(p *Policy, _ *Capabilities) { p.Network.Mode = ProxyNetwork }, []string{"network.mode"}, []string{"Proxy"}},
		"read-only inside": {"no rule takes away", func(p *Policy, _ *Capabilities) { p.Filesystem.ReadOnlyPaths = []string{at("workspace/.git")} }, []string{"filesystem.readOnlyPaths"}, []string{at("workspace/.git")}},
		"denied inside":    {"no rule takes away", func(p *Policy, _ *Capabilities) { p.Filesystem.DeniedPaths = []string{"/root/x", at("home/.ssh")} }, []string{"filesystem.deniedPaths"}, []string{at("home/.ssh")}},
		"denied with FullAccess": {"everything is writable", func(p *Policy, _ *Capabilities) {
			p.Filesystem.Mode = FullAccess
			p.Filesystem.DeniedPaths = []string{at("outside")}
		}, []string{"filesystem.deniedPaths"}, []string{at("outside")}},
		"pattern":       {"a match can be made", func(p *Policy, _ *Capabilities) { p.Filesystem.DeniedPaths = []string{at("workspace/*.key")} }, []string{"filesystem.deniedPaths"}, []string{at("workspace/*.key")}},
		"terminal":      {"they come and go", func(p *Policy, _ *Capabilities) { p.Filesystem.DeniedPaths = []string{"/dev/pts/0"} }, []string{"filesystem.deniedPaths"}, []string{"/dev/pts/0"}},
		"older kernel":  {"the profile asks for more", func(p *Policy, c *Capabilities) { p.MinLandlockABI = 9; c.LandlockABI = 7 }, []string{"minLandlockABI"}, []string{"9"}},
		"no Landlock":   {"files and signals", func(_ *Policy, c *Capabilities) { c.LandlockABI = 0 }, []string{"landlockABI", "landlockABI"}, []string{"0", "0"}},
		"ABI 5":         {"signals", func(_ *Policy, c *Capabilities) { c.LandlockABI = 5 }, []string{"landlockABI"}, []string{"5"}},
		"broken scopes": {"signals", func(_ *Policy, c *Capabilities) { c.LandlockErrata = 1 }, []string{"landlockABI"}, []string{"5"}},
		"no seccomp":    {"network", func(_ *Policy, c *Capabilities) { c.Seccomp = false }, []string{"seccomp"}, []string{"false"}},
		"no NNP":        {"anything", func(_ *Policy, c *Capabilities) { c.NoNewPrivs = false }, []string{"noNewPrivs"}, []string{"false"}},
		"several at once": {"all are listed", func(p *Policy, c *Capabilities) {
			p.Network.Mode = ProxyNetwork
			c.LandlockABI = 2
		}, []string{"landlockABI", "network.mode"}, []string{"2", "Proxy"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			policy, caps := Default(), newKernel
			c.change(&policy, &caps)
			_, err := Compile(policy, s.layout(), caps)
			var refused *NotEnforceableError
			if !errors.As(err, &refused) {
				t.Fatalf("%s: Required got %v", c.reason, err)
			}
			var fields, values []string
			for _, gap := range refused.Gaps {
				fields, values = append(fields, gap.Field), append(values, gap.Value)
				if gap.Reason == "" || !strings.Contains(err.Error(), gap.Reason) {
					t.Errorf("%s: gap %v has no reason in %v", c.reason, gap, err)
				}
			}
			if diff := cmp.Diff(c.fields, fields) + cmp.Diff(c.values, values); diff != "" {
				t.Errorf("%s: %s", c.reason, diff)
			}
		})
	}
}

func TestLayoutErrors(t *testing.T) {
	s := newStage(t, true)
	at := func(rel string) string { return filepath.Join(s.base, rel) }
	check(t, os.Symlink(at("workspace"), at("link")))
	cases := map[string]struct {
		reason string
		change func(*Policy, *Layout)
		field  string
	}{
		"no workspace":         {"must be given", func(_ *Policy, l *Layout) { l.Workspace = "" }, "layout.workspace"},
		"relative workspace":   {"must be absolute", func(_ *Policy, l *Layout) { l.Workspace = "ws" }, "layout.workspace"},
		"missing workspace":    {"must exist", func(_ *Policy, l *Layout) { l.Workspace = at("nowhere") }, "layout.workspace"},
		"workspace is a file":  {"must be a folder", func(_ *Policy, l *Layout) { l.Workspace = at("outside/file") }, "layout.workspace"},
		"workspace is a link":  {"could be turned", func(_ *Policy, l *Layout) { l.Workspace = at("link") }, "layout.workspace"},
		"below a link":         {"could be turned", func(_ *Policy, l *Layout) { l.Workspace = at("link/a") }, "layout.workspace"},
		"relative home":        {"must be absolute", func(_ *Policy, l *Layout) { l.Writable = []string{"home"} }, "layout.writable[0]"},
		"relative hidden":      {"must be absolute", func(_ *Policy, l *Layout) { l.Hidden = []string{"/x", "y"} }, "layout.hidden[1]"},
		"hidden in workspace":  {"would not be hidden", func(_ *Policy, l *Layout) { l.Hidden = []string{at("workspace/a")} }, "layout.workspace"},
		"hidden in home":       {"would not be hidden", func(_ *Policy, l *Layout) { l.Hidden = []string{at("home/.agent")} }, "layout.writable[0]"},
		"workspace in hidden":  {"nothing would work", func(_ *Policy, l *Layout) { l.Hidden = []string{s.base} }, "layout.hidden[0]"},
		"root around hidden":   {"the policy would open it", func(p *Policy, _ *Layout) { p.Filesystem.WritableRoots = []string{at("agent")} }, "filesystem.writableRoots[0]"},
		"root in hidden":       {"the policy would open it", func(p *Policy, _ *Layout) { p.Filesystem.WritableRoots = []string{at("agent/config/x")} }, "filesystem.writableRoots[0]"},
		"root reaches by link": {"the policy would open it", func(p *Policy, l *Layout) { l.Hidden = []string{at("link/a")} }, "layout.workspace"},
		"pattern of all":       {"nothing would work", func(p *Policy, _ *Layout) { p.Filesystem.DeniedPaths = []string{s.base + "/**"} }, "filesystem.deniedPaths[0]"},
		"pattern of workspace": {"nothing would work", func(p *Policy, _ *Layout) { p.Filesystem.DeniedPaths = []string{"/etc", at("w*")} }, "filesystem.deniedPaths[1]"},
		"denied workspace":     {"nothing would work", func(p *Policy, _ *Layout) { p.Filesystem.DeniedPaths = []string{s.base} }, "filesystem.deniedPaths[0]"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			policy, layout := with(func(p *Policy) { p.Enforcement = BestEffort }), s.layout()
			c.change(&policy, &layout)
			_, err := Compile(policy, layout, newKernel)
			var field *FieldError
			if !errors.As(err, &field) || field.Field != c.field {
				t.Errorf("%s: got %v, want an error about %s", c.reason, err, c.field)
			}
		})
	}
}

func TestWithin(t *testing.T) {
	cases := []struct {
		path, dir string
		want      bool
	}{
		{"/a", "/a", true}, {"/a/b", "/a", true}, {"/ab", "/a", false}, {"/a", "/a/b", false}, {"/a", "/", true}, {"/", "/", true},
	}
	for _, c := range cases {
		if got := within(c.path, c.dir); got != c.want {
			t.Errorf("within(%q, %q): got %v", c.path, c.dir, got)
		}
	}
}
