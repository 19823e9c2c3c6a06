package sandbox

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// newPathStage adds what the attempts on paths look for, and makes it the user's.
func newPathStage(t *testing.T) stage {
	t.Helper()
	s := newStage(t, false)
	for path, content := range map[string]string{
		"workspace/.git/config": "x", "workspace/.git/hooks/sample": "x", "workspace/sub/.claude/settings.json": "{}", "workspace/secret/key": "x",
		"outside/a.key": "x", "outside/deep/er/b.key": "x", "outside/deep/er/file": "x", "empty/": "",
	} {
		file := s.at(path)
		check(t, os.MkdirAll(filepath.Dir(file), 0o755))
		if content != "" {
			check(t, os.WriteFile(file, []byte(content), 0o644))
		}
	}
	check(t, os.MkdirAll(s.at("empty"), 0o755))
	check(t, os.Symlink("a.key", s.at("outside/link-to-a-match")))
	if os.Getuid() == 0 {
		for _, dir := range []string{"workspace", "outside"} {
			check(t, filepath.WalkDir(s.at(dir), func(path string, _ os.DirEntry, err error) error {
				if err != nil {
					return err
				}
				return os.Lchown(path, testUID, testUID)
			}))
		}
	}
	return s
}

func (s stage) at(rel string) string { return filepath.Join(s.base, rel) }

// podMounts are the mounts that the operator asks a kubelet for.
func (s stage) podMounts() []bindMount {
	onto := func(rel string, readOnly bool) bindMount { return bindMount{s.at(rel), s.at(rel), readOnly} }
	return []bindMount{
		onto("workspace/.git", true), onto("workspace/sub", false), onto("workspace/sub/.claude", true),
		{from: s.at("empty"), to: s.at("workspace/secret"), readOnly: true},
	}
}

func requireMounting(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: only root can make the mounts that a kubelet would make")
	}
}

// protectedByMounts is the specification of paths that are mounts. The errno is the kernel's: Landlock allows
// these calls, since it has no rule that takes away below a writable folder.
var protectedByMounts = map[string]string{
	"read protected":                             "",
	"write protected":                            "EROFS",
	"truncate protected":                         "EROFS",
	"create in protected":                        "EROFS",
	"unlink in protected":                        "EROFS",
	"chmod protected":                            "EROFS",
	"set protected's times":                      "EROFS",
	"rename protected":                           "EBUSY",
	"remove protected":                           "EBUSY",
	"replace protected":                          "EBUSY",
	"exchange protected":                         "EBUSY",
	"hard link protected":                        "EXDEV",
	"write protected through a cwd":              "EROFS",
	"write protected through /proc/self/root":    "EROFS",
	"write protected through O_PATH":             "EROFS",
	"write protected through a symlink":          "EROFS",
	"remove protected's parent":                  "EBUSY",
	"rename protected's parent":                  "EBUSY",
	"write protected through its renamed parent": "EBUSY",
	"create in protected's parent":               "",
	"rename out of protected's parent":           "EXDEV", // what it costs to hold the parent
	"unmount protected":                          "EPERM",
	"create at the workspace's top":              "",
	"write and rename as an editor":              "",
	"read denied in the workspace":               "ENOENT",
	"list denied in the workspace":               "",
	"create denied in the workspace":             "EROFS",
	"rename denied in the workspace":             "EBUSY",
}

func TestPathsHeldByMounts(t *testing.T) {
	requireABI(t, 6)
	requireMounting(t)
	for name, mode := range map[string]FilesystemMode{"WorkspaceWrite": WorkspaceWrite, "FullAccess": FullAccess} {
		t.Run(name, func(t *testing.T) {
			s := newPathStage(t)
			s.mounts = s.podMounts()
			if mode == FullAccess { // there the workspace's own place has to be held as well
				s.mounts = append([]bindMount{{s.base, s.base, false}, {s.at("workspace"), s.at("workspace"), false}}, s.mounts...)
				s.mounts = append([]bindMount{{"/var", "/var", false}, {"/var/tmp", "/var/tmp", false}}, s.mounts...)
			}
			policy := with(func(p *Policy) {
				p.Filesystem.Mode = mode
				p.Filesystem.ReadOnlyPaths = []string{s.at("workspace/.git"), s.at("workspace/sub/.claude")}
				p.Filesystem.DeniedPaths = []string{s.at("workspace/secret")}
			})
			answer := runAgent(t, s, agentOrder{Policy: policy, Layout: s.layout(), Attempts: slices.Sorted(maps.Keys(protectedByMounts))}, false)
			if answer.CompileError != "" || !answer.Report.Enforced {
				t.Fatalf("compile error %q, report %+v", answer.CompileError, answer.Report)
			}
			compareOutcomes(t, "held by mounts", protectedByMounts, answer)
			notes := strings.Join(answer.Report.Notes, "\n")
			for _, want := range []string{s.at("workspace/.git"), s.at("workspace/sub/.claude"), "EROFS", s.at("workspace/secret"), "empty read-only mount"} {
				if !strings.Contains(notes, want) {
					t.Errorf("the notes lack %q: %s", want, notes)
				}
			}
		})
	}
}

