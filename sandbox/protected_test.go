package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestChangeable(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	check(t, err)
	at := func(path string) string { return filepath.Join(dir, path) }
	for _, folder := range []string{"ws/sub", "temp", "root", "out", "run"} {
		check(t, os.MkdirAll(at(folder), 0o700))
	}
	for _, file := range []string{"ws/p", "ws/sub/p", "temp/p", "root/p", "out/p", "run/p"} {
		check(t, os.WriteFile(at(file), nil, 0o600))
	}
	for link, target := range map[string]string{"ws/out": "../out/p", "out/in": "../ws/p", "ws/folder": "../out", "out/round": "../ws/out", "out/run": "../run/p", "run/out": "../out/p"} {
		check(t, os.Symlink(target, at(link)))
	}
	layout := Layout{Workspace: at("ws"), Writable: []string{at("temp")}, Hidden: []string{at("run")}}
	cases := map[string]struct {
		reason, path string
		workspace    bool // whether it can be changed under WorkspaceWrite
		full         bool // the same for FullAccess
	}{
		"outside":                {"only reading is granted there", "out/p", false, true},
		"outside, missing":       {"nor is making anything", "out/new", false, true},
		"workspace":              {"commands write there", "ws/p", true, true},
		"below":                  {"commands write there", "ws/sub/p", true, true},
		"missing":                {"commands may make it first", "ws/new", true, true},
		"temporary":              {"commands write there", "temp/p", true, true},
		"writable root":          {"commands write there", "root/p", true, true},
		"hidden":                 {"no command comes there", "run/p", false, false},
		"hidden, missing":        {"no command comes there", "run/new", false, false},
		"link to it":             {"it is what is read", "out/in", true, true},
		"link in it":             {"it can be turned elsewhere", "ws/out", true, true},
		"folder's link in it":    {"it can be turned elsewhere", "ws/folder/p", true, true},
		"link to a link in it":   {"it can be turned elsewhere", "out/round", true, true},
		"link to what is hidden": {"under FullAccess the link can be turned", "out/run", false, true},
		"hidden link":            {"it cannot be turned, and leads out", "run/out", false, true},
		"device":                 {"no file with contents", "/dev/null", false, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := c.path
			if !filepath.IsAbs(path) {
				path = at(path)
			}
			for mode, want := range map[FilesystemMode]bool{ReadOnly: false, WorkspaceWrite: c.workspace, FullAccess: c.full} {
				policy := Default()
				if policy.Filesystem.Mode = mode; mode == WorkspaceWrite {
					policy.Filesystem.WritableRoots = []string{at("root")}
				}
				why, err := Changeable(policy, layout, path)
				check(t, err)
				if (why != "") != want || want && !strings.Contains(why, "commands") {
					t.Errorf("%s: under %s it is %q, want a reason: %t", c.reason, mode, why, want)
				}
			}
		})
	}
}
