package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/wire"
	"execsession.dev/sandbox"
)

// startObserved starts an agent whose commands' refused calls are observed.
func startObserved(t *testing.T, args ...string) *local {
	t.Helper()
	if caps := sandbox.Probe(); !caps.UserNotify {
		t.Skipf("the kernel gives this process no listener (taken by a filter above: %v), so no denial can be observed", caps.NotifyTaken)
	}
	l := startLocal(t, args...)
	status, err := l.GetStatus(t.Context(), &wire.GetStatusRequest{})
	if err != nil || !status.GetSandbox().GetDenials() {
		t.Fatalf("the agent does not say that denials are observed: %v, %v", status.GetSandbox(), err)
	}
	return l
}

// knock is a script that makes n refused calls of socket, one each by a subshell that then ends.
func knock(n int) string {
	return fmt.Sprintf("for i in $(seq %d); do (: > /dev/tcp/192.0.2.1/80); done 2>/dev/null", n)
}

func inBash(text string) *wire.Command {
	command := lasting(script(text))
	command.Shell = "bash"
	return command
}

// socketDenial is what a refused connection of bash is told as.
func socketDenial(count uint64) []*wire.Denial {
	return []*wire.Denial{{
		Source: "Enforced", Rule: "socket", Syscall: "socket", Arguments: "family=AF_INET type=SOCK_STREAM protocol=TCP",
		Errno: "EACCES", Program: bashPath(), Count: count,
	}}
}

func bashPath() string {
	path, err := filepath.EvalSymlinks("/bin/bash")
	if err != nil {
		return "/bin/bash"
	}
	return path
}

// sameDenials compares but for the process and the times, which must be there.
func sameDenials(t *testing.T, what string, want, got []*wire.Denial) {
	t.Helper()
	ignored := protocmp.IgnoreFields(&wire.Denial{}, "pid", "first_time", "last_time")
	if diff := cmp.Diff(want, got, protocmp.Transform(), ignored); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
	for _, d := range got {
		if d.GetPid() <= 1 || d.GetFirstTime().AsTime().After(d.GetLastTime().AsTime()) || d.GetFirstTime() == nil {
			t.Errorf("%s: process and times of %v", what, d)
		}
	}
}

