package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"execsession.dev/agentd/ledger"
	"execsession.dev/agentd/wire"
)

// kill ends agentd as the out-of-memory killer does: it can do nothing about it.
func (d *daemon) kill(t *testing.T) {
	t.Helper()
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-d.done
}

// again starts an agentd over what a killed one left.
func (l *local) again(t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"serve", "--local", "--workspace", l.workspace, "--socket", l.socket, "--ledger", l.ledger, "--stop-grace", "1s"}, args...)
	l.daemon = startDaemon(t, self(t.Context(), args...))
	l.AgentClient = socketClient(t, l.socket)
}

// lives is whether a process runs; whoever adopted it may leave it unreaped.
func lives(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(data), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

// leftToTell starts a command of the tool that ends after its call.
func leftToTell(t *testing.T, c wire.AgentClient, text string) int32 {
	t.Helper()
	result, err := c.ExecCommand(t.Context(), &wire.ExecCommandRequest{Command: script(text), YieldTimeMs: new(int64(250))})
	if err != nil {
		t.Fatal(err)
	}
	if result.SessionId == nil {
		t.Fatalf("%q ended within its call: %v", text, result)
	}
	return result.GetSessionId()
}

func processOf(t *testing.T, c wire.AgentClient, id int32) *wire.Process {
	t.Helper()
	list, err := c.ListProcesses(t.Context(), &wire.ListProcessesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range list.GetProcesses() {
		if process.GetId() == id {
			return process
		}
	}
	t.Fatalf("process %d is not listed: %v", id, list)
	return nil
}

func attachFrom(t *testing.T, c wire.AgentClient, id int32, from uint64) attached {
	t.Helper()
	stream, err := c.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, stream, &wire.AttachRequest{Message: &wire.AttachRequest_Open{Open: &wire.AttachOpen{ProcessId: id, FromOffset: from}}})
	return receive(stream)
}

// exitsOf are the ledger's exit records of an id.
func exitsOf(t *testing.T, path string, id int32) (found []ledger.Exited) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, record := range records(t, string(text)) {
		if record.Exited != nil && record.Exited.ID == id {
			found = append(found, *record.Exited)
		}
	}
	return found
}

// After agentd was killed, every command that it had has a record that says so, wherever somebody asks.
func TestLocalKilled(t *testing.T) {
	l := startLocal(t)
	running := leftToTell(t, l, "echo begun; sleep 1000")
	started, err := l.Start(t.Context(), &wire.StartRequest{Command: script("setsid sleep 1000 & echo $! > pid; sleep 1000")})
	if err != nil {
		t.Fatal(err)
	}
	untold := leftToTell(t, l, "sleep 0.5; echo hello; exit 7")
	result, err := l.ExecCommand(t.Context(), &wire.ExecCommandRequest{Command: script("exit 3"), YieldTimeMs: new(int64(30000))})
	if err != nil || result.GetExitCode() != 3 {
		t.Fatal(result, err)
	}
	var orphan int
	eventually(t, "the commands are where they shall be", func() bool {
		data, _ := os.ReadFile(filepath.Join(l.workspace, "pid"))
		orphan, err = strconv.Atoi(strings.TrimSpace(string(data)))
		return err == nil && processOf(t, l, untold).GetExit() != nil
	})
	before := processOf(t, l, running)
	l.kill(t)
	if !lives(orphan) {
		t.Fatal("the orphan is gone already")
	}

	l.again(t)
	for _, id := range []int32{running, started.GetId()} {
		now := processOf(t, l, id)
		// Its record says that it ended, so nothing of it is left.
		if lives(orphan) {
			t.Error("what the killed agentd left still runs")
		}
		exit := now.GetExit()
		if now.GetState() != wire.ProcessState_PROCESS_STATE_EXITED || exit.GetReason() != wire.ExitReason_EXIT_REASON_ENGINE_STOPPED ||
			exit.GetExitCode() != -1 || exit.GetMessage() != "agentd was killed while the command ran" {
			t.Errorf("process %d is %v", id, now)
		}
	}
	if now := processOf(t, l, running); now.GetCommand() != before.GetCommand() || !proto.Equal(now.GetStartTime(), before.GetStartTime()) || now.GetPid() != before.GetPid() {
		t.Errorf("before it was %v, now %v", before, now)
	}
	// One who has read a part of the output comes back for the rest.
	got := attachFrom(t, l, running, 6)
	if got.exit.GetReason() != wire.ExitReason_EXIT_REASON_ENGINE_STOPPED || !errors.Is(got.err, io.EOF) || len(got.output) > 0 {
		t.Errorf("attaching gave %+v", got)
	}
	ended := processOf(t, l, untold)
	if ended.GetExit().GetExitCode() != 7 || ended.GetOutputBytes() != 6 || ended.GetDroppedBytes() != 6 {
		t.Errorf("what ended before is %v", ended)
	}
	if got := attachFrom(t, l, untold, 2); len(got.gaps) != 1 || got.gaps[0].GetFrom() != 2 || got.gaps[0].GetTo() != 6 || got.exit.GetExitCode() != 7 {
		t.Errorf("attaching gave %+v", got)
	}

	// A poll gives each end once.
	for id, want := range map[int32]*wire.ExitRecord{running: got.exit, untold: ended.GetExit(), started.GetId(): processOf(t, l, started.GetId()).GetExit()} {
		result, err := l.WriteStdin(t.Context(), &wire.WriteStdinRequest{SessionId: id, Chars: "x"})
		if err != nil || !proto.Equal(result.GetExit(), want) || len(result.GetNotices()) != 1 {
			t.Errorf("polling %d gave %v, %v, want %v", id, result, err, want)
		}
		if _, err := l.WriteStdin(t.Context(), &wire.WriteStdinRequest{SessionId: id}); status.Code(err) != codes.NotFound {
			t.Errorf("polling %d again gave %v", id, err)
		}
	}
	eventually(t, "the ledger has the ends", func() bool {
		return len(exitsOf(t, l.ledger, running)) == 1 && len(exitsOf(t, l.ledger, started.GetId())) == 1
	})
	if exit := exitsOf(t, l.ledger, running)[0]; exit.Reason != "EngineStopped" || exit.ExitCode != -1 || exit.Message == "" {
		t.Errorf("the ledger has %+v", exit)
	}

	// Killed once more, at once: what was told stays told, and the records are the same.
	record := processOf(t, l, running).GetExit()
	l.kill(t)
	l.again(t)
	if again := processOf(t, l, running).GetExit(); again.GetReason() != record.GetReason() || again.GetMessage() != record.GetMessage() {
		t.Errorf("the record was %v and is %v", record, again)
	}
	if output, code := execute(t, l, script("echo works")); output != "works\n" || code != 0 {
		t.Errorf("a command gave %q and %d", output, code)
	}
}

