package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"execsession.dev/agentd/wire"
	"execsession.dev/sandbox"
)

// One command takes all that there is of something. In each of these tests agentd, in a pod of its own with real limits, has to
// answer all the while, and the command has to end with a record that says why.

const (
	// podMemory is the folder of the pod's memory group, which it sees as its own.
	podMemory = "EXECSESSION_TEST_POD_MEMORY"
	// podSmall lists folders that get a file system of smallBytes each.
	podSmall   = "EXECSESSION_TEST_POD_SMALL"
	smallBytes = 4 << 20
)

// limitPod runs in becomePod.
func limitPod() error {
	var errs []error
	if group := os.Getenv(podMemory); group != "" {
		seen := "/sys/fs/cgroup"
		if _, err := os.Stat(seen + "/memory"); err == nil {
			seen += "/memory"
		}
		errs = append(errs, unix.Mount(group, seen, "", unix.MS_BIND, ""))
	}
	for folder := range strings.FieldsSeq(os.Getenv(podSmall)) {
		errs = append(errs, unix.Mount("small", folder, "tmpfs", 0, fmt.Sprintf("size=%d,mode=1777", smallBytes)))
	}
	return errors.Join(errs...)
}

// hog is a command that takes as much as it gets of one thing, says how far it came, and keeps it.
func hog(args []string) int {
	switch args[0] {
	case "files":
		fmt.Println(openFiles(atoi(args[1])))
	case "sockets":
		began := time.Now()
		for range atoi(args[1]) {
			if _, _, errno := unix.RawSyscall(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0); errno != unix.EACCES {
				fmt.Println("a call ended otherwise:", errno)
				return 1
			}
		}
		fmt.Println("all refused in", time.Since(began))
		return 0
	case "connections":
		for range atoi(args[2]) {
			go connectOn(args[1])
		}
	case "tasks":
		forkOn()
	case "memory":
		for kept := [][]byte{}; ; kept = append(kept, make([]byte, 16<<20)) {
			for _, block := range kept {
				for i := 0; i < len(block); i += 4096 {
					block[i]++
				}
			}
		}
	}
	_ = unix.Pause() // until it is killed
	return 1
}

// forkOn makes processes that make processes, each in a session of its own, and tries again for ever. None of them is a
// Go program any more.
func forkOn() {
	for {
		child, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if child == 0 && errno == 0 {
			_, _, _ = unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
		}
	}
}

func openFiles(most int) (opened int, last error) {
	for opened < most {
		if _, last = unix.Open(os.DevNull, unix.O_RDONLY, 0); last != nil {
			return opened, last
		}
		opened++
	}
	return opened, nil
}

func atoi(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

// hogging is the command line of hog in a pod.
func hogging(args ...string) *wire.Command {
	command := argv(append([]string{podRoot + "/bin/agentd"}, args...)...)
	command.Env = map[string]string{actAsVariable: actAsHog, "GORACE": "atexit_sleep_ms=0"}
	return command
}

// newGroup makes a control group with limits, the names of which differ between the two hierarchies.
func newGroup(t *testing.T, controller string, older, unified map[string]string) string {
	t.Helper()
	dir, values := filepath.Join("/sys/fs/cgroup", controller), older
	if _, err := os.Stat(dir); err != nil {
		dir, values = "/sys/fs/cgroup", unified
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
			t.Skipf("no group for %s can be made here: %v", controller, err)
		}
	}
	group := filepath.Join(dir, fmt.Sprintf("execsession-test-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-")))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("no group for %s can be made here: %v", controller, err)
	}
	// The pod is gone by then: it was started later.
	t.Cleanup(func() { eventually(t, "the group is empty", func() bool { return os.Remove(group) == nil }) })
	for name, value := range values {
		optional := strings.HasPrefix(name, "?")
		if err := os.WriteFile(filepath.Join(group, strings.TrimPrefix(name, "?")), []byte(value), 0); err != nil && !optional {
			t.Skipf("%s of a group cannot be set here: %v", name, err)
		}
	}
	return group
}

