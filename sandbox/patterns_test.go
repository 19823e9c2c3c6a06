package sandbox

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// patternTree makes files, folders (with a slash at the end) and links ("name -> target").
func patternTree(t *testing.T, entries ...string) string {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	check(t, err)
	for _, entry := range entries {
		name, target, link := strings.Cut(entry, " -> ")
		path := filepath.Join(base, name)
		check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		switch {
		case link:
			check(t, os.Symlink(strings.ReplaceAll(target, "@", base), path))
		case strings.HasSuffix(name, "/"):
			check(t, os.MkdirAll(path, 0o755))
		default:
			check(t, os.WriteFile(path, nil, 0o644))
		}
	}
	return base
}

func TestExpand(t *testing.T) {
	base := patternTree(t, "a.key", "b.txt", "[x]", "d/a.key", "d/e/f/a.key", "d/e/f/b", "ws/secret.key", "ws/in/", ".hidden",
		"link.key -> @/b.txt", "nothing.key -> @/later/key", "to-d -> d", "to-ws -> @/ws", "loop -> .")
	at := func(rel string) string { return filepath.Join(base, rel) }
	roots := []string{at("ws")}
	cases := map[string]struct {
		reason  string
		pattern string
		want    []string
		unsure  string
	}{
		"star":             {"a link counts where it leads, also if that does not exist yet", "/*.key", []string{"a.key", "b.txt", "later/key"}, ""},
		"question mark":    {"one character", "/?.txt", []string{"b.txt"}, ""},
		"class":            {"one of several", "/[a-c].[tk]*", []string{"a.key", "b.txt"}, ""},
		"escape":           {"a bracket that is meant", `/\[x]`, []string{"[x]"}, ""},
		"dot files":        {"no name is special", "/.h*", []string{".hidden"}, ""},
		"no match":         {"a name that does not exist", "/*.pem", nil, ""},
		"no folder":        {"a folder that does not exist", "/none/*", nil, ""},
		"below a file":     {"it has nothing below it", "/a.key/*", nil, ""},
		"folder in it":     {"parts between slashes; links are followed, here to d", "/*d/a.key", []string{"d/a.key"}, ""},
		"through a link":   {"its target is what is opened", "/to-d/*.key", []string{"d/a.key"}, ""},
		"any folders":      {"none, one and many; not through links", "/d/**/a.key", []string{"d/a.key", "d/e/f/a.key"}, ""},
		"any folders, end": {"a folder is everything below it", "/d/e/**", []string{"d/e"}, ""},
		"any twice":        {"each file once", "/d/**/f/**/b", []string{"d/e/f/b"}, ""},
		"any, repeated":    {"the same as once", "/d/**/**/b", []string{"d/e/f/b"}, ""},
		"in a root":        {"commands can make a match", "/ws/*.key", nil, "ws\", where commands"},
		"reaches a root":   {"a part matches a root", "/w*/*.key", nil, "ws\", where commands"},
		"over a root":      {"any folders reach it, and the rest is found all the same", "/**/b", []string{"d/e/f/b"}, "ws\", where commands"},
		"link to a root":   {"it leads where commands can make a match", "/to-w*/x", nil, "ws\", where commands"},
		"prefix by a link": {"the same", "/to-ws/*", nil, "ws\", where commands"},
		"a root":           {"the root itself", "/w?", []string{"ws"}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			found, err := expand(base+c.pattern, roots)
			check(t, err)
			var got []string
			for _, place := range found.places {
				rel, err := filepath.Rel(base, place)
				check(t, err)
				got = append(got, rel)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: -want +got\n%s", c.reason, diff)
			}
			if (c.unsure == "") != (found.unsure == "") || !strings.Contains(found.unsure, c.unsure) {
				t.Errorf("%s: unsure is %q, want %q", c.reason, found.unsure, c.unsure)
			}
		})
	}
	for _, pattern := range []string{"/proc/*/environ", "/dev/*", "/sys/**/x"} {
		if found, err := expand(pattern, nil); err != nil || !strings.Contains(found.unsure, "kernel makes entries") {
			t.Errorf("%s: got %+v (%v): the kernel can make a match at any time", pattern, found, err)
		}
	}
}

func TestExpandIsBounded(t *testing.T) {
	base := patternTree(t, "d/")
	for i := range maxMatches + 1 {
		check(t, os.WriteFile(filepath.Join(base, "d", strconv.Itoa(i)), nil, 0o600))
	}
	if _, err := expand(base+"/d/*", nil); err == nil || !strings.Contains(err.Error(), strconv.Itoa(maxMatches)) {
		t.Errorf("more matches than are allowed: got %v", err)
	}
	if found, err := expand(base+"/d/1*", nil); err != nil || len(found.places) != 112 {
		t.Errorf("fewer matches: got %v", err)
	}
	e := &expansion{seen: make(map[step]bool), entries: maxEntries - maxMatches}
	if err := e.walk(base, []string{anyFolders, "none"}); err == nil || !strings.Contains(err.Error(), strconv.Itoa(maxEntries)) {
		t.Errorf("more files than may be looked at: got %v", err)
	}
	policy := with(func(p *Policy) { p.Filesystem.DeniedPaths = []string{base + "/d/*"}; p.Enforcement = BestEffort })
	s := newStage(t, true)
	if _, err := newPlan(policy, s.layout(), newKernel, unlimited); err == nil || !strings.Contains(err.Error(), "filesystem.deniedPaths[0]") {
		t.Errorf("also BestEffort refuses what is too much: got %v", err)
	}
}

func TestUnlistableFolderIsUnsure(t *testing.T) {
	requireABI(t, 6)
	s := newPathStage(t)
	check(t, os.Chmod(s.at("outside/deep/er"), 0o311)) // names in it can be opened, and not be found
	policy := with(func(p *Policy) { p.Filesystem.DeniedPaths = []string{s.at("outside/**/*.key")} })
	answer := runAgent(t, s, agentOrder{Policy: policy, Layout: s.layout()}, false)
	if len(answer.Gaps) != 1 || !strings.Contains(answer.Gaps[0].Reason, `outside/deep/er", which cannot be listed`) {
		t.Errorf("got the gaps %v (%s)", answer.Gaps, answer.CompileError)
	}
}

func TestFollow(t *testing.T) {
	base := patternTree(t, "d/file", "link -> d", "up -> ./d/../link", "abs -> @/d", "later -> @/none/../x", "loop -> loop")
	cases := map[string]struct {
		path, place string
		links       []string
	}{
		"plain":    {"d/file", "d/file", nil},
		"missing":  {"d/none/x", "d/none/x", nil},
		"link":     {"link/file", "d/file", []string{"link"}},
		"two":      {"up/file", "d/file", []string{"up", "link"}},
		"absolute": {"abs", "d", []string{"abs"}},
		"dangling": {"later/y", "x/y", []string{"later"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			place, links := follow(filepath.Join(base, c.path))
			var want []string
			for _, link := range c.links {
				want = append(want, filepath.Join(base, link))
			}
			if diff := cmp.Diff(want, links); place != filepath.Join(base, c.place) || diff != "" {
				t.Errorf("got %q and the links %v", place, links)
			}
		})
	}
	if _, links := follow(filepath.Join(base, "loop/x")); len(links) != maxLinks {
		t.Errorf("a loop was followed %d times", len(links))
	}
}
