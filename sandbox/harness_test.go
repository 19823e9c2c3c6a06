package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary plays three parts. The test starts an agent, with the user and
// the capabilities of the case; the agent compiles the policy and starts one attempt a
// process; an attempt does one thing and says which errno it met.
const (
	roleVariable = "EXECSESSION_SANDBOX_ROLE"
	roleAgent    = "agent"
	roleAttempt  = "attempt"
	roleUnpinned = "unpinned"
	roleProtect  = "protect"

	testUID  = 1000
	deadline = 2 * time.Minute

	// A program built with the race detector sleeps a second before it ends, which
	// hundreds of attempts cannot afford.
	raceOptions = "GORACE=halt_on_error=1 atexit_sleep_ms=0"
)

func init() {
	if os.Getenv(roleVariable) != roleUnpinned {
		runtime.LockOSThread() // as agentd's main does
	}
}

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case roleAgent:
		os.Exit(agentMain())
	case roleAttempt:
		os.Exit(attemptMain())
	case roleUnpinned:
		os.Exit(unpinnedMain())
	case roleProtect:
		os.Exit(protectMain())
	case roleFlood:
		os.Exit(floodMain())
	case roleNested:
		os.Exit(nestedMain())
	case roleInner:
		os.Exit(innerMain())
	case roleLimited:
		os.Exit(limitedMain())
	case roleSelf:
		os.Exit(selfMain())
	case roleStarter:
		os.Exit(starterMain())
	case roleNoPrograms:
		os.Exit(noProgramsMain())
	case roleCounted:
		os.Exit(countedMain())
	case roleExplain:
		os.Exit(explainMain())
	case roleProbe:
		os.Exit(probeMain())
	case roleBelow:
		os.Exit(belowMain())
	case roleSignals:
		os.Exit(signalsMain())
	}
	os.Exit(m.Run())
}

// agentOrder is what a test asks of an agent.
type agentOrder struct {
	Policy   Policy
	Narrow   *Narrowing
	Layout   Layout
	Base     string
	ForceABI *int
	NoFilter bool
	// Above are the emulations that the agent runs below.
	Above    []string
	DropCaps bool
	Bare     bool
	Attempts []string
	// Swaps happen between the compilation and the first start.
	Swaps []swap
	// environment is what the agent tells its attempts.
	environment []string
}

// agentAnswer is what the agent found.
type agentAnswer struct {
	CompileError string
	Gaps         []Gap
	Report       Report
	Outcomes     map[string]outcome
	// Harmed says how the agent was changed by its commands.
	Harmed []string
}

// outcome is how one attempt ended. Text is the errno's name, "" for success.
type outcome struct {
	Text   string
	Signal string
	Detail string
	// Denials are what its sandbox told of it.
	Denials []Denial
}

// stage is a folder tree that an agent of uid 1000 can use.
type stage struct {
	base   string
	binary string
	// mounts are made before the agent starts, for it alone.
	mounts []bindMount
}

// newStage makes workspace, home, tmp (writable), outside (the same user's, not
// granted), agent/config and agent/journal (hidden) beside agent/bin.
func newStage(tb testing.TB, asRoot bool) stage {
	tb.Helper()
	base, err := os.MkdirTemp("/var/tmp", "execsession-sandbox-") //nolint:usetesting // every folder above it must be open to another user
	check(tb, err)
	tb.Cleanup(func() { _ = os.RemoveAll(base) })
	check(tb, os.Chmod(base, 0o755))
	for _, dir := range []string{"workspace/a", "workspace/b", "home", "tmp", "outside", "agent/config", "agent/journal", "agent/bin"} {
		check(tb, os.MkdirAll(filepath.Join(base, dir), 0o755))
	}
	for _, file := range []string{"outside/file", "agent/config/profile.json", "agent/journal/log", "agent/bin/readme", "workspace/a/file"} {
		check(tb, os.WriteFile(filepath.Join(base, file), []byte("content\n"), 0o644))
	}
	s := stage{base: base, binary: filepath.Join(base, "agent/bin/sandbox.test")}
	copyFile(tb, "/proc/self/exe", s.binary, 0o755)
	if os.Getuid() == 0 && !asRoot {
		check(tb, filepath.WalkDir(base, func(path string, _ os.DirEntry, err error) error {
			if err != nil || path == base {
				return err
			}
			return os.Chown(path, testUID, testUID)
		}))
		copyFile(tb, "/proc/self/exe", filepath.Join(base, "agent/bin/setuid.test"), 0o755)
		check(tb, os.Chmod(filepath.Join(base, "agent/bin/setuid.test"), 0o755|os.ModeSetuid))
	}
	return s
}