// enterGroup puts agentd, which has started nothing yet, into a group.
func (p *pod) enterGroup(t *testing.T, group string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(p.cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
}

func limitedPod(t *testing.T, stdout *buffer, group string, environment ...string) (*pod, wire.AgentClient) {
	t.Helper()
	p := newPod(t)
	p.environment = environment
	profile, session := p.sign(t, podProfile(), 5, nil)
	p.write(t, profile, session)
	p.start(t, stdout)
	c := p.connect(t)
	if group != "" {
		p.enterGroup(t, group)
	}
	return p, c
}

// answers asks the API over and over until stop is closed, each time within the patience. It returns how often.
func answers(t *testing.T, c wire.AgentClient, boot string, stop <-chan struct{}) (asked int) {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		got, err := c.GetStatus(ctx, &wire.GetStatusRequest{})
		if err == nil {
			_, err = c.ListProcesses(ctx, &wire.ListProcessesRequest{})
		}
		cancel()
		if err != nil {
			t.Fatalf("agentd does not answer: %v", err)
		}
		if got.GetBootId() != boot {
			t.Fatal("agentd was started anew")
		}
		asked++
		select {
		case <-stop:
			return asked
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func bootOf(t *testing.T, c wire.AgentClient) string {
	t.Helper()
	got, err := c.GetStatus(t.Context(), &wire.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return got.GetBootId()
}

type wireStream = grpc.BidiStreamingClient[wire.AttachRequest, wire.AttachResponse]

// ended closes its channel when a command that was attached to has ended.
func ended(stream wireStream) (<-chan struct{}, *attached) {
	done, got := make(chan struct{}), new(attached)
	go func() { // ends with the stream
		defer close(done)
		*got = receive(stream)
	}()
	return done, got
}

func wantExit(t *testing.T, got *attached, reason wire.ExitReason, signal string) {
	t.Helper()
	if got.exit.GetReason() != reason || got.exit.GetSignal() != signal {
		t.Errorf("the record is %v (%v), want %v %s; output %q", got.exit, got.err, reason, signal, tail(got.output))
	}
}

func tail(output []byte) []byte { return output[max(0, len(output)-500):] }

// TestExhaustTasks: a fork bomb takes every task of the pod, and is ended by its timeout and by a stop.
func TestExhaustTasks(t *testing.T) {
	const tasks = "150"
	bombs := map[string]string{
		// It makes two of itself, each of which does, and none waits.
		"doubling": `f() { f & f & }; f & exec sleep 1000`,
		// It takes what becomes free, out of every group and session.
		"leaving": `f() { while :; do setsid sh -c 'sleep 1000 & sleep 1000' & done 2>/dev/null; }; f & f & f & exec sleep 1000`,
		// It never gives up.
		"insisting": `exec ` + podRoot + `/bin/agentd tasks`,
	}
	for name, bomb := range bombs {
		t.Run(name, func(t *testing.T) {
			group := newGroup(t, "pids", map[string]string{"pids.max": tasks}, map[string]string{"pids.max": tasks})
			p, c := limitedPod(t, &buffer{}, group)
			boot := bootOf(t, c)
			for _, reason := range []wire.ExitReason{wire.ExitReason_EXIT_REASON_TIMED_OUT, wire.ExitReason_EXIT_REASON_STOPPED} {
				command := argv("sh", "-c", bomb)
				command.Env = hogging().GetEnv()
				if reason == wire.ExitReason_EXIT_REASON_TIMED_OUT {
					command.Timeout = durationpb.New(3 * time.Second)
				}
				before := limitEvents(group)
				done, got := ended(attachStart(t, c, command))
				refused := startsRefused(t, c, group, before)
				if reason == wire.ExitReason_EXIT_REASON_STOPPED {
					for _, process := range running(t, c) {
						if _, err := c.Stop(t.Context(), &wire.StopRequest{ProcessId: process.GetId(), Grace: durationpb.New(0)}); err != nil {
							t.Fatal(err)
						}
					}
				}
				asked := answers(t, c, boot, done)
				t.Logf("%d of 100 starts were refused at the limit, then %d questions answered", refused, asked)
				if got.exit.GetReason() != reason {
					t.Errorf("the record is %v, want %v", got.exit, reason)
				}
				eventually(t, "nothing of the bomb is left", func() bool { return len(inPod(t, p)) == 0 })
				if output, code := execute(t, c, argv("echo", "alive")); code != 0 || output != "alive\n" {
					t.Errorf("afterwards a command gives %d, %q", code, output)
				}
			}
		})
	}
}

// startsRefused starts what cannot be started, once the limit was reached.
func startsRefused(t *testing.T, c wire.AgentClient, group, before string) (refused int) {
	t.Helper()
	eventually(t, "the limit is reached", func() bool { return limitEvents(group) != before })
	for range 100 {
		_, err := c.Start(t.Context(), &wire.StartRequest{Command: argv("true")})
		if err != nil && reasonOf(err) != wire.ReasonStartFailed {
			t.Fatalf("a start at the limit: %v", err)
		}
		if err != nil {
			refused++
		}
	}
	return refused
}

// limitEvents tells how often a group was at its limit of tasks.
func limitEvents(group string) string {
	events, _ := os.ReadFile(filepath.Join(group, "pids.events"))
	return string(events)
}

// inPod are the processes of a pod's namespace beside agentd and `agentd connect`, which nothing but the pod has.
func inPod(t *testing.T, p *pod) (found []string) {
	t.Helper()
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, entry := range entries {
		space, err := os.Readlink(entry + "/ns/pid")
		command, _ := os.ReadFile(entry + "/cmdline")
		if err == nil && space == own && len(command) > 0 && !strings.Contains(string(command), "agentd\x00serve") && !strings.HasSuffix(string(command), "\x00connect\x00") {
			found = append(found, entry+" "+strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	return found
}

// TestExhaustMemory: the kernel ends the command that took all memory, and not agentd.
func TestExhaustMemory(t *testing.T) {
	limit := strconv.Itoa(400 << 20)
	group := newGroup(t, "memory",
		map[string]string{"memory.limit_in_bytes": limit, "?memory.memsw.limit_in_bytes": limit},
		map[string]string{"memory.max": limit, "?memory.swap.max": "0"})
	_, c := limitedPod(t, &buffer{}, group, podMemory+"="+group)
	boot := bootOf(t, c)
	for name, command := range map[string]*wire.Command{
		"itself": hogging("memory"),
		"shell":  argv("sh", "-c", "exec tail /dev/zero"),
	} {
		t.Run(name, func(t *testing.T) {
			done, got := ended(attachStart(t, c, command))
			t.Logf("%d questions answered", answers(t, c, boot, done))
			wantExit(t, got, wire.ExitReason_EXIT_REASON_OUT_OF_MEMORY, "SIGKILL")
		})
	}
	// A child of the command is killed: the command tells its own end, and the record what happened.
	child := hogging("memory")
	child = &wire.Command{Program: &wire.Command_Script{Script: podRoot + "/bin/agentd memory; exit $?"}, Login: new(false), Env: child.GetEnv()}
	done, got := ended(attachStart(t, c, child))
	answers(t, c, boot, done)
	wantExit(t, got, wire.ExitReason_EXIT_REASON_EXITED, "")
	if got.exit.GetExitCode() != 137 || !strings.Contains(got.exit.GetMessage(), "out of memory") {
		t.Errorf("the record is %v", got.exit)
	}
}

// TestExhaustDisk: full disks are the command's trouble. agentd's own is full as well, and is told.
func TestExhaustDisk(t *testing.T) {
	var stdout buffer
	p, c := limitedPod(t, &stdout, "", podSmall+"="+strings.Join([]string{podRoot + "/workspace", podRoot + "/home", podRoot + "/journal", podTempDir}, " "))
	boot := bootOf(t, c)
	for _, folder := range []string{".", "$HOME", "$TMPDIR"} {
		done, got := ended(attachStart(t, c, script(`LC_ALL=C dd if=/dev/zero of="`+folder+`/large" bs=64k; exit $?`)))
		answers(t, c, boot, done)
		wantExit(t, got, wire.ExitReason_EXIT_REASON_EXITED, "")
		if got.exit.GetExitCode() != 1 || !strings.Contains(string(got.output), "No space left on device") {
			t.Errorf("%s: %v, %q", folder, got.exit, got.output)
		}
	}
	if output, err := p.enter(t, podUser, "dd", "if=/dev/zero", "of="+podRoot+"/journal/large", "bs=4k").CombinedOutput(); err == nil || !strings.Contains(string(output), "large") {
		t.Fatalf("filling the journal's disk: %v, %s", err, output)
	}
	for range 200 {
		if output, code := execute(t, c, script("echo alive")); code != 0 || output != "alive\n" {
			t.Fatalf("with full disks a command gives %d, %q", code, output)
		}
	}
	eventually(t, "the trouble of the journal is told", func() bool {
		last := lastStatus(t, stdout.String())
		return last.Journal != nil && last.Journal.Problem != ""
	})
	if output, code := execute(t, c, script("rm large && echo x >file && cat file")); code != 0 || output != "x\n" {
		t.Errorf("with room again a command gives %d, %q", code, output)
	}
}

// TestExhaustDescriptors: 100,000 open files of one command, or as many as this machine lets a process have, are nobody else's.
func TestExhaustDescriptors(t *testing.T) {
	files, spare := 100_000, 100
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Max < uint64(files+spare) {
		files = int(limit.Max) - spare
		t.Logf("a process may have %d files here, so it opens only %d", limit.Max, files)
	}
	_, c := limitedPod(t, &buffer{}, "")
	boot := bootOf(t, c)
	stream := attachStart(t, c, hogging("files", strconv.Itoa(files)))
	id, said := int32(0), ""
	for !strings.Contains(said, "\n") {
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if process := response.GetProcess(); process != nil {
			id = process.GetId()
		}
		said += string(response.GetOutput().GetData())
	}
	if said != fmt.Sprintf("%d <nil>\n", files) {
		t.Fatalf("it opened %q", said)
	}
	for range 20 {
		if output, code := execute(t, c, script("exec 9</dev/null; echo alive")); code != 0 || output != "alive\n" {
			t.Fatalf("meanwhile a command gives %d, %q", code, output)
		}
	}
	done, got := ended(stream)
	if _, err := c.Stop(t.Context(), &wire.StopRequest{ProcessId: id}); err != nil {
		t.Fatal(err)
	}
	answers(t, c, boot, done)
	if got.exit.GetReason() != wire.ExitReason_EXIT_REASON_STOPPED {
		t.Errorf("the record is %v", got.exit)
	}
}

// TestExhaustDenials: very many refused calls are a handful of records and a right sum.
func TestExhaustDenials(t *testing.T) {
	if !sandbox.Probe().UserNotify {
		t.Skip("no supervisor can be had here")
	}
	// A million take more than a minute on a busy machine: ask for them by the variable.
	calls := 200_000
	if raceDetector {
		calls = 20_000
	}
	if given := os.Getenv("EXHAUST_CALLS"); given != "" {
		calls = atoi(given)
	}
	var stdout buffer
	_, c := limitedPod(t, &stdout, "")
	boot := bootOf(t, c)
	done, got := ended(attachStart(t, c, hogging("sockets", strconv.Itoa(calls))))
	others := 0
	for running := true; running; others++ {
		if output, code := execute(t, c, argv("echo", "alive")); code != 0 || output != "alive\n" {
			t.Fatalf("meanwhile a command gives %d, %q", code, output)
		}
		select {
		case <-done:
			running = false
		default:
		}
	}
	t.Logf("%s; %d other commands and %d questions meanwhile", strings.TrimSpace(string(got.output)), others, answers(t, c, boot, done))
	wantExit(t, got, wire.ExitReason_EXIT_REASON_EXITED, "")
	if got.exit.GetExitCode() != 0 {
		t.Errorf("the command says %q", got.output)
	}
	events, sum := 0, uint64(0)
	eventually(t, "every call is counted", func() bool {
		events, sum = 0, 0
		for _, record := range records(t, stdout.String()) {
			if record.Denied != nil && record.Denied.Rule == "socket" {
				events++
				sum += record.Denied.Count
			}
		}
		return sum >= uint64(calls)
	})
	t.Logf("%d calls were told in %d records", sum, events)
	if sum != uint64(calls) || events > 30 {
		t.Errorf("%d calls in %d records, want %d in at most 30", sum, events, calls)
	}
}

// TestNothingOutlivesItsEnd: who left every group and session of the command is gone after a stop, a timeout, and the
// session's end; and no command that crashes leaves a core dump.
func TestNothingOutlivesItsEnd(t *testing.T) {
	p, c := limitedPod(t, &buffer{}, "")
	daemonise := func(seconds string) *wire.Command {
		return argv("sh", "-c", "(setsid sh -c 'cd /; (sleep "+seconds+" </dev/null >/dev/null 2>&1 &)' &); echo up; sleep 1000")
	}
	up := func(seconds string) (<-chan struct{}, *attached) {
		command := daemonise(seconds)
		if seconds == "7001" {
			command.Timeout = durationpb.New(2 * time.Second)
		}
		done, got := ended(attachStart(t, c, command))
		eventually(t, "the daemon runs", func() bool { return strings.Contains(strings.Join(inPod(t, p), "\n"), "sleep "+seconds) })
		return done, got
	}
	done, got := up("7000")
	for _, process := range running(t, c) {
		if _, err := c.Stop(t.Context(), &wire.StopRequest{ProcessId: process.GetId()}); err != nil {
			t.Fatal(err)
		}
	}
	<-done
	if got.exit.GetReason() != wire.ExitReason_EXIT_REASON_STOPPED {
		t.Errorf("the record is %v", got.exit)
	}
	done, got = up("7001")
	<-done
	if got.exit.GetReason() != wire.ExitReason_EXIT_REASON_TIMED_OUT {
		t.Errorf("the record is %v", got.exit)
	}
	eventually(t, "nothing is left", func() bool { return len(inPod(t, p)) == 0 })

	crash := `exec 2>/dev/null; ulimit -c; ulimit -Hc; ulimit -c unlimited; sh -c 'kill -SEGV $$'; echo $?; ls -A`
	if output, code := execute(t, c, script(crash)); code != 0 || !strings.HasSuffix(output, "139\n") || !strings.HasPrefix(output, "0\n0\n") {
		t.Errorf("a crash gives %d, %q", code, output)
	}

	done, got = up("7002")
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-done
	if got.exit.GetReason() != wire.ExitReason_EXIT_REASON_ENGINE_STOPPED {
		t.Errorf("the record is %v (%v)", got.exit, got.err)
	}
	if !waitDone(p.done) {
		t.Fatal("agentd did not end")
	}
	spaces, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	for _, space := range spaces {
		if left, err := os.Readlink(space); err == nil && left == own {
			t.Errorf("%s is left", space)
		}
	}
}
