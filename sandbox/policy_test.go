package sandbox

import (
	"errors"
	"strconv"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*Policy)
		field  string // "" for a policy that is acceptable
	}{
		"default":            {"the built-in policy is complete", func(*Policy) {}, ""},
		"zero":               {"a forgotten policy must not mean anything", func(p *Policy) { *p = Policy{} }, "filesystem.mode"},
		"unknown mode":       {"no such mode", func(p *Policy) { p.Filesystem.Mode = "Write" }, "filesystem.mode"},
		"mode's case":        {"modes are spelled exactly", func(p *Policy) { p.Filesystem.Mode = "readonly" }, "filesystem.mode"},
		"no network mode":    {"a forgotten mode", func(p *Policy) { p.Network.Mode = "" }, "network.mode"},
		"unknown network":    {"no such mode", func(p *Policy) { p.Network.Mode = "Host" }, "network.mode"},
		"no enforcement":     {"a forgotten enforcement", func(p *Policy) { p.Enforcement = "" }, "enforcement"},
		"relative":           {"paths are absolute", func(p *Policy) { p.Filesystem.WritableRoots = []string{"/a", "b"} }, "filesystem.writableRoots[1]"},
		"not clean":          {"two spellings of one path", func(p *Policy) { p.Filesystem.DeniedPaths = []string{"/a/../b"} }, "filesystem.deniedPaths[0]"},
		"trailing slash":     {"two spellings of one path", func(p *Policy) { p.Filesystem.ReadOnlyPaths = []string{"/a/"} }, "filesystem.readOnlyPaths[0]"},
		"empty path":         {"names nothing", func(p *Policy) { p.Filesystem.ReadOnlyPaths = []string{""} }, "filesystem.readOnlyPaths[0]"},
		"NUL":                {"the kernel would cut it", func(p *Policy) { p.Filesystem.WritableRoots = []string{"/a\x00b"} }, "filesystem.writableRoots[0]"},
		"long path":          {"the kernel would refuse it", func(p *Policy) { p.Filesystem.WritableRoots = []string{"/" + strings.Repeat("a", 4096)} }, "filesystem.writableRoots[0]"},
		"pattern":            {"a list of what is not to be read", func(p *Policy) { p.Filesystem.DeniedPaths = []string{"/a/*.key", "/a/**/b?[0-9]"} }, ""},
		"open bracket":       {"a malformed pattern", func(p *Policy) { p.Filesystem.DeniedPaths = []string{"/a/[b"} }, "filesystem.deniedPaths[0]"},
		"bracket, slash":     {"a pattern ends at a slash", func(p *Policy) { p.Filesystem.DeniedPaths = []string{"/a", "/a[/]b"} }, "filesystem.deniedPaths[1]"},
		"** in a name":       {"it would mean * there", func(p *Policy) { p.Filesystem.DeniedPaths = []string{"/a/**.key"} }, "filesystem.deniedPaths[0]"},
		"stray backslash":    {"a malformed pattern", func(p *Policy) { p.Filesystem.DeniedPaths = []string{`/a/*\`} }, "filesystem.deniedPaths[0]"},
		"brackets as a name": {"a path of the other lists is no pattern", func(p *Policy) { p.Filesystem.ReadOnlyPaths = []string{"/a/[id]"} }, ""},
		"the whole tree":     {"that is what modes are for", func(p *Policy) { p.Filesystem.WritableRoots = []string{"/"} }, "filesystem.writableRoots[0]"},
		"contradiction":      {"a root that could never be written", func(p *Policy) { p.Filesystem.Mode = ReadOnly; p.Filesystem.WritableRoots = []string{"/a"} }, "filesystem.writableRoots[0]"},
		"unknown limit":      {"no such limit", func(p *Policy) { p.Process.Limits = map[string]uint64{"files": 1} }, `process.limits["files"]`},
		"known limits": {"all of them", func(p *Policy) {
			p.Process.Limits = map[string]uint64{"core": 0, "cpu": 1, "fsize": 1, "nproc": 1, "nofile": 1, "as": 1}
		}, ""},
		"unknown call":       {"no such system call", func(p *Policy) { p.Process.DeniedSyscalls = []string{"fork", "forkk"} }, "process.deniedSyscalls[1]"},
		"needed call":        {"nothing could start", func(p *Policy) { p.Process.DeniedSyscalls = []string{"execve"} }, "process.deniedSyscalls[0]"},
		"other architecture": {"one document for all nodes", func(p *Policy) { p.Process.DeniedSyscalls = []string{"fork", "arch_prctl"} }, ""},
		"negative ABI":       {"no such ABI", func(p *Policy) { p.MinLandlockABI = -1 }, "minLandlockABI"},
		"ABI of the future":  {"no kernel could be compared with it", func(p *Policy) { p.MinLandlockABI = newestABI + 1 }, "minLandlockABI"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := with(c.change).Validate()
			var field *FieldError
			switch {
			case c.field == "" && err != nil:
				t.Errorf("%s: got %v", c.reason, err)
			case c.field != "" && (!errors.As(err, &field) || field.Field != c.field || !strings.Contains(err.Error(), strconv.Quote(field.Value))):
				t.Errorf("%s: got %v, want an error about %s", c.reason, err, c.field)
			}
		})
	}
}
