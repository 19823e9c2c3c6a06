package agentd

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// anotherUsers is a folder that belongs to another user than this process.
func anotherUsers(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		return "/"
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestGitEnvironment(t *testing.T) {
	own, other := t.TempDir(), anotherUsers(t)
	said := map[string]string{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "gc.auto", "GIT_CONFIG_VALUE_0": "0"}
	cases := map[string]struct {
		reason    string
		workspace string
		set, want map[string]string
	}{
		"own":     {"git trusts it anyway", own, map[string]string{"A": "b"}, map[string]string{"A": "b"}},
		"missing": {"nothing is known of it", own + "/missing", nil, nil},
		"profile": {"a profile has told git something", other, said, said},
		"another's": {"the root of a volume", other, map[string]string{"A": "b"}, map[string]string{
			"A": "b", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": other,
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, gitEnvironment(c.workspace, c.set)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// TestGitWorksInAnothersFolder: with the variables, and not without them, git uses a repository of another user.
func TestGitWorksInAnothersFolder(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make a folder of another user that can be written")
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	dir := anotherUsers(t)
	git := func(set map[string]string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_CONFIG_NOSYSTEM=1"}
		for name, value := range set {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	set := gitEnvironment(dir, nil)
	if out, err := git(set, "init", "-q"); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
	if out, err := git(nil, "status"); err == nil || !strings.Contains(out, "dubious ownership") {
		t.Errorf("without the variables: %v, %s", err, out)
	}
	if out, err := git(set, "status"); err != nil {
		t.Errorf("with the variables: %v: %s", err, out)
	}
}
