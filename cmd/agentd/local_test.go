package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/ledger"
	"execsession.dev/agentd/wire"
)

// local is an `agentd serve --local --socket`.
type local struct {
	*daemon
	wire.AgentClient
	workspace, socket, ledger string
}

func startLocal(t *testing.T, args ...string) *local {
	t.Helper()
	dir := t.TempDir()
	l := &local{
		workspace: filepath.Join(dir, "workspace"),
		socket:    filepath.Join(dir, "run", "agentd.sock"),
		ledger:    filepath.Join(dir, "ledger"),
	}
	if err := os.Mkdir(l.workspace, 0o700); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"serve", "--local", "--workspace", l.workspace, "--socket", l.socket, "--ledger", l.ledger, "--stop-grace", "1s"}, args...)
	l.daemon = startDaemon(t, self(t.Context(), args...))
	l.AgentClient = socketClient(t, l.socket)
	return l
}

func TestLocalTools(t *testing.T) {
	l := startLocal(t)
	result, err := l.ExecCommand(t.Context(), &wire.ExecCommandRequest{
		Command: script("echo early; sleep 1; echo late"), YieldTimeMs: new(int64(250)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if result.SessionId == nil || result.ExitCode != nil {
		t.Fatalf("a command that still runs gave %v", result)
	}
	list, err := l.ListProcesses(t.Context(), &wire.ListProcessesRequest{})
	if err != nil || len(list.GetProcesses()) != 1 || list.GetProcesses()[0].GetId() != result.GetSessionId() {
		t.Errorf("the list is %v, %v, want process %d", list, err, result.GetSessionId())
	}
	output := result.GetOutput()
	for result.ExitCode == nil {
		if result, err = l.WriteStdin(t.Context(), &wire.WriteStdinRequest{SessionId: result.GetSessionId(), YieldTimeMs: new(int64(5000))}); err != nil {
			t.Fatal(err)
		}
		output += result.GetOutput()
	}
	if output != "early\nlate\n" || result.GetExitCode() != 0 || result.SessionId != nil {
		t.Errorf("the output is %q and the last result %v", output, result)
	}
	got, err := l.GetStatus(t.Context(), &wire.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !got.GetPolicy().GetValid() || !got.GetSandbox().GetSeccomp() || !got.GetSandbox().GetEnforced() {
		t.Errorf("the status is %v, want a valid policy that is enforced", got)
	}
}

func TestLocalStop(t *testing.T) {
	l := startLocal(t)
	process, err := l.Start(t.Context(), &wire.StartRequest{Command: script("trap '' TERM; touch trapped; sleep 1000 & sleep 1000")})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command ignores SIGTERM", func() bool {
		_, err := os.Stat(filepath.Join(l.workspace, "trapped"))
		return err == nil
	})
	if _, err := l.Signal(t.Context(), &wire.SignalRequest{ProcessId: process.GetId(), Signal: "WINCH"}); err != nil {
		t.Error(err)
	}
	stopped, err := l.Stop(t.Context(), &wire.StopRequest{ProcessId: process.GetId(), Grace: durationpb.New(100 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	if !stopped.GetWasRunning() || stopped.GetExit().GetReason() != wire.ExitReason_EXIT_REASON_STOPPED || stopped.GetExit().GetSignal() != "SIGKILL" {
		t.Errorf("stopping gave %v", stopped)
	}
	again, err := l.Stop(t.Context(), &wire.StopRequest{ProcessId: process.GetId()})
	if err != nil || again.GetWasRunning() {
		t.Errorf("stopping again gave %v, %v", again, err)
	}
}

// reasonOf returns the ErrorInfo's reason, or the field of a BadRequest after a colon.
func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			return d.GetReason()
		case *errdetails.BadRequest:
			return ":" + d.GetFieldViolations()[0].GetField()
		}
	}
	return ""
}

func TestLocalErrors(t *testing.T) {
	l := startLocal(t)
	run := func(c *wire.Command) func() error {
		return func() error {
			_, err := l.Start(t.Context(), &wire.StartRequest{Command: c})
			return err
		}
	}
	with := func(change func(*wire.Command)) func() error {
		c := argv("true")
		change(c)
		return run(c)
	}
	attach := func(requests ...*wire.AttachRequest) func() error {
		return func() error {
			stream, err := l.Attach(t.Context())
			if err != nil {
				return err
			}
			for _, r := range requests {
				if stream.Send(r) != nil {
					break // Recv tells why
				}
			}
			return receive(stream).err
		}
	}
	startSleep := &wire.AttachRequest{Message: &wire.AttachRequest_Start{Start: &wire.StartRequest{Command: argv("sleep", "2")}}}
	cases := map[string]struct {
		call   func() error
		code   codes.Code
		reason string
	}{
		"NoCommand":      {run(nil), codes.InvalidArgument, ":command"},
		"NoProgram":      {run(&wire.Command{}), codes.InvalidArgument, ":command"},
		"EmptyScript":    {run(script("")), codes.InvalidArgument, ":command.script"},
		"EmptyArgv":      {run(argv()), codes.InvalidArgument, ":command.argv"},
		"Size":           {with(func(c *wire.Command) { c.Size = &wire.WindowSize{Rows: 70000, Columns: 1} }), codes.InvalidArgument, ":command.size"},
		"StdinMode":      {with(func(c *wire.Command) { c.Stdin = 77 }), codes.InvalidArgument, ":command.stdin"},
		"Timeout":        {with(func(c *wire.Command) { c.Timeout = durationpb.New(-1) }), codes.InvalidArgument, ":command.timeout"},
		"TimeoutInvalid": {with(func(c *wire.Command) { c.Timeout = &durationpb.Duration{Seconds: 1, Nanos: -1} }), codes.InvalidArgument, ":command.timeout"},
		"NoSuchProgram":  {run(argv("/no/such/program")), codes.FailedPrecondition, wire.ReasonStartFailed},
		"NoSuchFolder":   {with(func(c *wire.Command) { c.Workdir = "no/such" }), codes.FailedPrecondition, wire.ReasonStartFailed},
		"UnknownProcess": {func() error {
			_, err := l.Stop(t.Context(), &wire.StopRequest{ProcessId: 4})
			return err
		}, codes.NotFound, wire.ReasonUnknownProcess},
		"UnknownSession": {func() error {
			_, err := l.WriteStdin(t.Context(), &wire.WriteStdinRequest{SessionId: 4})
			return err
		}, codes.NotFound, wire.ReasonUnknownProcess},
		"Environment": {func() error {
			_, err := l.ExecCommand(t.Context(), &wire.ExecCommandRequest{Command: argv("true"), EnvironmentId: "other"})
			return err
		}, codes.InvalidArgument, ":environment_id"},
		"Escalation": {func() error {
			_, err := l.ExecCommand(t.Context(), &wire.ExecCommandRequest{
				Command: argv("true"), SandboxPermissions: "require_escalated", Justification: "because",
			})
			return err
		}, codes.PermissionDenied, wire.ReasonPermissionDenied},
		"AttachNothing": {func() error {
			stream, err := l.Attach(t.Context())
			if err != nil {
				return err
			}
			_ = stream.CloseSend()
			return receive(stream).err
		}, codes.InvalidArgument, ":message"},
		"AttachStdinFirst": {attach(&wire.AttachRequest{Message: &wire.AttachRequest_Stdin{Stdin: []byte("x")}}), codes.InvalidArgument, ":message"},
		"AttachUnknown": {attach(&wire.AttachRequest{Message: &wire.AttachRequest_Open{Open: &wire.AttachOpen{ProcessId: 4}}}),
			codes.NotFound, wire.ReasonUnknownProcess},
		"AttachNoInput": {attach(startSleep, &wire.AttachRequest{Message: &wire.AttachRequest_Stdin{Stdin: []byte("x")}}),
			codes.FailedPrecondition, wire.ReasonStdinClosed},
		"AttachNoTerminal": {attach(startSleep, &wire.AttachRequest{Message: &wire.AttachRequest_Resize{Resize: &wire.WindowSize{Rows: 1, Columns: 1}}}),
			codes.FailedPrecondition, wire.ReasonNotTerminal},
		"AttachStartTwice": {attach(startSleep, startSleep), codes.InvalidArgument, ":message"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := tc.call()
			if status.Code(err) != tc.code || reasonOf(err) != tc.reason {
				t.Errorf("got %v with %q, want %v with %q", err, reasonOf(err), tc.code, tc.reason)
			}
		})
	}
}

func TestLocalSandbox(t *testing.T) {
	l := startLocal(t)
	for name, text := range map[string]string{
		"WorkspaceWritable":  "echo x > file && rm file",
		"TempWritable":       `echo x > "$TMPDIR/file"`,
		"OutsideReadOnly":    "! touch /etc/execsession-test",
		"SocketFolderClosed": fmt.Sprintf("! touch %s/x", filepath.Dir(l.socket)),
		"MarkStays":          `before=$(ulimit -Hx); ! ulimit -x 5 && test "$(ulimit -Hx)" = "$before"`,
		"NoNewPrivs":         "grep -q 'NoNewPrivs:.1' /proc/self/status",
		"Seccomp":            "grep -q 'Seccomp:.2' /proc/self/status",
		"NoCapabilities":     "grep -q 'CapEff:.0000000000000000' /proc/self/status",
		"Umask":              `test "$(umask)" = 0022`,
		"AgentNotReadable":   fmt.Sprintf("! cat /proc/%d/environ", l.cmd.Process.Pid),
		"NoSettingsOfAgentd": "! env | grep ^AGENTD_",
	} {
		t.Run(name, func(t *testing.T) {
			if output, code := execute(t, l, script(text)); code != 0 {
				t.Errorf("%s: exit code %d: %s", text, code, output)
			}
		})
	}
}

// What a command leaves is found also when it tries to take its mark off and is nobody's child.
func TestLocalStopFindsWhatHides(t *testing.T) {
	l := startLocal(t)
	process, err := l.Start(t.Context(), &wire.StartRequest{Command: script(
		"(ulimit -x 0; exec env -i setsid -f sh -c 'echo $$ > pid; exec sleep 1000' < /dev/null > /dev/null 2>&1); sleep 1000")})
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	eventually(t, "the orphan tells its number", func() bool {
		data, err := os.ReadFile(filepath.Join(l.workspace, "pid"))
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(data)))
		return err == nil
	})
	if _, err := l.Stop(t.Context(), &wire.StopRequest{ProcessId: process.GetId()}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the orphan is gone", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

func TestLocalThroughLinks(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"workspace", "temp"} {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, name), 0o700), os.Symlink(name, filepath.Join(dir, name+"-link"))); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, "run", "agentd.sock")
	cmd := self(t.Context(), "serve", "--local", "--workspace", filepath.Join(dir, "workspace-link"), "--socket", socket)
	cmd.Env = append(cmd.Env, "TMPDIR="+filepath.Join(dir, "temp-link"))
	startDaemon(t, cmd)
	output, code := execute(t, socketClient(t, socket), script(`pwd; echo x > file; echo "$TMPDIR"; echo x > "$TMPDIR/file"`))
	if want := filepath.Join(dir, "workspace") + "\n" + filepath.Join(dir, "temp") + "\n"; output != want || code != 0 {
		t.Errorf("code %d and %q, want 0 and %q", code, output, want)
	}
}

