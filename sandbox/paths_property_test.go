package sandbox

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// scene is a small tree, and everything in it that a policy is judged by.
type scene struct {
	base   string
	layout Layout
	// real are the paths that are no links, links lead to where the value says.
	real  []string
	links map[string]string
}

func newScene(tb testing.TB) scene {
	tb.Helper()
	base, err := os.MkdirTemp("/var/tmp", "execsession-scene-") //nolint:usetesting // a folder of few neighbours: the plan lists those of what it closes
	check(tb, err)
	tb.Cleanup(func() { _ = os.RemoveAll(base) })
	s := scene{base: base, links: make(map[string]string)}
	for _, file := range []string{
		"workspace/a/file", "workspace/a/key.pem", "workspace/.git/config", "home/.ssh/id", "tmp/x", "outside/file", "outside/a.key",
		"outside/b.key", "outside/dir/c.key", "outside/dir/deep/d.key", "agent/config/profile", "agent/journal/log", "agent/bin/readme", "data/one/x", "data/two/x",
	} {
		check(tb, os.MkdirAll(filepath.Dir(s.at(file)), 0o755))
		check(tb, os.WriteFile(s.at(file), nil, 0o644))
	}
	for link, target := range map[string]string{
		"workspace/link": "../outside", "workspace/to-key": "../outside/a.key", "outside/to-workspace": "../workspace", "outside/to-dir": "dir",
		"outside/to-config": "../agent/config", "data/to-home": "../home", "data/later": "../outside/later", "data/loop": "loop", "top": "workspace",
	} {
		check(tb, os.Symlink(target, s.at(link)))
	}
	s.layout = Layout{
		Workspace: s.at("workspace"), Writable: []string{s.at("home"), s.at("tmp")}, Hidden: []string{s.at("agent/config"), s.at("agent/journal")},
	}
	check(tb, filepath.WalkDir(base, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type()&fs.ModeSymlink != 0 {
			s.links[path] = plainReal(path)
			return nil
		}
		s.real = append(s.real, path)
		return err
	}))
	for _, rel := range []string{"workspace/new", "workspace/.git/new", "home/new", "outside/new", "outside/later", "agent/new", "agent/config/new", "data/one/new", "data/new"} {
		s.real = append(s.real, s.at(rel))
	}
	s.real = append(s.real, "/", "/etc", "/etc/passwd", "/usr/bin", "/proc/1/environ", "/proc/sys/kernel/core_pattern", "/sys/kernel", "/dev", "/dev/sda", "/dev/null", "/dev/pts/0", "/not-there")
	return s
}

func (s scene) at(rel string) string { return filepath.Join(s.base, rel) }

// plainReal is where a path leads, found by other means than the compiler's.
func plainReal(path string) string {
	if place, err := filepath.EvalSymlinks(path); err == nil {
		return place
	}
	if target, err := os.Readlink(path); err == nil && filepath.Base(target) != filepath.Base(path) {
		return plainReal(filepath.Join(filepath.Dir(path), target))
	}
	if path == "/" {
		return path
	}
	return filepath.Join(plainReal(filepath.Dir(path)), filepath.Base(path))
}

