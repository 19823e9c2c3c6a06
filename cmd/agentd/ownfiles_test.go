package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execsession.dev/agentd/config"
	"execsession.dev/sandbox"
)

// TestOwnFilesAreNotTheCommands refuses to start with a file of agentd's that commands could change, and takes one beside the socket.
func TestOwnFilesAreNotTheCommands(t *testing.T) {
	policy := config.DefaultPolicy()
	full := config.DefaultPolicy()
	full.Sandbox.Filesystem.Mode = sandbox.FullAccess
	for name, c := range map[string]struct {
		policy config.Policy
		folder string // of the file
		starts bool
	}{
		"in the workspace":   {policy, "workspace", false},
		"beside it":          {policy, "beside", true},
		"full access":        {full, "beside", false},
		"beside the socket":  {full, "run", true},
		"workspace and full": {full, "workspace", false},
	} {
		for _, flag := range []string{"policy", "ledger", "config"} {
			t.Run(name+"/"+flag, func(t *testing.T) {
				dir := t.TempDir()
				for _, folder := range []string{"workspace", "beside", "run"} {
					if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
						t.Fatal(err)
					}
				}
				path := filepath.Join(dir, c.folder, "file.json")
				contents := map[string][]byte{"config": []byte("{}"), "policy": readFile(t, writeJSON(t, c.policy))}
				if text, ok := contents[flag]; ok {
					if err := os.WriteFile(path, text, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				// The policy of the other flags lies where nothing is wrong with it.
				beside := filepath.Join(dir, "run", "policy.json")
				if err := os.WriteFile(beside, contents["policy"], 0o600); err != nil {
					t.Fatal(err)
				}
				args := []string{"serve", "--local", "--workspace", filepath.Join(dir, "workspace"), "--socket", filepath.Join(dir, "run", "s"), "--" + flag, path}
				if flag != "policy" {
					args = append(args, "--policy", beside)
				}
				if c.starts {
					d := startDaemon(t, self(t.Context(), args...))
					socketClient(t, filepath.Join(dir, "run", "s"))
					_ = d
					return
				}
				code, _, stderr := runSelf(t, args...)
				if code == 0 || !strings.Contains(stderr, "--"+flag+" \""+path+`"`) || !strings.Contains(stderr, "commands write") {
					t.Errorf("code %d, %q", code, stderr)
				}
			})
		}
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