// What a killed agentd started and nobody knows of is ended too: it was killed before it could tell its journal.
func TestLocalKilledBeforeItsRecord(t *testing.T) {
	l := startLocal(t)
	leftToTell(t, l, `setsid sh -c 'echo $$ >pid; sleep 1000' & sleep 1000`)
	var orphan int
	eventually(t, "the orphan is there", func() bool {
		data, _ := os.ReadFile(filepath.Join(l.workspace, "pid"))
		orphan, _ = strconv.Atoi(strings.TrimSpace(string(data)))
		return orphan > 0
	})
	l.kill(t)
	if !lives(orphan) {
		t.Fatal("the orphan is gone already")
	}
	journal, err := os.ReadFile(l.socket + ".journal")
	if err != nil {
		t.Fatal(err)
	}
	kept := slices.DeleteFunc(strings.SplitAfter(string(journal), "\n"), func(line string) bool { return strings.Contains(line, `"start":`) })
	if err := os.WriteFile(l.socket+".journal", []byte(strings.Join(kept, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	l.again(t)
	list, err := l.ListProcesses(t.Context(), &wire.ListProcessesRequest{})
	if err != nil || len(list.GetProcesses()) > 0 {
		t.Errorf("listed are %v, %v", list, err)
	}
	if lives(orphan) {
		t.Error("what the killed agentd left still runs")
	}
}

// An agentd that was asked to end tells its successor the records that it wrote.
func TestLocalEndedAndStartedAgain(t *testing.T) {
	l := startLocal(t)
	id := leftToTell(t, l, "sleep 1000")
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-l.done
	l.again(t)
	if exit := processOf(t, l, id).GetExit(); exit.GetReason() != wire.ExitReason_EXIT_REASON_ENGINE_STOPPED || exit.GetSignal() != "SIGTERM" {
		t.Errorf("the record is %v", exit)
	}
}

// What is no journal stops nobody, and is counted where people look.
func TestLocalJournalIsGarbage(t *testing.T) {
	l := startLocal(t)
	id := leftToTell(t, l, "sleep 1000")
	l.kill(t)
	journal, err := os.OpenFile(l.socket+".journal", os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := journal.WriteString("nonsense\n\x00\x01\xff\n{\"v\":1}\n\nhalf a li"); err != nil {
		t.Fatal(err)
	}
	if err := journal.Close(); err != nil {
		t.Fatal(err)
	}
	l.again(t)
	if exit := processOf(t, l, id).GetExit(); exit.GetReason() != wire.ExitReason_EXIT_REASON_ENGINE_STOPPED || !strings.Contains(exit.GetMessage(), "has gaps") {
		t.Errorf("the record is %v", exit)
	}
	// The agent answers before its first status is written.
	eventually(t, "the status tells what was skipped", func() bool {
		text, err := os.ReadFile(l.ledger)
		if err != nil {
			t.Fatal(err)
		}
		last := lastStatus(t, string(text))
		return last.Journal != nil && last.Journal.Skipped == 4 && last.Journal.Problem == ""
	})
}

// On a full disk commands run as ever; what cannot be noted is counted, and noted once there is room.
func TestLocalJournalOnAFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small filesystem")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=256k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	l := &local{workspace: t.TempDir(), socket: filepath.Join(dir, "agentd.sock"), ledger: filepath.Join(t.TempDir(), "ledger")}
	l.again(t, "--spill-bytes", "100000000")
	kept := leftToTell(t, l, "sleep 1000")
	filler := filepath.Join(dir, "filler")
	file, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(file, neverEnds{}); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	// More than the last page of the file takes.
	for i := range 40 {
		if output, code := execute(t, l, script(fmt.Sprintf("echo %d; exit 5", i))); output != fmt.Sprintf("%d\n", i) || code != 5 {
			t.Fatalf("on a full disk a command gave %q and %d", output, code)
		}
	}
	// So it is with output.
	result, err := l.ExecCommand(t.Context(), &wire.ExecCommandRequest{Command: script("head -c 3000000 /dev/zero; exit 5"), YieldTimeMs: new(int64(30000))})
	if err != nil || result.GetExitCode() != 5 {
		t.Errorf("with much output on a full disk: %v, %v", result.GetExit(), err)
	}
	told := func() ledger.Status {
		text, err := os.ReadFile(l.ledger)
		if err != nil {
			t.Fatal(err)
		}
		return lastStatus(t, string(text))
	}
	eventually(t, "the status tells the trouble", func() bool {
		last := told()
		return last.Journal != nil && last.Journal.Lost > 0 && strings.Contains(last.Journal.Problem, "no space left") && last.SpillFailures == 1
	})
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the journal is whole again", func() bool { return told().Journal.Problem == "" })
	late := leftToTell(t, l, "sleep 1000")
	l.kill(t)
	l.again(t)
	for _, id := range []int32{kept, late} {
		if exit := processOf(t, l, id).GetExit(); exit.GetMessage() != "agentd was killed while the command ran" {
			t.Errorf("the record of %d is %v", id, exit)
		}
	}
}

// neverEnds is zeroes.
type neverEnds struct{}

func (neverEnds) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// What leaves memory is read back from the socket's folder, which shows no file of it.
func TestLocalSpill(t *testing.T) {
	l := startLocal(t, "--spill-bytes", "50000000")
	const lines = 1_000_000
	process, err := l.Start(t.Context(), &wire.StartRequest{Command: argv("seq", strconv.Itoa(lines))})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it ended", func() bool { return processOf(t, l, process.GetId()).GetExit() != nil })
	var want strings.Builder
	for i := 1; i <= lines; i++ {
		fmt.Fprintln(&want, i)
	}
	got := attachFrom(t, l, process.GetId(), 0)
	if len(got.gaps) > 0 || string(got.output) != want.String() || processOf(t, l, process.GetId()).GetDroppedBytes() != 0 {
		t.Errorf("%d bytes and gaps %v, want %d", len(got.output), got.gaps, want.Len())
	}
	names, err := filepath.Glob(filepath.Join(filepath.Dir(l.socket), "*"))
	if err != nil || len(names) != 2 {
		t.Errorf("the folder holds %v, %v, want the socket and the journal", names, err)
	}
	if code, _, stderr := runSelf(t, "serve", "--local", "--workspace", l.workspace, "--stdio", "--spill-bytes", "1"); code != exitUsage || !strings.Contains(stderr, "--spill-bytes") {
		t.Errorf("with --stdio: %d, %s", code, stderr)
	}
	if code, _, stderr := runSelf(t, "serve", "--local", "--workspace", l.workspace, "--socket", l.socket, "--spill-bytes", "-1"); code != exitUsage || !strings.Contains(stderr, "--spill-bytes") {
		t.Errorf("with a negative limit: %d, %s", code, stderr)
	}
}

// In a pod the container starts again with the same journal, and nothing of before can be left.
func TestPodKilled(t *testing.T) {
	var stdout buffer
	p, c := startedPod(t, &stdout)
	running := leftToTell(t, c, "sleep 1000")
	ended, err := c.Start(t.Context(), &wire.StartRequest{Command: argv("true")})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it ended", func() bool { return processOf(t, c, ended.GetId()).GetExit() != nil })
	p.kill(t)
	var again buffer
	p.start(t, &again)
	c = p.connect(t)
	exit := processOf(t, c, running).GetExit()
	if exit.GetReason() != wire.ExitReason_EXIT_REASON_ENGINE_STOPPED || !strings.Contains(exit.GetMessage(), "agentd was killed while the command ran; ") {
		t.Errorf("the record is %v", exit)
	}
	if exit := processOf(t, c, ended.GetId()).GetExit(); exit.GetReason() != wire.ExitReason_EXIT_REASON_EXITED || exit.GetExitCode() != 0 {
		t.Errorf("the other record is %v", exit)
	}
	var found *ledger.Exited
	eventually(t, "the ledger tells the end", func() bool {
		for _, record := range records(t, again.String()) {
			if record.Exited != nil && record.Exited.ID == running {
				found = record.Exited
			}
		}
		return found != nil
	})
	if found.Reason != "EngineStopped" || lastStatus(t, again.String()).Processes.Exited != 0 {
		t.Errorf("the ledger tells %+v", found)
	}
	if output, code := execute(t, c, script("cat "+podRoot+"/journal/processes 2>&1")); code == 0 {
		t.Errorf("a command reads the journal: %s", output)
	}
}