// A login shell costs its start-up files once; what they say holds, and the state of a session's files is looked at anew.
func TestLocalLogin(t *testing.T) {
	home := t.TempDir()
	profile := filepath.Join(home, ".bash_profile")
	write := func(word string) {
		t.Helper()
		if err := os.WriteFile(profile, []byte("export WORD="+word+"\nspeak() { echo \"$WORD\"; }\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	socket := filepath.Join(t.TempDir(), "run", "agentd.sock")
	cmd := self(t.Context(), "serve", "--local", "--workspace", t.TempDir(), "--socket", socket)
	cmd.Env = append(cmd.Env, "HOME="+home)
	startDaemon(t, cmd)
	c := socketClient(t, socket)
	login := func() string {
		t.Helper()
		command := script("speak")
		command.Login, command.Shell = nil, "bash"
		output, _ := execute(t, c, command)
		return output
	}
	for range 3 {
		if got := login(); got != "first\n" {
			t.Errorf("a login says %q", got)
		}
	}
	write("another")
	for range 3 {
		if got := login(); got != "another\n" {
			t.Errorf("after the files changed, a login says %q", got)
		}
	}
}

// A command must not get at the agent that runs it, whatever it does about its descent.
func TestLocalCommandsAreNoPeers(t *testing.T) {
	l := startLocal(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	connect := fmt.Sprintf("%s=%s %s connect --socket %s", actAsVariable, actAsAgentd, exe, l.socket)
	for name, text := range map[string]string{
		"Command":      "exec env " + connect,
		"Child":        connect,
		"DoubleForked": fmt.Sprintf("(setsid sh -c 'sleep 0.3; %s' > out 2>&1; echo done >> out) & wait; cat out; ! grep -q refused out && exit 9; exit 1", connect),
		"Orphaned":     fmt.Sprintf("rm -f out; setsid sh -c '(sleep 0.5; %s > part 2>&1; mv part out) & exit 0'; while [ ! -e out ]; do sleep 0.05; done; cat out; exit 1", connect),
	} {
		t.Run(name, func(t *testing.T) {
			output, code := execute(t, l, script(text))
			if code != 1 || !strings.Contains(output, "agentd: refused: ") || !strings.Contains(output, "command of this agent") {
				t.Errorf("%s: exit code %d, output %q, want a refusal", text, code, output)
			}
		})
	}
	// The socket still serves who may use it.
	if output, code := execute(t, l, script("echo ok")); output != "ok\n" || code != 0 {
		t.Errorf("after the refusals a command gives %q and %d", output, code)
	}
}

func TestLocalConnect(t *testing.T) {
	l := startLocal(t)
	child, conn := socketPair(t)
	cmd := self(t.Context(), "connect", "--socket", l.socket)
	cmd.Stdin, cmd.Stdout = child, child
	d := startDaemon(t, cmd)
	child.Close()
	c := client(t, oneConn(conn))
	if output, code := execute(t, c, script("echo through")); output != "through\n" || code != 0 {
		t.Errorf("through connect came %q and %d", output, code)
	}
	conn.Close()
	if !waitDone(d.done) || d.code != 0 {
		t.Errorf("connect ended with %d after its client did, want 0; it said %s", d.code, d.stderr)
	}
}

func TestLocalStdio(t *testing.T) {
	for name, pipes := range map[string]bool{"Socket": false, "Pipes": true} {
		t.Run(name, func(t *testing.T) {
			cmd := self(t.Context(), "serve", "--local", "--workspace", t.TempDir(), "--stdio")
			var conn net.Conn
			if pipes {
				conn = pipeConn(t, cmd)
			} else {
				var child *os.File
				child, conn = socketPair(t)
				cmd.Stdin = child
				defer child.Close()
			}
			d := startDaemon(t, cmd)
			c := client(t, oneConn(conn))
			if output, code := execute(t, c, script("echo hi")); output != "hi\n" || code != 0 {
				t.Errorf("over stdio came %q and %d", output, code)
			}
			// Nobody but the pair's other side could ever use the commands that run.
			if _, err := c.Start(t.Context(), &wire.StartRequest{Command: argv("sleep", "1000")}); err != nil {
				t.Fatal(err)
			}
			conn.Close()
			if !waitDone(d.done) || d.code != 0 {
				t.Errorf("agentd ended with %d after its client did, want 0; it said %s", d.code, d.stderr)
			}
		})
	}
}

// terminate asks agentd to end while a command that is attached to writes, and checks that the client gets the record.
func terminate(t *testing.T, agent *os.Process, stream grpc.BidiStreamingClient[wire.AttachRequest, wire.AttachResponse]) attached {
	t.Helper()
	for {
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if response.GetOutput() != nil {
			break
		}
	}
	if err := agent.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	got := receive(stream)
	if got.exit.GetReason() != wire.ExitReason_EXIT_REASON_ENGINE_STOPPED || !errors.Is(got.err, io.EOF) {
		t.Errorf("the client got %v and then %v, want the record that the engine stopped", got.exit, got.err)
	}
	return got
}

func TestLocalTerminationReachesClients(t *testing.T) {
	l := startLocal(t)
	stream := attachStart(t, l, script("echo up; sleep 1000"))
	terminate(t, l.cmd.Process, stream)
	if !waitDone(l.done) || l.code != 0 {
		t.Errorf("agentd ended with %d, want 0", l.code)
	}
	if _, err := os.Lstat(l.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	text, err := os.ReadFile(l.ledger)
	if err != nil {
		t.Fatal(err)
	}
	all := records(t, string(text))
	last := all[len(all)-1]
	if last.Status == nil || !last.Status.Stopping || last.Status.Processes != (ledger.Processes{Running: 0, Exited: 1}) {
		t.Errorf("the last record is %+v, want the final status", last)
	}
	var exited *ledger.Exited
	for _, record := range all {
		if record.Exited != nil {
			exited = record.Exited
		}
	}
	if exited == nil || exited.Reason != "EngineStopped" {
		t.Errorf("the ledger's exit is %+v", exited)
	}
}

func TestLocalLedger(t *testing.T) {
	secret := "echo a-secret-word"
	for name, tc := range map[string]struct {
		mode string
		want string
	}{"Digest": {config.LedgerDigest, ""}, "Full": {config.LedgerFull, secret}} {
		t.Run(name, func(t *testing.T) {
			policy := config.DefaultPolicy()
			policy.Output.Ledger = tc.mode
			l := startLocal(t, "--policy", writeJSON(t, policy))
			execute(t, l, script(secret))
			var started *ledger.Started
			eventually(t, "the command is in the ledger", func() bool {
				text, err := os.ReadFile(l.ledger)
				if err != nil {
					t.Fatal(err)
				}
				if tc.mode == config.LedgerDigest && strings.Contains(string(text), "secret") {
					t.Fatalf("the ledger shows the command: %s", text)
				}
				for _, record := range records(t, string(text)) {
					if record.Started != nil {
						started = record.Started
					}
				}
				return started != nil
			})
			if started.Command != tc.want || !strings.HasPrefix(started.Digest, "sha256:") || started.Program == "" {
				t.Errorf("the record is %+v, want command %q, a digest and a program", started, tc.want)
			}
		})
	}
}

func writeJSON(t *testing.T, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "value.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLocalSocketCare(t *testing.T) {
	l := startLocal(t)
	info, err := os.Stat(l.socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v, %v, want 0600", info.Mode(), err)
	}
	code, _, stderr := runSelf(t, "serve", "--local", "--workspace", l.workspace, "--socket", l.socket)
	if code != 1 || !strings.Contains(stderr, "another agentd serves there") {
		t.Errorf("a second agentd on the socket: code %d, %q", code, stderr)
	}
	// One that was killed leaves its socket behind; the next takes it over.
	if err := l.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-l.done
	next := startDaemon(t, self(t.Context(), "serve", "--local", "--workspace", l.workspace, "--socket", l.socket))
	if output, _ := execute(t, socketClient(t, l.socket), script("echo again")); output != "again\n" {
		t.Errorf("on the socket taken over came %q; agentd said %s", output, next.stderr)
	}
}

func TestServeRefusesToStart(t *testing.T) {
	workspace := t.TempDir()
	open := t.TempDir() // mode 0755
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	beside := filepath.Join(t.TempDir(), "private", "workspace")
	if err := os.MkdirAll(beside, 0o700); err != nil {
		t.Fatal(err)
	}
	file := writeJSON(t, map[string]int{"sandbox": 1})
	notEnforceable := config.DefaultPolicy()
	notEnforceable.Sandbox.MinLandlockABI = 11
	cases := map[string]struct {
		args []string
		code int
		want string
	}{
		"Nothing":        {nil, exitUsage, "--workspace"},
		"NoSession":      {[]string{"--workspace", "/w"}, exitUsage, "--namespace"},
		"Unknown":        {[]string{"--wrokspace", "/w"}, exitUsage, "wrokspace"},
		"NoSocket":       {[]string{"--local", "--workspace", workspace}, exitUsage, "--socket"},
		"TwoSockets":     {[]string{"--local", "--workspace", workspace, "--stdio", "--socket", "/x"}, exitUsage, "--stdio"},
		"LocalAndSigned": {[]string{"--local", "--workspace", workspace, "--stdio", "--session", "x"}, exitUsage, "--session"},
		"Grace":          {[]string{"--local", "--workspace", workspace, "--stdio", "--stop-grace", "1h"}, exitUsage, "1h0m0s"},
		"ShellLogin":     {[]string{"--local", "--workspace", workspace, "--stdio", "--shell-login", "Maybe"}, exitUsage, "Maybe"},
		"Persistence":    {[]string{"--local", "--workspace", workspace, "--stdio", "--shell-persistence", "All"}, exitUsage, "All"},
		"RelativeShell":  {[]string{"--local", "--workspace", workspace, "--stdio", "--shell", "bash"}, exitUsage, "bash"},
		"SignedShell":    {[]string{"--workspace", workspace, "--namespace", "n", "--session", "s", "--session-uid", "u", "--verify-key", "x", "--shell-login", "Forbidden"}, exitUsage, "--shell-login"},
		"NoWorkspace":    {[]string{"--local", "--workspace", workspace + "/no", "--stdio"}, exitFailed, workspace + "/no"},
		"PolicyForm":     {[]string{"--local", "--workspace", workspace, "--stdio", "--policy", file}, exitFailed, file},
		"NoPolicy":       {[]string{"--local", "--workspace", workspace, "--stdio", "--policy", "/no/such"}, exitFailed, "/no/such"},
		"NotEnforceable": {[]string{"--local", "--workspace", workspace, "--stdio", "--policy", writeJSON(t, notEnforceable)}, exitFailed, "minLandlockABI"},
		"OpenFolder":     {[]string{"--local", "--workspace", workspace, "--socket", open + "/s"}, exitFailed, "0755"},
		"SocketBeside":   {[]string{"--local", "--workspace", beside, "--socket", filepath.Dir(beside) + "/s"}, exitFailed, "--socket \"" + filepath.Dir(beside) + "/s\": its folder"},
		"SocketInside":   {[]string{"--local", "--workspace", filepath.Dir(beside), "--socket", filepath.Dir(beside) + "/s"}, exitFailed, "holds the --workspace"},
		"NotFirst": {[]string{
			"--workspace", workspace, "--namespace", "n", "--session", "s", "--session-uid", "u",
			"--verify-key", "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=",
		}, exitFailed, "process id"},
		"Key": {[]string{
			"--workspace", workspace, "--namespace", "n", "--session", "s", "--session-uid", "u", "--verify-key", "AAAA",
		}, exitUsage, "--verify-key"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := runSelf(t, append([]string{"serve"}, tc.args...)...)
			if code != tc.code || !strings.Contains(stderr, tc.want) || strings.Count(stderr, "agentd:") != 1 {
				t.Errorf("code %d and %q, want %d and one message with %q", code, stderr, tc.code, tc.want)
			}
		})
	}
}