// TestPathsThatNoMountHolds: each thing that is missing is named, and Required refuses.
func TestPathsThatNoMountHolds(t *testing.T) {
	requireABI(t, 6)
	requireMounting(t)
	cases := map[string]struct {
		reason   string
		mounts   func(s stage) []bindMount
		readOnly string
		denied   string
		says     string
	}{
		"no mount":       {"it was added to the profile later", func(stage) []bindMount { return nil }, "workspace/.git", "", "has to be made again"},
		"missing":        {"a command would make it", func(stage) []bindMount { return nil }, "workspace/none", "", "does not exist"},
		"writable mount": {"it cannot be moved, but written", func(s stage) []bindMount { return []bindMount{{s.at("workspace/.git"), s.at("workspace/.git"), false}} }, "workspace/.git", "", "not a read-only mount"},
		"movable parent": {"moved, it leaves its name to another", func(s stage) []bindMount { return s.podMounts()[2:3] }, "workspace/sub/.claude", "", "workspace/sub\" is not a mount"},
		"hole in a mount": {"a part of it is writable", func(s stage) []bindMount {
			return append(s.podMounts()[:1], bindMount{s.at("empty"), s.at("workspace/.git/hooks"), false})
		}, "workspace/.git", "", "holds the mount"},
		"link":            {"a command turns it elsewhere", func(s stage) []bindMount { return s.podMounts()[:1] }, "workspace/link/config", "", "symbolic link"},
		"denied, full":    {"what lies there can be read", func(s stage) []bindMount { return s.podMounts()[:1] }, "", "workspace/.git", "not an empty folder"},
		"denied, no mask": {"nothing hides it", func(stage) []bindMount { return nil }, "", "workspace/secret", "has to be made again"},
		"denied file":     {"only a folder can be hidden", func(s stage) []bindMount { return s.podMounts()[:1] }, "", "workspace/.git/config", "not an empty folder"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newPathStage(t)
			check(t, os.Symlink(".git", s.at("workspace/link")))
			s.mounts = c.mounts(s)
			var field, value string
			policy := with(func(p *Policy) {
				if c.readOnly != "" {
					field, value = "filesystem.readOnlyPaths", s.at(c.readOnly)
					p.Filesystem.ReadOnlyPaths = []string{value}
					return
				}
				field, value = deniedPaths, s.at(c.denied)
				p.Filesystem.DeniedPaths = []string{value}
			})
			answer := runAgent(t, s, agentOrder{Policy: policy, Layout: s.layout(), Attempts: []string{"status"}}, false)
			if len(answer.Gaps) != 1 || answer.Gaps[0].Field != field || answer.Gaps[0].Value != value || !strings.Contains(answer.Gaps[0].Reason, c.says) {
				t.Fatalf("%s: got the gaps %v (%s), want one for %s that says %q", c.reason, answer.Gaps, answer.CompileError, value, c.says)
			}
			if len(answer.Outcomes) > 0 {
				t.Errorf("%s: something ran", c.reason)
			}
			policy.Enforcement = BestEffort
			answer = runAgent(t, s, agentOrder{Policy: policy, Layout: s.layout(), Attempts: []string{"status"}}, false)
			if len(answer.Report.NotEnforced) != 1 || !strings.Contains(answer.Report.NotEnforced[0], value) {
				t.Errorf("%s: BestEffort reports %q", c.reason, answer.Report.NotEnforced)
			}
		})
	}
}

func TestDeniedPatterns(t *testing.T) {
	requireABI(t, 6)
	s := newPathStage(t)
	policy := with(func(p *Policy) { p.Filesystem.DeniedPaths = []string{s.at("outside/**/*.key"), s.at("outside/link-*")} })
	want := map[string]string{
		"read a match":                          "EACCES",
		"read a deep match":                     "EACCES",
		"read a match by a link":                "EACCES",
		"read a match through O_PATH":           "EACCES",
		"read a match through /proc/self/root":  "EACCES",
		"read a match through the agent's root": "EACCES",
		"read a match from inside":              "EACCES",
		"hard link a match":                     "EXDEV",
		"rename a match's parent":               "EACCES",
		"read beside a deep match":              "",
		"read outside":                          "",
		"create at the workspace's top":         "",
	}
	answer := runAgent(t, s, agentOrder{Policy: policy, Layout: s.layout(), Attempts: slices.Sorted(maps.Keys(want))}, false)
	if answer.CompileError != "" || !answer.Report.Enforced {
		t.Fatalf("compile error %q, report %+v", answer.CompileError, answer.Report)
	}
	compareOutcomes(t, "denied by patterns", want, answer)
	if notes := strings.Join(answer.Report.Notes, "\n"); !strings.Contains(notes, "(matches: 2); what others than commands make later is not closed") {
		t.Errorf("the notes do not say what a pattern leaves open: %s", notes)
	}
}