func (s stage) layout() Layout {
	return Layout{
		Workspace: filepath.Join(s.base, "workspace"),
		Writable:  []string{filepath.Join(s.base, "home"), filepath.Join(s.base, "tmp")},
		Hidden:    []string{filepath.Join(s.base, "agent/config"), filepath.Join(s.base, "agent/journal")},
	}
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func copyFile(tb testing.TB, from, to string, mode os.FileMode) {
	tb.Helper()
	source, err := os.Open(from)
	check(tb, err)
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	check(tb, err)
	_, err = io.Copy(target, source)
	check(tb, errors.Join(err, target.Close()))
	check(tb, os.Chmod(to, mode))
}

// runAgent starts an agent as the user, or as root, and waits for its answer.
func runAgent(tb testing.TB, s stage, order agentOrder, asRoot bool) agentAnswer {
	tb.Helper()
	order.Base = s.base
	order.DropCaps = asRoot
	input, err := json.Marshal(order)
	check(tb, err)
	ctx, cancel := context.WithTimeout(tb.Context(), 4*deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.binary)
	cmd.Env = []string{roleVariable + "=" + roleAgent, "AGENT_SECRET=hunter2", "PATH=/usr/bin:/bin", raceOptions}
	if len(order.Above) > 0 {
		cmd.Env = append(belowEnvironment(roleAgent, order.Above), cmd.Env[1:]...)
	}
	cmd.Dir = "/"
	cmd.Stdin = bytes.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if os.Getuid() == 0 && !asRoot {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testUID, Gid: testUID}}
	}
	if err := s.run(cmd); err != nil {
		tb.Fatalf("agent: %v\n%s", err, stderr.String())
	}
	var answer agentAnswer
	if err := json.Unmarshal(stdout.Bytes(), &answer); err != nil {
		tb.Fatalf("agent said %q: %v", stdout.String(), err)
	}
	return answer
}

func agentMain() int {
	var order agentOrder
	if err := json.NewDecoder(os.Stdin).Decode(&order); err != nil {
		fmt.Fprintln(os.Stderr, "reading order:", err)
		return 1
	}
	answer, err := carryOut(order)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fmt.Fprintln(os.Stderr, "answering:", err)
		return 1
	}
	return 0
}