// below says the same as within, in other words.
func below(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// patternAsRegexp translates a pattern once more, for the judge alone. It knows neither classes nor escapes.
func patternAsRegexp(pattern string) string {
	var text strings.Builder
	for part := range strings.SplitSeq(strings.TrimPrefix(pattern, "/"), "/") {
		if part == "**" {
			text.WriteString("(/[^/]+)*")
			continue
		}
		text.WriteString("/" + strings.NewReplacer(`\*`, "[^/]*", `\?`, "[^/]").Replace(regexp.QuoteMeta(part)))
	}
	return "^" + text.String()
}

// fileJudge says what a policy allows at a path, in the plainest words.
type fileJudge struct {
	scene
	policy  Policy
	removed map[string]bool // values that are said not to be enforced
}

func (j fileJudge) hidden(path string) bool {
	return slices.ContainsFunc(j.layout.Hidden, func(dir string) bool { return below(path, dir) })
}

func (j fileJudge) isDevice(path string) bool {
	return slices.Contains(deviceFiles, path) || below(path, "/dev/pts")
}

func (j fileJudge) takenBy(list, path string, values []string) bool {
	return slices.ContainsFunc(values, func(value string) bool {
		return !j.removed[list+value] && !strings.ContainsAny(value, "*?[") && below(path, plainReal(value))
	})
}

func (j fileJudge) denied(path string) bool {
	if j.takenBy(deniedPaths, path, j.policy.Filesystem.DeniedPaths) {
		return true
	}
	return slices.ContainsFunc(j.policy.Filesystem.DeniedPaths, func(value string) bool {
		if j.removed[deniedPaths+value] || !strings.ContainsAny(value, "*?") || strings.ContainsAny(value, `[\`) {
			return false
		}
		pattern := patternAsRegexp(value)
		exactly, orBelow := regexp.MustCompile(pattern+"$"), regexp.MustCompile(pattern+"(/.*)?$")
		for link, target := range j.links {
			if !strings.HasSuffix(value, "**") && exactly.MatchString(link) && below(path, target) {
				return true
			}
		}
		return orBelow.MatchString(path)
	})
}

func (j fileJudge) mayRead(path string) bool {
	switch {
	case j.hidden(path), j.denied(path):
		return false
	case below(path, "/dev"):
		return j.isDevice(path) || j.policy.Filesystem.Mode == FullAccess
	}
	return true
}

func (j fileJudge) mayWrite(path string) bool {
	files := j.policy.Filesystem
	if !j.mayRead(path) || j.takenBy("filesystem.readOnlyPaths", path, files.ReadOnlyPaths) {
		return false
	}
	if j.isDevice(path) {
		return true
	}
	switch files.Mode {
	case FullAccess:
		return !below(path, "/proc") && !below(path, "/sys")
	case WorkspaceWrite:
		roots := slices.Concat([]string{j.layout.Workspace}, j.layout.Writable, files.WritableRoots)
		return slices.ContainsFunc(roots, func(root string) bool {
			place, err := filepath.EvalSymlinks(root)
			return err == nil && place == root && below(path, root)
		})
	default:
		return false
	}
}

// checkSubset compiles a policy and holds every right that it grants against the judge.
// It returns whether there was something to judge.
func checkSubset(t *testing.T, s scene, policy Policy) bool {
	t.Helper()
	caps := Probe()
	p, err := newPlan(policy, s.layout, caps, hardLimit)
	launcher, compileErr := Compile(policy, s.layout, caps)
	if compileErr == nil {
		check(t, launcher.Close())
	}
	if err != nil {
		if compileErr == nil {
			t.Errorf("%+v: compiled in spite of %v", policy, err)
		}
		return false
	}
	if policy.Enforcement == Required && len(p.gaps) > 0 {
		if compileErr == nil {
			t.Errorf("%+v: compiled in spite of %v", policy, p.gaps)
		}
		return false
	}
	j := fileJudge{scene: s, policy: policy, removed: make(map[string]bool)}
	for _, gap := range p.gaps {
		j.removed[gap.Field+gap.Value] = true
	}
	for _, path := range s.real {
		rights := rightsOf(p.grants, path)
		if more := rights &^ readRights; more != 0 && !j.mayWrite(path) {
			t.Errorf("%+v: %s may not be written, but %v is granted; gaps %v", policy, path, more, p.gaps)
		}
		if rights&(ll.AccessFSReadFile|ll.AccessFSExecute) != 0 && !j.mayRead(path) {
			t.Errorf("%+v: %s may not be read, but %v is granted; gaps %v", policy, path, rights, p.gaps)
		}
	}
	return true
}

// TestGrantsAreWithinThePolicy: what is compiled is a subset of what the policy says, for
// policies put together from paths, links and patterns that hit and miss.
func TestGrantsAreWithinThePolicy(t *testing.T) {
	s := newScene(t)
	words := []string{
		"workspace", "workspace/a", "workspace/a/file", "workspace/.git", "workspace/link", "workspace/link/dir", "workspace/none", "home", "home/.ssh", "tmp",
		"outside", "outside/file", "outside/dir/deep", "outside/none/x", "outside/to-workspace/a", "outside/to-dir", "outside/to-config", "data", "data/one",
		"data/to-home", "data/later", "data/loop/x", "top", "agent", "agent/bin", "agent/config",
	}
	patterns := []string{
		"outside/*.key", "outside/**/*.key", "outside/*/*.key", "outside/to-*/*", "outside/**", "workspace/**/*.pem", "*/file", "**/x", "data/*", "data/?ne", "agent/*/log", "h?me", "outside/**/deep/**",
	}
	random := rand.New(rand.NewPCG(1, 2))
	some := func(from []string, most int) []string {
		var list []string
		for range random.IntN(most + 1) {
			list = append(list, s.at(from[random.IntN(len(from))]))
		}
		return list
	}
	judged := 0
	for range 150 {
		policy := with(func(p *Policy) {
			p.Filesystem.Mode = []FilesystemMode{WorkspaceWrite, WorkspaceWrite, ReadOnly, FullAccess}[random.IntN(4)]
			p.Enforcement = []Enforcement{Required, BestEffort}[random.IntN(2)]
			if p.Filesystem.Mode != ReadOnly {
				p.Filesystem.WritableRoots = some(words, 2)
			}
			p.Filesystem.ReadOnlyPaths = some(words, 2)
			p.Filesystem.DeniedPaths = slices.Concat(some(words, 2), some(patterns, 1))
		})
		check(t, policy.Validate())
		if checkSubset(t, s, policy) {
			judged++
		}
	}
	if judged < 40 {
		t.Errorf("only %d of 150 policies compiled: nothing was judged", judged)
	}
}

// FuzzCompile: no document makes the compiler panic or grant more than it says. "@" stands for the scene.
func FuzzCompile(f *testing.F) {
	for _, files := range []string{
		`"mode":"WorkspaceWrite"`,
		`"mode":"WorkspaceWrite","readOnlyPaths":["@/workspace/.git","@/home"]`,
		`"mode":"WorkspaceWrite","writableRoots":["@/data","@/data/one","@/top"],"readOnlyPaths":["@/data/one"]`,
		`"mode":"ReadOnly","deniedPaths":["@/outside/*.key","@/outside/**/d.key","@/workspace/[a-z]/*"]`,
		`"mode":"FullAccess","deniedPaths":["@/outside","/etc"],"readOnlyPaths":["/proc","@/outside/to-dir"]`,
		`"mode":"WorkspaceWrite","deniedPaths":["@/outside/to-workspace/a","@/data/loop/x","@/data/later","/dev/null"]`,
	} {
		f.Add([]byte(fmt.Sprintf(`{"filesystem":{%s},"network":{"mode":"None"},"process":{},"enforcement":"BestEffort"}`, files)))
	}
	s := newScene(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		policy, err := parsePolicy([]byte(strings.ReplaceAll(string(data), "@", s.base)))
		if err != nil {
			return
		}
		for _, path := range policy.Filesystem.DeniedPaths {
			if isPattern(path) && !below(path, s.base) {
				return // the whole machine would be looked through each time
			}
		}
		checkSubset(t, s, policy)
	})
}
