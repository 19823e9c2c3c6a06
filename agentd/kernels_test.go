package agentd

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/wire"
	"execsession.dev/sandbox"
)

// TestAgentOnLinux61 is a whole agent with the default policy on a kernel that has Landlock ABI 2, as Linux 6.1: it runs commands, whose
// signals to each other work, and who signals the agent is refused, with a record.
func TestAgentOnLinux61(t *testing.T) {
	if caps := sandbox.Probe(); !caps.UserNotify || caps.LandlockABI < 2 {
		t.Skipf("this kernel cannot stand for Linux 6.1: %+v", caps)
	}
	var out syncBuffer
	agent, err := New(Config{Workspace: t.TempDir(), Policy: config.DefaultPolicy(), Shell: config.DefaultShell(), Ledger: &out, StopGrace: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	agent.policy.caps.LandlockABI = 2
	client, cancel, ended := served(t, agent)
	cases := []struct{ reason, script, want string }{
		{"a shell ends its child", "sleep 600 & kill $!; wait $! 2>/dev/null; echo $?", "143\n"},
		{"a shell ends a job", "set -m; sleep 600 & kill %1; wait %1 2>/dev/null; echo $?", "143\n"},
		{"timeout ends its command", "timeout 0.1 sleep 600; echo $?", "124\n"},
		// Whoever is wrong here ends the test itself.
		{"the agent cannot be ended", fmt.Sprintf("kill %d 2>&1 | grep -o 'Operation not permitted'", os.Getpid()), "Operation not permitted\n"},
	}
	for _, c := range cases {
		result, err := client.ExecCommand(t.Context(), &wire.ExecCommandRequest{
			Command: &wire.Command{Program: &wire.Command_Argv{Argv: &wire.Argv{Args: []string{"bash", "-c", c.script}}}}, YieldTimeMs: new(int64(30000)),
		})
		if err != nil || result.GetOutput() != c.want {
			t.Errorf("%s: %s gave %v, %v, want %q", c.reason, c.script, result, err, c.want)
		}
	}
	cancel()
	ended()
	checkRecordsOfLinux61(t, &out)
}

func checkRecordsOfLinux61(t *testing.T, out *syncBuffer) {
	t.Helper()
	var denied []string
	sandboxed := false
	for _, record := range out.records(t) {
		if d := record.Denied; d != nil {
			denied = append(denied, fmt.Sprintf("%t %s %s %s %s", d.ID > 0, d.Rule, d.Syscall, d.Arguments, d.Errno))
		}
		if record.Status == nil || record.Status.Sandbox.LandlockABI != 2 {
			continue
		}
		sandboxed = true
		if s := record.Status.Sandbox; !s.Enforced || !s.Denials || len(s.NotEnforced) > 0 {
			t.Errorf("the status says %+v", s)
		}
	}
	if want := fmt.Sprintf("true signals kill pid=%d signal=15 EPERM", os.Getpid()); strings.Join(denied, ";") != want {
		t.Errorf("the ledger tells %q, want %q", denied, want)
	}
	if !sandboxed {
		t.Error("no status tells the older Landlock")
	}
}