func TestLocalDenialsOfResults(t *testing.T) {
	l := startObserved(t)
	call := func(r *wire.ExecCommandRequest) []*wire.Denial {
		t.Helper()
		r.YieldTimeMs = new(int64(30000))
		if r.GetOneShot() {
			r.YieldTimeMs = nil
		}
		result, err := l.ExecCommand(t.Context(), r)
		if err != nil || result.ExitCode == nil {
			t.Fatalf("got %v, %v", result, err)
		}
		return result.GetDenials()
	}
	// Nothing of one command is in another's result, however fast they follow.
	for range 20 {
		sameDenials(t, "one refused call", socketDenial(1), call(&wire.ExecCommandRequest{Command: inBash(knock(1))}))
		sameDenials(t, "none", nil, call(&wire.ExecCommandRequest{Command: inBash("true")}))
	}
	sameDenials(t, "none, and a failure", nil, call(&wire.ExecCommandRequest{Command: inBash("echo Permission denied >&2; exit 1")}))
	sameDenials(t, "one-shot", socketDenial(3), call(&wire.ExecCommandRequest{Command: inBash(knock(3)), OneShot: true}))
	run, err := l.Run(t.Context(), &wire.RunRequest{Command: inBash(knock(2))})
	if err != nil {
		t.Fatal(err)
	}
	sameDenials(t, "Run", socketDenial(2), run.GetDenials())
	// A kind for each call, program and arguments, in their order.
	many := call(&wire.ExecCommandRequest{Command: inBash(knock(2) + "; unshare -n true; unshare -n true; unshare -u true")})
	var told []string
	for _, d := range many {
		told = append(told, fmt.Sprintf("%s %s %s %d", d.GetRule(), d.GetArguments(), filepath.Base(d.GetProgram()), d.GetCount()))
	}
	want := []string{
		"socket family=AF_INET type=SOCK_STREAM protocol=TCP bash 2",
		"namespaces flags=CLONE_NEWNET unshare 2", "namespaces flags=CLONE_NEWUTS unshare 1",
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

// knocker is a command that makes as many refused calls as each line that it reads says, and then answers.
type knocker struct {
	l  *local
	id int32
}

func startKnocker(t *testing.T, l *local) *knocker {
	t.Helper()
	command := inBash("while read -r n; do for i in $(seq $n); do (: > /dev/tcp/192.0.2.1/80); done 2>/dev/null; echo did $n; done")
	command.Stdin = wire.StdinMode_STDIN_MODE_OPEN
	result, err := l.ExecCommand(t.Context(), &wire.ExecCommandRequest{Command: command, YieldTimeMs: new(int64(250))})
	if err != nil || result.SessionId == nil || len(result.GetDenials()) != 0 {
		t.Fatalf("got %v, %v", result, err)
	}
	return &knocker{l: l, id: result.GetSessionId()}
}

// knock has calls made and returns how many the results tell until the answer comes.
func (k *knocker) knock(t *testing.T, calls int) (counted uint64) {
	t.Helper()
	chars := fmt.Sprintf("%d\n", calls)
	answer := fmt.Sprintf("did %d\n", calls)
	var output strings.Builder
	eventually(t, "the command answers", func() bool {
		result, err := k.l.WriteStdin(t.Context(), &wire.WriteStdinRequest{SessionId: k.id, Chars: chars, YieldTimeMs: new(int64(250))})
		if err != nil {
			t.Fatal(err)
		}
		chars = "0\n" // does nothing, and does not wait as long as a poll
		output.WriteString(result.GetOutput())
		for _, d := range result.GetDenials() {
			counted += d.GetCount()
		}
		return strings.Contains(output.String(), answer)
	})
	return counted
}

// TestLocalDenialsOfALongCommand: each result has what is new, the list all of it, and so has the end that Attach tells.
func TestLocalDenialsOfALongCommand(t *testing.T) {
	l := startObserved(t)
	k := startKnocker(t, l)
	quiet := startKnocker(t, l)
	for _, calls := range []int{1, 5, 0, 2} {
		if counted := k.knock(t, calls); counted != uint64(calls) {
			t.Errorf("%d calls were refused, the results tell %d", calls, counted)
		}
	}
	if counted := quiet.knock(t, 0); counted != 0 {
		t.Errorf("a command that was refused nothing is told %d", counted)
	}
	list, err := l.ListProcesses(t.Context(), &wire.ListProcessesRequest{})
	if err != nil || len(list.GetProcesses()) != 2 {
		t.Fatalf("got %v, %v", list, err)
	}
	for _, p := range list.GetProcesses() {
		want := socketDenial(8)
		if p.GetId() == quiet.id {
			want = nil
		}
		sameDenials(t, "the list", want, p.GetDenials())
	}
	stream, err := l.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, stream, &wire.AttachRequest{Message: &wire.AttachRequest_Open{Open: &wire.AttachOpen{ProcessId: k.id}}})
	last, err := l.WriteStdin(t.Context(), &wire.WriteStdinRequest{SessionId: k.id, Chars: "3\n", CloseStdin: true, YieldTimeMs: new(int64(30000))})
	if err != nil || last.ExitCode == nil {
		t.Fatalf("got %v, %v", last, err)
	}
	sameDenials(t, "the last result", socketDenial(3), last.GetDenials())
	got := receive(stream)
	if got.exit == nil {
		t.Fatalf("attaching ended with %v", got.err)
	}
	sameDenials(t, "what was joined", socketDenial(8), got.process.GetDenials())
	sameDenials(t, "the end", socketDenial(11), got.denials)
	sameDenials(t, "a start that is attached to", socketDenial(1), receive(attachStart(t, l, inBash(knock(1)))).denials)
}

// TestLocalDenialsOfAFlood: very many refused calls are numbers in the result, complete and few.
func TestLocalDenialsOfAFlood(t *testing.T) {
	python := requirePython(t)
	l := startObserved(t)
	const loops = 500
	text := fmt.Sprintf(`
import socket
for n in range(%d):
    for kind in range(1, 41):
        try:
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM, kind)
        except OSError:
            pass
`, loops)
	result, err := l.ExecCommand(t.Context(), &wire.ExecCommandRequest{Command: lasting(argv(python, "-c", text)), OneShot: true})
	if err != nil || result.GetExitCode() != 0 {
		t.Fatalf("got %v, %v", result, err)
	}
	var sum uint64
	mixed := 0
	for _, d := range result.GetDenials() {
		sum += d.GetCount()
		if d.GetMixed() {
			mixed++
		}
	}
	if sum != 40*loops || len(result.GetDenials()) != 17 || mixed != 1 {
		t.Errorf("%d calls in %d kinds, %d of them mixed; want %d in 17, one of them mixed", sum, len(result.GetDenials()), mixed, 40*loops)
	}
}

func requirePython(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3 here to make many calls with")
	}
	return path
}

