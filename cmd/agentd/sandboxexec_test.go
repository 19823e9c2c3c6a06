package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"execsession.dev/agentd/config"
	"execsession.dev/sandbox"
)

func TestSandboxExec(t *testing.T) {
	workspace := t.TempDir()
	secret := t.TempDir()
	if err := os.WriteFile(filepath.Join(secret, "word"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	policy := writeJSON(t, config.DefaultPolicy())
	readOnly := config.DefaultPolicy()
	readOnly.Sandbox.Filesystem.Mode = "ReadOnly"
	limited := config.DefaultPolicy()
	limited.Sandbox.Process.Limits = map[string]uint64{"nofile": 64}
	script := filepath.Join(workspace, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexit 126\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	proxy := config.DefaultPolicy()
	proxy.Sandbox.Network.Mode, proxy.Sandbox.Network.Methods = "Proxy", "Full"
	bestEffort := config.DefaultPolicy()
	bestEffort.Sandbox.Enforcement = sandbox.BestEffort
	bestEffort.Sandbox.Filesystem.ReadOnlyPaths = []string{workspace + "/kept"}
	own := filepath.Join(workspace, "policy.json")
	if err := os.WriteFile(own, readFile(t, policy), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		reason string
		policy string
		argv   []string
		code   int
		stdout string
		stderr string
	}{
		"Code":       {"the program's code is passed on", policy, []string{"sh", "-c", "echo hi; exit 9"}, 9, "hi\n", ""},
		"Success":    {"so is 0", policy, []string{"true"}, 0, "", ""},
		"Signal":     {"a signal is 128 and its number", policy, []string{"sh", "-c", "kill -KILL $$"}, 137, "", ""},
		"Folder":     {"it works in the workspace", policy, []string{"sh", "-c", "pwd; echo x > file"}, 0, workspace + "\n", ""},
		"Confined":   {"and nowhere else", policy, []string{"sh", "-c", "echo x > /etc/x"}, 2, "", "/etc/x"},
		"ReadOnly":   {"the policy decides", writeJSON(t, readOnly), []string{"sh", "-c", "echo x > file"}, 2, "", "file"},
		"Hidden":     {"what is hidden is not read", policy, []string{"cat", secret + "/word"}, 1, "", secret},
		"Temp":       {"its temporary folder is its own", policy, []string{"sh", "-c", `echo x > "$TMPDIR/x" && test "$TMPDIR" != /tmp`}, 0, "", ""},
		"NotFound":   {"127 as env says it", policy, []string{"no-such-program"}, exitNotFound, "", "no-such-program"},
		"CannotRun":  {"126 as env says it", policy, []string{"/etc"}, exitCannotRun, "", "/etc"},
		"NoPolicy":   {"125 for what is not the program's", "/no/such", []string{"true"}, exitSandbox, "", "/no/such"},
		"NoFormat":   {"a file that is no program", policy, []string{"/etc/passwd"}, exitCannotRun, "", "/etc/passwd"},
		"FromThere":  {"a path leads from the workspace, and a program's own 126 is its own", policy, []string{"./script"}, 126, "", ""},
		"Limits":     {"limits hold", writeJSON(t, limited), []string{"sh", "-c", "ulimit -n; ulimit -Hn; ulimit -c; ulimit -Hc"}, 0, "64\n64\n0\n0\n", ""},
		"LimitsMiss": {"a missing program is told alike under limits", writeJSON(t, limited), []string{"/no/such/program"}, exitNotFound, "", "/no/such/program"},
		"Gaps":       {"what is not enforced is named", writeJSON(t, bestEffort), []string{"sh", "-c", "exit 3"}, 3, "", `agentd: not enforced: filesystem.readOnlyPaths "` + workspace + `/kept": `},
		"OwnPolicy":  {"the policy of the next run is not this one's", own, []string{"true"}, exitSandbox, "", `--policy "` + own + `": lies below`},
		"NotAllowed": {"a policy that this kernel cannot enforce runs nothing", writeJSON(t, proxy), []string{"true"}, exitSandbox, "", "network.mode"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			args := slices.Concat([]string{"sandbox-exec", "--policy", tc.policy, "--workspace", workspace, "--hidden", link, "--"}, tc.argv)
			code, stdout, stderr := runSelf(t, args...)
			if code != tc.code || stdout != tc.stdout || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("%s: code %d, stdout %q, stderr %q, want %d, %q, %q", tc.reason, code, stdout, stderr, tc.code, tc.stdout, tc.stderr)
			}
		})
	}
}

// What no program can work in is said with the flag's name.
func TestSandboxExecHiddenWorkspace(t *testing.T) {
	workspace := t.TempDir()
	code, _, stderr := runSelf(t, "sandbox-exec", "--policy", writeJSON(t, config.DefaultPolicy()), "--workspace", workspace, "--hidden", filepath.Dir(workspace), "--", "true")
	if want := "--hidden \"" + filepath.Dir(workspace) + "\": holds the workspace"; code != exitSandbox || !strings.Contains(stderr, want) {
		t.Errorf("code %d, stderr %q, want %d and %q", code, stderr, exitSandbox, want)
	}
}

// Standard input and output are the program's.
func TestSandboxExecStreams(t *testing.T) {
	cmd := self(t.Context(), "sandbox-exec", "--policy", writeJSON(t, config.DefaultPolicy()), "--workspace", t.TempDir(), "--", "sh", "-c", "tr a-z A-Z; echo err >&2")
	cmd.Stdin = strings.NewReader("word\n")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if code := exitCode(t, cmd.Run()); code != 0 || stdout.String() != "WORD\n" || stderr.String() != "err\n" {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
	}
}

// A signal is passed on, and the program answers it.
func TestSandboxExecSignal(t *testing.T) {
	cmd := self(t.Context(), "sandbox-exec", "--policy", writeJSON(t, config.DefaultPolicy()), "--workspace", t.TempDir(), "--",
		"sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done")
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, cmd)
	up := make([]byte, 3)
	if _, err := io.ReadFull(output, up); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !waitDone(d.done) || d.code != 7 {
		t.Errorf("it ended with %d", d.code)
	}
}

func TestSandboxExecDenials(t *testing.T) {
	if !sandbox.Probe().UserNotify {
		t.Skip("no supervisor can be had here")
	}
	policy := writeJSON(t, config.DefaultPolicy())
	args := []string{"sandbox-exec", "--policy", policy, "--workspace", t.TempDir()}
	program := []string{"--", "sh", "-c", "unshare -n true 2>/dev/null; exit 3"}
	if code, _, stderr := runSelf(t, slices.Concat(args, []string{"--denials"}, program)...); code != 3 ||
		!strings.Contains(stderr, "agentd: denied by namespaces: unshare flags=CLONE_NEWNET: EPERM, 1 times by ") {
		t.Errorf("code %d, %q", code, stderr)
	}
	if code, _, stderr := runSelf(t, slices.Concat(args, program)...); code != 3 || stderr != "" {
		t.Errorf("without --denials: code %d, %q", code, stderr)
	}
}
