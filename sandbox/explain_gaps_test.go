package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestExplainGaps: what a list could not take away is not said to be taken away, whether it is there or not.
func TestExplainGaps(t *testing.T) {
	requireABI(t, 2)
	s := newStage(t, true)
	at := func(path string) string { return filepath.Join(s.base, path) }
	policy := with(func(p *Policy) {
		p.Enforcement = BestEffort
		p.Filesystem.DeniedPaths = []string{at("workspace/missing"), at("workspace/a"), at("outside")}
		p.Filesystem.ReadOnlyPaths = []string{at("workspace/b/kept")}
	})
	launcher, err := Compile(policy, s.layout(), Probe())
	check(t, err)
	defer launcher.Close()
	if gaps := launcher.Report().NotEnforced; len(gaps) != 3 {
		t.Fatalf("the gaps are %q, want three", gaps)
	}
	cases := []struct {
		path   string
		access Access
		want   Outcome
		errno  error
		listed bool // a list is named
	}{
		{"workspace/missing", ReadAccess, Refused, unix.ENOENT, false},
		{"workspace/missing", WriteAccess, Allowed, nil, false},
		{"workspace/missing", ReadAccess, Allowed, nil, false}, // which was made now
		{"workspace/a/file", ReadAccess, Allowed, nil, false},
		{"workspace/a/file/x", ReadAccess, Refused, unix.ENOTDIR, false},
		{"workspace/b/kept", WriteAccess, Allowed, nil, false},
		{"workspace/b/kept/", WriteAccess, Refused, unix.EISDIR, false},
		{"outside/missing", ReadAccess, Refused, unix.ENOENT, true},
		{"outside/file", ReadAccess, Refused, unix.EACCES, true},
	}
	for i, c := range cases {
		if i == 2 {
			check(t, os.WriteFile(at(c.path), nil, 0o600))
		}
		path := at("") + "/" + c.path
		answer, err := launcher.ExplainPath(path, c.access)
		check(t, err)
		listed := strings.HasPrefix(answer.Rule, deniedPaths) || strings.HasPrefix(answer.Rule, readOnlyPaths)
		if answer.Outcome != c.want || c.errno != nil && answer.Errno != c.errno || listed != c.listed { //nolint:errorlint // an errno is compared
			t.Errorf("%s %q is explained as %+v", c.access, path, answer)
		}
	}
}
