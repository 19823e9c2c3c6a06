package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCommandLine(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		"Version":        {"the linker's value", []string{"version"}, 0, "dev\n", ""},
		"Nothing":        {"a command is needed", nil, exitUsage, "", "which command?"},
		"Unknown":        {"a command that is not there", []string{"srve"}, exitUsage, "", "srve"},
		"Help":           {"help is no error", []string{"--help"}, 0, "sandbox-exec", ""},
		"ConnectNowhere": {"nobody listens", []string{"connect", "--socket", "/no/such/socket"}, exitFailed, "", "/no/such/socket"},
		"ConnectArgs":    {"connect takes none", []string{"connect", "x"}, exitUsage, "", "x"},
		"InstallNowhere": {"a folder that is not there", []string{"install", "/no/such"}, exitFailed, "", "/no/such"},
		"InstallNoArg":   {"a folder is needed", []string{"install"}, exitUsage, "", "arg"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := runSelf(t, tc.args...)
			if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) || (tc.stderr == "") != (stderr == "") {
				t.Errorf("%s: code %d, stdout %q, stderr %q, want %d, %q, %q", tc.reason, code, stdout, stderr, tc.code, tc.stdout, tc.stderr)
			}
		})
	}
}

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // the second replaces the first
		if code, _, stderr := runSelf(t, "install", dir); code != 0 {
			t.Fatalf("installing: %d, %s", code, stderr)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the folder holds %v, %v, want the program only", entries, err)
	}
	info, err := os.Stat(filepath.Join(dir, "agentd"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the program's mode is %v, %v, want 0755", info.Mode(), err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "agentd"), "version")
	cmd.Env = append(os.Environ(), actAsVariable+"="+actAsAgentd)
	if output, err := cmd.Output(); err != nil || string(output) != "dev\n" {
		t.Errorf("the copy says %q, %v", output, err)
	}
}

// The daemon must stay small, and must hold no way to the API server.
func TestLinksNoKubernetes(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", ".")
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("listing what agentd links: %v", err)
	}
	for dependency := range strings.Lines(string(output)) {
		if strings.HasPrefix(dependency, "k8s.io/") || strings.HasPrefix(dependency, "sigs.k8s.io/") {
			t.Errorf("agentd links %s", dependency)
		}
	}
}