func carryOut(order agentOrder) (agentAnswer, error) {
	answer := agentAnswer{Outcomes: make(map[string]outcome)}
	if _, err := unix.Open(filepath.Join(order.Base, "outside/file"), unix.O_RDWR, 0); err != nil {
		return answer, fmt.Errorf("leaking a descriptor: %w", err)
	}
	if err := ProtectSelf(); err != nil {
		return answer, err
	}
	if order.DropCaps {
		if err := DropCapabilities(); err != nil {
			return answer, err
		}
	}
	caps := Probe()
	if order.ForceABI != nil {
		caps.LandlockABI = *order.ForceABI
	}
	caps.Seccomp = caps.Seccomp && !order.NoFilter
	var open sockets
	if err := open.listen(); err != nil {
		return answer, err
	}
	defer open.close()
	if order.Policy.Network.Mode == ProxyNetwork {
		order.Layout.Proxy = open.proxy.Addr().(*net.TCPAddr).AddrPort()
	}
	order.environment = []string{"PROXY=" + portOf(open.proxy), "OTHER=" + portOf(open.other)}
	launcher, err := Compile(order.Policy, order.Layout, caps)
	if err == nil && order.Narrow != nil {
		defer launcher.Close()
		launcher, err = launcher.Narrow(*order.Narrow)
	}
	if err != nil {
		answer.CompileError = err.Error()
		if refused, ok := errors.AsType[*NotEnforceableError](err); ok {
			answer.Gaps = refused.Gaps
		}
		return answer, nil
	}
	defer launcher.Close()
	answer.Report = launcher.Report()
	for _, s := range order.Swaps {
		if err := s.happen(); err != nil {
			return answer, err
		}
	}
	start := launcher.StartWatched
	if order.Bare {
		start = startBare
	}
	err = errors.Join(runAttempts(order, start, &answer), launcher.Close())
	if left := awaitUnfiltered(); left > 0 {
		answer.Harmed = append(answer.Harmed, fmt.Sprintf("%d threads stayed confined", left))
	}
	if n := open.reached.Load(); n > 0 && order.Policy.Network.Mode == ProxyNetwork {
		answer.Harmed = append(answer.Harmed, fmt.Sprintf("%d connections reached a port that is not the proxy's", n))
	}
	return answer, err
}

func startBare(argv0 string, argv []string, attr *syscall.ProcAttr, watch Watch) (int, error) {
	watch.OnEnd()
	return syscall.ForkExec(argv0, argv, attr)
}

func runAttempts(order agentOrder, start startWatched, answer *agentAnswer) error {
	abstract := fmt.Sprintf("execsession-test-%d", os.Getpid())
	listener, err := net.Listen("unix", "@"+abstract)
	if err != nil {
		return err
	}
	defer listener.Close()
	var signals atomic.Int32
	arrived := make(chan os.Signal, 16)
	signal.Notify(arrived, syscall.SIGIO, syscall.SIGTERM, syscall.SIGUSR1)
	done := make(chan struct{})
	go func() { // ends when arrived is closed below
		defer close(done)
		for range arrived {
			signals.Add(1)
		}
	}()
	if thread := threadOfWorkFromMain(); thread == os.Getpid() {
		answer.Harmed = append(answer.Harmed, "the main thread would have been confined")
	}
	bystander, unharmed, err := startBystander(start)
	if err != nil {
		return err
	}
	order.environment = append(order.environment, "BYSTANDER="+itoa(bystander))
	before := condition()
	for _, name := range order.Attempts {
		result, err := runAttempt(order, start, name, abstract)
		if err != nil {
			return fmt.Errorf("attempt %q: %w", name, err)
		}
		answer.Outcomes[name] = result
	}
	signal.Stop(arrived)
	close(arrived)
	<-done
	if n := signals.Load(); n > 0 {
		answer.Harmed = append(answer.Harmed, fmt.Sprintf("%d signals arrived", n))
	}
	if err := unharmed(); err != nil {
		answer.Harmed = append(answer.Harmed, err.Error())
	}
	if after := condition(); after != before {
		answer.Harmed = append(answer.Harmed, fmt.Sprintf("condition changed from %s to %s", before, after))
	}
	return nil
}

// threadOfWorkFromMain does what happens when a start lands on the main thread.
func threadOfWorkFromMain() int {
	result := make(chan int, 1)
	onSpareThread(func() { result <- unix.Gettid() })
	return <-result
}

type startFunc func(argv0 string, argv []string, attr *syscall.ProcAttr) (int, error)

type startWatched func(argv0 string, argv []string, attr *syscall.ProcAttr, watch Watch) (int, error)

