package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"execsession.dev/agentd/wire"
)

// lasting gives a command longer than the machine may be slow.
func lasting(c *wire.Command) *wire.Command {
	c.Timeout = durationpb.New(patience)
	return c
}

func TestLocalRunKeepsStreamsApart(t *testing.T) {
	l := startLocal(t)
	got, err := l.Run(t.Context(), &wire.RunRequest{
		Command:     lasting(script("head -c 3000 /dev/zero; head -c 2000 /dev/zero >&2; exit 3")),
		StreamBytes: new(int64(1000)), AggregateBytes: new(int64(900)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.GetStdout()) != 1000 || len(got.GetStderr()) != 1000 || got.GetStdoutBytes() != 3000 || got.GetStderrBytes() != 2000 {
		t.Errorf("%d of %d and %d of %d bytes", len(got.GetStdout()), got.GetStdoutBytes(), len(got.GetStderr()), got.GetStderrBytes())
	}
	if len(got.GetAggregate()) != 900 || got.GetExit().GetExitCode() != 3 || got.GetWallTimeSeconds() <= 0 {
		t.Errorf("the aggregate has %d bytes, and the rest is %v, %v", len(got.GetAggregate()), got.GetExit(), got.GetWallTimeSeconds())
	}
	if got, err = l.Run(t.Context(), &wire.RunRequest{Command: lasting(script("head -c 2000000 /dev/zero"))}); err != nil || len(got.GetStdout()) != 1<<20 || got.GetStdoutBytes() != 2_000_000 {
		t.Errorf("without a size %d bytes are kept, %v", len(got.GetStdout()), err)
	}
	if len(got.GetAggregate()) != 0 {
		t.Error("nobody asked for an aggregate")
	}
}

func TestLocalRunEnds(t *testing.T) {
	l := startLocal(t)
	command := script("echo begun; sleep 600 & sleep 600")
	command.Timeout = durationpb.New(time.Second)
	got, err := l.Run(t.Context(), &wire.RunRequest{Command: command})
	if err != nil || got.GetExit().GetExitCode() != 124 || got.GetExit().GetReason() != wire.ExitReason_EXIT_REASON_TIMED_OUT || string(got.GetStdout()) != "begun\n" {
		t.Errorf("a timeout gave %v, %v", got, err)
	}
	// Ten seconds are an agent's, and a person has an hour; no_timeout has no end at all.
	for _, r := range []*wire.RunRequest{{UserShell: true}, {NoTimeout: true}} {
		r.Command = script("sleep 11; echo late")
		if got, err := l.Run(t.Context(), r); err != nil || string(got.GetStdout()) != "late\n" {
			t.Errorf("%v gave %v, %v", r, got, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, cancel)
	if _, err := l.Run(ctx, &wire.RunRequest{Command: script("sleep 600"), NoTimeout: true}); status.Code(err) != codes.Canceled {
		t.Errorf("a call that was given up gave %v", err)
	}
	eventually(t, "the command ends with its call", func() bool { return len(running(t, l)) == 0 })
}

// running are the commands that run, or of which something is left.
func running(t *testing.T, c wire.AgentClient) []*wire.Process {
	t.Helper()
	list, err := c.ListProcesses(t.Context(), &wire.ListProcessesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var found []*wire.Process
	for _, p := range list.GetProcesses() {
		if p.GetExit() == nil || p.GetDescendants() > 0 {
			found = append(found, p)
		}
	}
	return found
}

func TestLocalOneShot(t *testing.T) {
	l := startLocal(t)
	call := func(ctx context.Context, c *wire.Command) (*wire.ToolResult, error) {
		return l.ExecCommand(ctx, &wire.ExecCommandRequest{Command: c, OneShot: true})
	}
	if got, err := call(t.Context(), lasting(script("echo hi; exit 3"))); err != nil || got.GetOutput() != "hi\n" || got.GetExitCode() != 3 || got.SessionId != nil {
		t.Errorf("%v, %v", got, err)
	}
	command := script("echo begun; setsid sleep 600 & sleep 600")
	command.Timeout = durationpb.New(time.Second)
	if got, err := call(t.Context(), command); err != nil || got.GetOutput() != "begun\n" || got.GetExitCode() != 124 || got.SessionId != nil {
		t.Errorf("a timeout gave %v, %v", got, err)
	}
	if left := running(t, l); len(left) != 0 {
		t.Errorf("after a timeout %v is left", left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, cancel)
	if _, err := call(ctx, lasting(script("sleep 600"))); status.Code(err) != codes.Canceled {
		t.Errorf("a call that was given up gave %v", err)
	}
	eventually(t, "the command ends with its call", func() bool { return len(running(t, l)) == 0 })
}

// What a request says that its call can not do is an error that names the field.
func TestLocalCallErrors(t *testing.T) {
	l := startLocal(t)
	execute := func(r *wire.ExecCommandRequest) error {
		_, err := l.ExecCommand(t.Context(), r)
		return err
	}
	run := func(r *wire.RunRequest) error {
		if r.Command == nil {
			r.Command = script("true")
		}
		_, err := l.Run(t.Context(), r)
		return err
	}
	attach := func(requests ...*wire.AttachRequest) error {
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
	tty, open, cat := script("true"), script("true"), script("cat; sleep 600")
	tty.Tty, open.Stdin, cat.Stdin = true, wire.StdinMode_STDIN_MODE_OPEN, wire.StdinMode_STDIN_MODE_OPEN
	start := &wire.AttachRequest{Message: &wire.AttachRequest_Start{Start: &wire.StartRequest{Command: cat}}, InputId: "me"}
	unnamed := &wire.AttachRequest{Message: start.GetMessage()}
	long := &wire.AttachRequest{Message: start.GetMessage(), InputId: strings.Repeat("x", 65)}
	input := func(offset uint64, data string, end bool) *wire.AttachRequest {
		return &wire.AttachRequest{Message: &wire.AttachRequest_Input{Input: &wire.Input{Offset: offset, Data: []byte(data), End: end}}}
	}
	cases := map[string]struct {
		err    error
		reason string
	}{
		"OneShotYield":   {execute(&wire.ExecCommandRequest{Command: script("true"), OneShot: true, YieldTimeMs: new(int64(1))}), ":yield_time_ms"},
		"OneShotTTY":     {execute(&wire.ExecCommandRequest{Command: tty, OneShot: true}), ":tty"},
		"OneShotOpen":    {execute(&wire.ExecCommandRequest{Command: open, OneShot: true}), ":stdin"},
		"RunTTY":         {run(&wire.RunRequest{Command: tty}), ":tty"},
		"RunOpen":        {run(&wire.RunRequest{Command: open}), ":stdin"},
		"RunTooMuch":     {run(&wire.RunRequest{StreamBytes: new(int64(5 << 20))}), ":stream_bytes"},
		"RunNothing":     {run(&wire.RunRequest{StreamBytes: new(int64(0))}), ":stream_bytes"},
		"RunAggregate":   {run(&wire.RunRequest{AggregateBytes: new(int64(-1))}), ":aggregate_bytes"},
		"RunEnvironment": {run(&wire.RunRequest{EnvironmentId: "other"}), ":environment_id"},
		"RunEscalated":   {run(&wire.RunRequest{SandboxPermissions: "require_escalated"}), wire.ReasonPermissionDenied},
		"RunJustified":   {run(&wire.RunRequest{Justification: "because"}), ":justification"},
		"InputUnnamed":   {attach(unnamed, input(0, "x", false)), ":input"},
		"InputHole":      {attach(start, input(0, "x", false), input(2, "z", false)), ":input.offset"},
		"InputAfterEnd":  {attach(start, input(0, "x", true), input(1, "y", false)), ":input.data"},
		"InputIDTooLong": {attach(long), ":input_id"},
		"WaitAndDoNot":   {attach(&wire.AttachRequest{Message: &wire.AttachRequest_Open{Open: &wire.AttachOpen{NoFollow: true, UntilClosed: true}}}), ":open.until_closed"},
		"StopAllNegative": {func() error {
			_, err := l.StopAll(t.Context(), &wire.StopAllRequest{Grace: durationpb.New(-1)})
			return err
		}(), ":grace"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if reasonOf(tc.err) != tc.reason {
				t.Errorf("got %v with %q, want %q", tc.err, reasonOf(tc.err), tc.reason)
			}
		})
	}
}

// The five ways to end something end that and nothing else.
func TestLocalEndings(t *testing.T) {
	l := startLocal(t)
	begin := func(text string) int32 {
		t.Helper()
		got, err := l.ExecCommand(t.Context(), &wire.ExecCommandRequest{Command: script(text), YieldTimeMs: new(int64(250))})
		if err != nil || got.SessionId == nil {
			t.Fatalf("%v, %v", got, err)
		}
		return got.GetSessionId()
	}
	one, two := begin("sleep 600"), begin("setsid sleep 600 & sleep 600")

	// One wait ends with its call.
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	if _, err := l.WriteStdin(ctx, &wire.WriteStdinRequest{SessionId: one, YieldTimeMs: new(int64(300_000))}); status.Code(err) != codes.Canceled {
		t.Errorf("a wait that was given up gave %v", err)
	}
	// The agent learns a moment later that it was, and counts it until then.
	eventually(t, "nobody waits", func() bool {
		got, err := l.Interrupt(t.Context(), &wire.InterruptRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return got.GetWaits() == 0
	})
	// A turn's waits end together, and say so.
	var waits sync.WaitGroup
	for _, id := range []int32{one, two} {
		waits.Go(func() {
			got, err := l.WriteStdin(t.Context(), &wire.WriteStdinRequest{SessionId: id, YieldTimeMs: new(int64(300_000))})
			if err != nil || got.SessionId == nil || !strings.Contains(strings.Join(got.GetNotices(), " "), "interrupted") {
				t.Errorf("an interrupted wait gave %v, %v", got, err)
			}
		})
	}
	ended := int32(0)
	eventually(t, "both waits are interrupted", func() bool {
		got, err := l.Interrupt(t.Context(), &wire.InterruptRequest{})
		if err != nil {
			t.Fatal(err)
		}
		ended += got.GetWaits()
		return ended >= 2
	})
	waits.Wait()
	if n := len(running(t, l)); n != 2 {
		t.Errorf("%d commands run after waits were ended, want both", n)
	}
	// One command.
	if got, err := l.Stop(t.Context(), &wire.StopRequest{ProcessId: one}); err != nil || !got.GetWasRunning() {
		t.Errorf("stopping one gave %v, %v", got, err)
	}
	if left := running(t, l); len(left) != 1 || left[0].GetId() != two {
		t.Errorf("after one was stopped there is %v", left)
	}
	// All of them, with what ended ones left behind.
	if _, code := execute(t, l, script("sleep 600 >/dev/null 2>&1 &")); code != 0 {
		t.Fatal("the command with a survivor failed")
	}
	stopped, err := l.StopAll(t.Context(), &wire.StopAllRequest{Grace: durationpb.New(100 * time.Millisecond)})
	if err != nil || len(stopped.GetProcesses()) != 2 {
		t.Errorf("stopping all gave %v, %v", stopped, err)
	}
	if left := running(t, l); len(left) != 0 {
		t.Errorf("after all were stopped there is %v", left)
	}
	// The agent, which answers once nothing runs any more.
	stream := attachStart(t, l, script("sleep 600"))
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	got, err := l.Shutdown(t.Context(), &wire.ShutdownRequest{})
	if err != nil || got.GetRunningProcesses() != 1 {
		t.Errorf("ending the agent gave %v, %v", got, err)
	}
	if last := receive(stream); last.exit.GetReason() != wire.ExitReason_EXIT_REASON_ENGINE_STOPPED {
		t.Errorf("the last command's end is %v, %v", last.exit, last.err)
	}
	if !waitDone(l.done) || l.code != 0 {
		t.Errorf("agentd ended with %d", l.code)
	}
	if _, err := os.Stat(l.socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// The ledger tells each start and each end once, however a command ends and whoever waits for it.
func TestLocalLedgerTellsEachStartAndEndOnce(t *testing.T) {
	l := startLocal(t)
	execute(t, l, script("true"))
	background, err := l.ExecCommand(t.Context(), &wire.ExecCommandRequest{Command: script("sleep 1"), YieldTimeMs: new(int64(250))})
	if err != nil || background.SessionId == nil {
		t.Fatalf("%v, %v", background, err)
	}
	fed := script("cat")
	fed.Tty = true
	dies, err := l.ExecCommand(t.Context(), &wire.ExecCommandRequest{Command: fed, YieldTimeMs: new(int64(250))})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := l.WriteStdin(t.Context(), &wire.WriteStdinRequest{SessionId: dies.GetSessionId(), Chars: "\x04", YieldTimeMs: new(int64(30_000))}); err != nil || got.ExitCode == nil {
		t.Errorf("the end of its input gave %v, %v", got, err)
	}
	stopped, err := l.Start(t.Context(), &wire.StartRequest{Command: script("sleep 600")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Stop(t.Context(), &wire.StopRequest{ProcessId: stopped.GetId()}); err != nil {
		t.Fatal(err)
	}
	starts, ends := map[int32]int{}, map[int32]int{}
	eventually(t, "every end is in the ledger", func() bool {
		text, err := os.ReadFile(l.ledger)
		if err != nil {
			t.Fatal(err)
		}
		clear(starts)
		clear(ends)
		for _, record := range records(t, string(text)) {
			if record.Started != nil {
				starts[record.Started.ID]++
			}
			if record.Exited != nil {
				ends[record.Exited.ID]++
			}
		}
		return len(ends) == 4
	})
	for id, n := range starts {
		if n != 1 || ends[id] != 1 {
			t.Errorf("command %d started %d times and ended %d times", id, n, ends[id])
		}
	}
	if len(starts) != 4 {
		t.Errorf("%d commands started, want 4", len(starts))
	}
}

// In a pod the session's object says how long the agent lives.
func TestPodRefusesShutdown(t *testing.T) {
	_, c := startedPod(t, io.Discard)
	if _, err := c.Shutdown(t.Context(), &wire.ShutdownRequest{}); status.Code(err) != codes.PermissionDenied || reasonOf(err) != wire.ReasonPermissionDenied {
		t.Errorf("Shutdown gave %v", err)
	}
	if output, code := execute(t, c, script("echo alive")); code != 0 || output != "alive\n" {
		t.Errorf("afterwards a command gave %q and %d", output, code)
	}
}

func attachOpen(t *testing.T, l *local, open *wire.AttachOpen) attached {
	t.Helper()
	stream, err := l.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, stream, &wire.AttachRequest{Message: &wire.AttachRequest_Open{Open: open}})
	return receive(stream)
}

// What a descendant writes after its command's end is had by one who waits for it, and afterwards by anybody.
func TestLocalAttachUntilClosed(t *testing.T) {
	l := startLocal(t)
	process, err := l.Start(t.Context(), &wire.StartRequest{Command: script("(while [ ! -e go ]; do sleep 0.05; done; echo late) & echo early; exit 6")})
	if err != nil {
		t.Fatal(err)
	}
	id := process.GetId()
	if got := attachOpen(t, l, &wire.AttachOpen{ProcessId: id}); string(got.output) != "early\n" || got.exit.GetExitCode() != 6 {
		t.Errorf("up to its end the command wrote %q, %v, %v", got.output, got.exit, got.err)
	}
	if left := running(t, l); len(left) != 1 || !left[0].GetOutputOpen() || left[0].GetDescendants() == 0 {
		t.Errorf("the list is %v, want the ended command with its descendant", left)
	}
	time.AfterFunc(300*time.Millisecond, func() { _ = os.WriteFile(filepath.Join(l.workspace, "go"), nil, 0o600) })
	if got := attachOpen(t, l, &wire.AttachOpen{ProcessId: id, UntilClosed: true}); string(got.output) != "early\nlate\n" || got.exit.GetExitCode() != 6 {
		t.Errorf("until nobody could write any more came %q, %v, %v", got.output, got.exit, got.err)
	}
	if got := attachOpen(t, l, &wire.AttachOpen{ProcessId: id, FromOffset: 6, NoFollow: true}); string(got.output) != "late\n" {
		t.Errorf("what is kept is %q", got.output)
	}
}

// Deltas have a bounded size and number, end between characters, and what is left out is counted.
func TestLocalAttachDeltas(t *testing.T) {
	l := startLocal(t)
	cases := map[string]struct {
		reason, script string
		size           int
		most           uint32
		// fewest is how many outputs so many bytes must have, largest as they may be.
		fewest int
	}{
		"Characters": {"none is split", `printf é%.0s $(seq 1 150000)`, 300_000, 10_000, 37},
		"Bounded":    {"after so many the rest is a gap", `printf é%.0s $(seq 1 150000)`, 300_000, 10, 10},
		"NoUTF8":     {"it passes, and not byte by byte", `head -c 100000 /dev/zero | tr '\0' '\377'`, 100_000, 10_000, 13},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			process, err := l.Start(t.Context(), &wire.StartRequest{Command: script(tc.script)})
			if err != nil {
				t.Fatal(err)
			}
			// What is kept at its end is cut the same each time.
			if got := attachOpen(t, l, &wire.AttachOpen{ProcessId: process.GetId(), MaxOutputs: 1}); got.exit == nil {
				t.Fatalf("waiting for the end gave %v", got.err)
			}
			outputs, told, lost := deltas(t, l, &wire.AttachOpen{ProcessId: process.GetId(), Text: true, MaxOutputs: tc.most})
			for _, output := range outputs {
				if name != "NoUTF8" && !utf8.Valid(output) {
					t.Errorf("%s: an output ends %q", tc.reason, output[max(0, len(output)-8):])
				}
			}
			if len(outputs) < tc.fewest || len(outputs) > tc.fewest+1 || told+lost != tc.size || lost > 0 != (tc.fewest == int(tc.most)) {
				t.Errorf("%s: %d outputs told %d bytes and %d are lost, of %d", tc.reason, len(outputs), told, lost, tc.size)
			}
		})
	}
}

// deltas reads outputs to the end, and counts what they told and what gaps told to be lost.
func deltas(t *testing.T, l *local, open *wire.AttachOpen) (outputs [][]byte, told, lost int) {
	t.Helper()
	stream, err := l.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, stream, &wire.AttachRequest{Message: &wire.AttachRequest_Open{Open: open}})
	for {
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if response.GetExit() != nil {
			return outputs, told, lost
		}
		if data := response.GetOutput().GetData(); len(data) > 8192 {
			t.Errorf("an output has %d bytes", len(data))
		} else if len(data) > 0 {
			outputs, told = append(outputs, data), told+len(data)
		}
		lost += int(response.GetGap().GetTo() - response.GetGap().GetFrom())
	}
}