// TestDeniedWithFullAccess: where nobody of our user could make anything, entries can be granted one by one.
func TestDeniedWithFullAccess(t *testing.T) {
	requireABI(t, 6)
	if os.Getuid() != 0 {
		t.Skip("skipped: the test relies on being another user than the owner of /etc")
	}
	s := newPathStage(t)
	policy := with(func(p *Policy) {
		p.Filesystem.Mode = FullAccess
		p.Filesystem.DeniedPaths = []string{"/etc/passwd"}
	})
	want := map[string]string{"read /etc/passwd": "EACCES", "read /etc/group": "", "create at the workspace's top": "", "create outside": "", "write /dev/null": "", "read /proc/self/status": ""}
	answer := runAgent(t, s, agentOrder{Policy: policy, Layout: s.layout(), Attempts: slices.Sorted(maps.Keys(want))}, false)
	if answer.CompileError != "" || !answer.Report.Enforced {
		t.Fatalf("compile error %q, report %+v", answer.CompileError, answer.Report)
	}
	compareOutcomes(t, "denied with FullAccess", want, answer)
}

// TestRootSwapped is case 3: a root becomes a link between the compilation and a start. The rule follows
// the folder that was opened.
func TestRootSwapped(t *testing.T) {
	requireABI(t, 6)
	s := newPathStage(t)
	if os.Getuid() == 0 {
		check(t, os.Chown(s.base, testUID, testUID))
	}
	want := map[string]string{
		"create in what home is now": "EACCES",
		"write where the link leads": "EACCES",
		"create in what home was":    "",
	}
	order := agentOrder{
		Policy: Default(), Layout: s.layout(), Attempts: slices.Sorted(maps.Keys(want)),
		Swaps: []swap{{Path: s.at("home"), Aside: s.at("home-before"), Link: s.at("outside")}},
	}
	answer := runAgent(t, s, order, false)
	compareOutcomes(t, "the root is another one now", want, answer)
	if _, err := os.Lstat(s.at("outside/planted")); err == nil {
		t.Error("a file was made where the link leads")
	}
	order.Swaps = nil
	check(t, os.Remove(s.at("home")))
	check(t, os.Rename(s.at("home-before"), s.at("home")))
	order.Attempts = []string{"create in what home is now"}
	answer = runAgent(t, s, order, false)
	compareOutcomes(t, "without a swap", map[string]string{"create in what home is now": ""}, answer)
}

// TestSwapWhileCompiling: a root becomes a link after the paths were looked at and before the rules are made,
// as a command of an earlier policy may try. No rule may come to lie where the link leads.
func TestSwapWhileCompiling(t *testing.T) {
	requireABI(t, 6)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	check(t, err)
	defer null.Close()
	for name, swapped := range map[string]bool{"swapped": true, "as it was": false} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, true)
			caps := Probe()
			p, err := newPlan(Default(), s.layout(), caps, hardLimit)
			check(t, err)
			if swapped {
				check(t, swap{Path: s.at("home"), Aside: s.at("aside"), Link: s.at("outside")}.happen())
			}
			limiter, err := p.newLimiter()
			check(t, err)
			defer limiter.close()
			launcher, err := newLauncher(p, caps, limiter)
			check(t, err)
			defer launcher.Close()
			for target, works := range map[string]bool{"outside/new": false, "home/new": !swapped, "workspace/new": true} {
				pid, err := launcher.Start("/bin/sh", []string{"sh", "-c", "echo x > " + s.at(target)}, &syscall.ProcAttr{
					Dir: "/", Env: os.Environ(), Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
				})
				check(t, err)
				if wrote := wait(t, pid).ExitStatus() == 0; wrote != works {
					t.Errorf("writing %s: done %v, want %v", target, wrote, works)
				}
			}
		})
	}
}

// TestGitInGuardedWorkspace says what git can and cannot do beside a read-only .git.
func TestGitInGuardedWorkspace(t *testing.T) {
	requireABI(t, 6)
	requireMounting(t)
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("skipped: this machine has no git")
	}
	s := newPathStage(t)
	check(t, os.RemoveAll(s.at("workspace/.git")))
	git := exec.CommandContext(t.Context(), "git", "init", "-q", s.at("workspace"))
	git.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testUID, Gid: testUID}}
	git.Env = []string{"HOME=" + s.at("home"), "PATH=" + os.Getenv("PATH")}
	if out, err := git.CombinedOutput(); err != nil {
		t.Fatalf("git init: %v\n%s", err, out)
	}
	s.mounts = s.podMounts()[:1]
	policy := with(func(p *Policy) { p.Filesystem.ReadOnlyPaths = []string{s.at("workspace/.git")} })
	want := map[string]string{"git status": "", "git diff": "", "git init": "exit status 128", "git add": "exit status 128", "git commit": "exit status 128", "git config": "exit status 255", "edit a tracked file": ""}
	answer := runAgent(t, s, agentOrder{Policy: policy, Layout: s.layout(), Attempts: slices.Sorted(maps.Keys(want))}, false)
	if answer.CompileError != "" {
		t.Fatal(answer.CompileError)
	}
	for name, text := range want {
		if got := answer.Outcomes[name]; !strings.HasPrefix(got.Text, text) || (text == "") != (got.Text == "") {
			t.Errorf("%s: got %q (%s), want %q", name, got.Text, got.Detail, text)
		}
	}
}