// TestLocalNarrowing: a command may ask for less than its policy, and asking for more runs nothing.
func TestLocalNarrowing(t *testing.T) {
	policy := config.DefaultPolicy()
	policy.Sandbox.Network.Mode = sandbox.OpenNetwork
	l := startLocal(t, "--policy", writeJSON(t, policy))
	narrowed := func(command *wire.Command, filesystem, network string) *wire.Command {
		command.Sandbox = &wire.Narrowing{Filesystem: filesystem, Network: network}
		return command
	}
	const connect = "exec 2>&1; (: > /dev/tcp/127.0.0.1/1)" // nobody listens there
	for _, c := range []struct {
		filesystem, network string
		script, says        string
	}{
		{"", "", "echo a > file && cat file", "a\n"},
		{"ReadOnly", "", "cat file; echo b > file", "file: Permission denied"},
		{"WorkspaceWrite", "Open", "echo c > file && cat file", "c\n"},
		{"", "", connect, "Connection refused"},
		{"", "Loopback", connect, "Connection refused"},
		{"ReadOnly", "None", connect, "Permission denied"},
		{"", "None", "echo d > file && cat file", "d\n"},
	} {
		output, _ := execute(t, l, narrowed(inBash("exec 2>&1; "+c.script), c.filesystem, c.network))
		if !strings.Contains(output, c.says) {
			t.Errorf("%q under %q and %q says %q, want %q", c.script, c.filesystem, c.network, output, c.says)
		}
	}
	touch := func() *wire.Command { return argv("touch", "ran") }
	calls := map[string]func(*wire.Command) error{
		"ExecCommand": func(c *wire.Command) error {
			_, err := l.ExecCommand(t.Context(), &wire.ExecCommandRequest{Command: c})
			return err
		},
		"Run": func(c *wire.Command) error {
			_, err := l.Run(t.Context(), &wire.RunRequest{Command: c})
			return err
		},
		"Start": func(c *wire.Command) error {
			_, err := l.Start(t.Context(), &wire.StartRequest{Command: c})
			return err
		},
		"Attach": func(c *wire.Command) error { return receive(attachStart(t, l, c)).err },
	}
	for name, call := range calls {
		for _, c := range []struct{ filesystem, network, reason string }{
			{"FullAccess", "", wire.ReasonPermissionDenied},
			{"", "Proxy", wire.ReasonPermissionDenied},
			{"ReadOnly", "Proxy", wire.ReasonPermissionDenied},
			{"readonly", "", ":command.sandbox.filesystem"},
			{"", "Closed", ":command.sandbox.network"},
		} {
			if err := call(narrowed(touch(), c.filesystem, c.network)); reasonOf(err) != c.reason {
				t.Errorf("%s with %q and %q gives %v, want %s", name, c.filesystem, c.network, err, c.reason)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(l.workspace, "ran")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a command ran that asked for more: %v", err)
	}
	eventually(t, "the refusals are in the ledger", func() bool {
		ledger, err := os.ReadFile(l.ledger)
		if err != nil {
			t.Fatal(err)
		}
		refused := 0
		for _, record := range records(t, string(ledger)) {
			if record.Refused != nil && record.Refused.Reason == wire.ReasonPermissionDenied {
				refused++
			}
		}
		return refused == 3*len(calls)
	})
}