func runAttempt(order agentOrder, start startWatched, name, abstract string) (outcome, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return outcome{}, err
	}
	defer reader.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return outcome{}, err
	}
	defer null.Close()
	pidfd := -1
	var result outcome
	ended := make(chan struct{})
	watch := Watch{OnDenial: func(d Denial) { result.Denials = append(result.Denials, d) }, OnEnd: func() { close(ended) }}
	binary := filepath.Join(order.Base, "agent/bin/sandbox.test")
	pid, err := start(binary, []string{binary}, &syscall.ProcAttr{
		Dir: order.Layout.Workspace,
		Env: append([]string{
			roleVariable + "=" + roleAttempt, "ATTEMPT=" + name, "BASE=" + order.Base, "ABSTRACT=" + abstract,
			fmt.Sprintf("AGENT_PID=%d", os.Getpid()), "PATH=/usr/bin:/bin", "GOTRACEBACK=none", raceOptions,
		}, order.environment...),
		Files: []uintptr{null.Fd(), writer.Fd(), writer.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	}, watch)
	writer.Close()
	if err != nil {
		return outcome{}, err
	}
	if pidfd < 0 {
		return outcome{}, errors.New("no pidfd was made")
	}
	defer unix.Close(pidfd)
	output, err := io.ReadAll(reader)
	if err != nil {
		return outcome{}, err
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return outcome{}, err
	}
	select {
	case <-ended: // from here on nobody else touches the result
	case <-time.After(deadline):
		return outcome{}, errors.New("its supervisor never ended")
	}
	if status.Signaled() {
		result.Signal = unix.SignalName(status.Signal())
		return result, nil
	}
	var said outcome
	if err := json.Unmarshal(output, &said); err != nil {
		return outcome{}, fmt.Errorf("exit %d with output %q: %w", status.ExitStatus(), output, err)
	}
	result.Text, result.Detail = said.Text, said.Detail
	return result, nil
}

// condition is what commands must not be able to change about the agent.
func condition() string {
	var files, cpu unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	_ = unix.Getrlimit(unix.RLIMIT_CPU, &cpu)
	nice, _ := unix.Getpriority(unix.PRIO_PROCESS, os.Getpid())
	var set unix.CPUSet
	_ = unix.SchedGetaffinity(0, &set)
	return fmt.Sprintf("nofile=%v cpu=%v nice=%d cpus=%d", files, cpu, nice, set.Count())
}

// awaitUnfiltered counts the threads that still carry a filter of a start after a while. Each start's thread ends a
// moment after the start, and the one that waits for the next start with the launcher.
func awaitUnfiltered() int {
	self, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(self), "\nSeccomp_filters:")
	above, _, _ := strings.Cut(rest, "\n")
	for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
		left := 0
		for _, filters := range threadStatus("Seccomp_filters:") {
			if filters != strings.TrimSpace(above) {
				left++
			}
		}
		if left == 0 || time.Now().After(end) {
			return left
		}
	}
}

// threadStatus reads one line of the status of each thread of this process.
func threadStatus(line string) []string {
	var values []string
	paths, _ := filepath.Glob("/proc/self/task/*/status")
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		if _, rest, found := strings.Cut(string(data), "\n"+line); found {
			value, _, _ := strings.Cut(rest, "\n")
			values = append(values, strings.TrimSpace(value))
		}
	}
	return values
}

func attemptMain() int {
	name := os.Getenv("ATTEMPT")
	attempt, known := attempts[name]
	if !known {
		fmt.Printf("no attempt %q", name)
		return 1
	}
	var result outcome
	err := attempt(actor{base: os.Getenv("BASE"), agent: atoi(os.Getenv("AGENT_PID")), abstract: os.Getenv("ABSTRACT"), bystander: atoi(os.Getenv("BYSTANDER"))})
	var errno syscall.Errno
	switch {
	case err == nil:
	case errors.As(err, &errno):
		result.Text, result.Detail = unix.ErrnoName(errno), err.Error()
	default:
		result.Text = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		return 1
	}
	return 0
}

func itoa(n int) string { return fmt.Sprint(n) }

func atoi(text string) int {
	var n int
	_, _ = fmt.Sscanf(text, "%d", &n)
	return n
}
