package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const (
	// roleSelf tells what the process finds about itself, or tries what its name says.
	roleSelf = "self"
	// roleNoPrograms compiles where no memory file is executed.
	roleNoPrograms = "no programs in memory"
	// roleCounted starts a command whose user's processes are counted.
	roleCounted = "counted"
)

func newLimitedLauncher(tb testing.TB, s stage, values map[string]uint64) *Launcher {
	tb.Helper()
	policy := with(func(p *Policy) { p.Enforcement = BestEffort; p.Process.Limits = values })
	launcher, err := Compile(policy, s.layout(), Probe())
	check(tb, err)
	tb.Cleanup(func() { check(tb, launcher.Close()) })
	for _, gap := range launcher.Report().NotEnforced {
		if strings.Contains(gap, "process.limits") {
			tb.Fatalf("limits have a gap: %s", gap)
		}
	}
	return launcher
}

// runOutput starts a program, and returns how it ended and what it wrote.
func runOutput(tb testing.TB, start startFunc, dir string, argv, environment []string) (syscall.WaitStatus, string) {
	tb.Helper()
	reader, writer, err := os.Pipe()
	check(tb, err)
	defer reader.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	check(tb, err)
	defer null.Close()
	pid, err := start(argv[0], argv, &syscall.ProcAttr{
		Dir: dir, Env: environment, Files: []uintptr{null.Fd(), writer.Fd(), writer.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	writer.Close()
	check(tb, err)
	killer := time.AfterFunc(deadline, func() { _ = unix.Kill(-pid, unix.SIGKILL) })
	defer killer.Stop()
	output, err := io.ReadAll(reader)
	check(tb, err)
	return wait(tb, pid), string(output)
}

// asSelf is the command line of roleSelf.
func (s stage) asSelf(attempt string) (argv, environment []string) {
	return []string{s.binary, "an argument", ""}, []string{roleVariable + "=" + roleSelf, "ATTEMPT=" + attempt, "PATH=/usr/bin:/bin", raceOptions}
}

func selfMain() int {
	var said any
	switch os.Getenv("ATTEMPT") {
	case "describe":
		said = describeSelf()
	case "raise":
		said = raiseLimits()
	case "open files":
		said = openUntilRefused()
	case "map memory":
		_, err := unix.Mmap(-1, 0, 4<<30, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		said = errnoName(err)
	case "fork":
		said = forkUntilRefused()
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		return 1
	}
	return 0
}

func errnoName(err error) string {
	errno, _ := errors.AsType[syscall.Errno](err)
	if errno == 0 && err != nil {
		return err.Error()
	}
	return unix.ErrnoName(errno)
}

// describeSelf is all that a start decides about a process, but for its limits.
func describeSelf() map[string]any {
	folder, _ := os.Getwd()
	said := map[string]any{"args": os.Args, "environment": os.Environ(), "folder": folder, "leads its session": leadsSession()}
	program, _ := os.Readlink("/proc/self/exe")
	said["program"] = program
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, entry := range entries {
		target, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err == nil && !strings.HasPrefix(target, "anon_inode:") { // Go's own poller
			kind, _, _ := strings.Cut(target, ":")
			said["descriptor "+entry.Name()] = kind
		}
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if slices.Contains([]string{"Name", "Umask", "Uid", "NoNewPrivs", "Seccomp", "Seccomp_filters", "CapEff", "CapPrm", "CapInh", "CapAmb", "SigIgn"}, name) {
			said[name] = strings.TrimSpace(value)
		}
	}
	var mark unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_LOCKS, &mark)
	said["mark"] = mark
	return said
}

func leadsSession() bool {
	session, err := unix.Getsid(0)
	return err == nil && session == os.Getpid()
}

// raiseLimits is what each limit is and what becomes of an attempt to raise it.
func raiseLimits() map[string]string {
	said := make(map[string]string)
	for name, number := range limits {
		var have unix.Rlimit
		_ = unix.Prlimit(0, number, nil, &have)
		more := unix.Rlimit{Cur: have.Max + 1, Max: have.Max + 1}
		said[name] = fmt.Sprintf("%d %s", have.Max, errnoName(unix.Prlimit(0, number, &more, nil)))
	}
	return said
}

func openUntilRefused() string {
	for n := 3; ; n++ {
		if fd, err := unix.Open(os.DevNull, unix.O_RDONLY, 0); err != nil || fd > 1000 {
			return errnoName(err)
		}
	}
}

// forkUntilRefused makes processes that do nothing until they are killed.
func forkUntilRefused() string {
	var children []int
	defer func() {
		for _, child := range children {
			_ = unix.Kill(child, unix.SIGKILL)
		}
	}()
	for len(children) < 1000 {
		child, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			return unix.ErrnoName(errno)
		}
		for child == 0 {
			unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
		children = append(children, int(child))
	}
	return ""
}

func TestPlanLimits(t *testing.T) {
	s := newStage(t, true)
	have := map[string]uint64{"core": noCore, "nofile": 1000, "as": 1 << 40, "cpu": 1 << 40, "fsize": 1 << 40, "nproc": 1 << 20}
	cases := map[string]struct {
		reason string
		values map[string]uint64
		want   []limitSetting
		note   string
	}{
		"none":          {"nothing is set", nil, nil, ""},
		"inherited":     {"the agent lives under it", map[string]uint64{"core": 0, "nofile": 1000}, nil, ""},
		"agent's lower": {"what the agent has holds", map[string]uint64{"nofile": 5000}, nil, "process.limits.nofile 5000: the agent itself lives under 1000, which holds"},
		"set":           {"hard is soft", map[string]uint64{"nofile": 100, "as": 5}, []limitSetting{{"as", 9, 5, 5}, {"nofile", 7, 100, 100}}, ""},
		"core, set":     {"the limit that is none for no handler", map[string]uint64{"core": 0}, []limitSetting{{"core", 4, noCore, noCore}}, ""},
		"cpu":           {"SIGXCPU comes before SIGKILL", map[string]uint64{"cpu": 7}, []limitSetting{{"cpu", 0, 7, 8}}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			policy := with(func(p *Policy) { p.Process.Limits = c.values })
			p, err := newPlan(policy, s.layout(), newKernel, func(limit int) (uint64, error) {
				if limit == limits["core"] && name == "core, set" {
					return 1 << 40, nil
				}
				for name, number := range limits {
					if number == limit {
						return have[name], nil
					}
				}
				return 0, unix.EINVAL
			})
			check(t, err)
			if diff := cmp.Diff(c.want, p.limits, cmp.AllowUnexported(limitSetting{})); diff != "" || len(p.gaps) > 0 {
				t.Errorf("%s: gaps %v, %s", c.reason, p.gaps, diff)
			}
			if c.note != "" && !slices.Contains(p.notes, c.note) {
				t.Errorf("%s: notes %q lack %q", c.reason, p.notes, c.note)
			}
		})
	}
}

// TestPlanCountedProcesses: of whom the kernel counts no processes, no limit is promised.
func TestPlanCountedProcesses(t *testing.T) {
	s := newStage(t, true)
	policy := with(func(p *Policy) { p.Process.Limits = map[string]uint64{"nproc": 10} })
	p, err := newPlan(policy, s.layout(), newKernel, unlimited)
	check(t, err)
	switch {
	case uncountedUser() && (len(p.gaps) != 1 || p.gaps[0].Field != "process.limits.nproc" || len(p.limits) > 0):
		t.Errorf("user 0: got gaps %v and limits %v", p.gaps, p.limits)
	case !uncountedUser() && (len(p.gaps) > 0 || len(p.limits) != 1 || !strings.Contains(strings.Join(p.notes, " "), "every pod of the node")):
		t.Errorf("got gaps %v, limits %v, notes %q", p.gaps, p.limits, p.notes)
	}
}

func TestCoreDumpsStayOff(t *testing.T) {
	policy := with(func(p *Policy) { p.Process.Limits = map[string]uint64{"core": 1} })
	field, ok := errors.AsType[*FieldError](policy.Validate())
	if !ok || field.Field != `process.limits["core"]` || field.Value != "1" {
		t.Errorf("got %v", field)
	}
}

// TestLimiterCannotSet: a limit that the kernel refuses is a gap when the policy is compiled, not a surprise at a start.
func TestLimiterCannotSet(t *testing.T) {
	p := &plan{limits: []limitSetting{{name: "nofile", number: 99, soft: 7, hard: 7}}}
	if l, err := p.newLimiter(); l != nil || !errors.Is(err, unix.EINVAL) {
		t.Errorf("got %v, %v", l, err)
	}
	if len(p.gaps) != 1 || p.gaps[0].Field != "process.limits.nofile" || p.gaps[0].Value != "7" || !strings.Contains(p.gaps[0].Reason, unix.EINVAL.Error()) {
		t.Errorf("got %v", p.gaps)
	}
}

// heldThread is a thread of this process that lives until release.
func heldThread(t *testing.T) (thread int, release func()) {
	t.Helper()
	threads, end := make(chan int), make(chan struct{})
	go func() {
		runtime.LockOSThread() // and never unlocked, so that it ends with the goroutine
		threads <- unix.Gettid()
		<-end
	}()
	return <-threads, sync.OnceFunc(func() { close(end) })
}

// A command could signal the thread that starts it, which is in its own Landlock domain, and so end the whole agent.
func TestLimiterWaitsForItsThread(t *testing.T) {
	limiter, err := newLimiter(nil)
	check(t, err)
	defer func() { check(t, limiter.close()) }()
	thread, release := heldThread(t)
	defer release()
	const noThread = 1<<22 - 1 // the kernel gives no number as large
	for name, number := range map[string]int{"none": 0, "gone": noThread, "alive": thread} {
		s, w, err := limiter.wrap(start{argv0: "/bin/true", argv: []string{"true"}})
		check(t, err)
		s.after(number)
		pid, err := syscall.ForkExec(s.argv0, s.argv, s.attr)
		end := started{pid: pid, listener: -1, err: err}
		if number == thread && err == nil {
			poll := []unix.PollFd{{Fd: int32(w.read), Events: unix.POLLIN}}
			_ = unix.Close(w.status)
			if n, err := unix.Poll(poll, 300); n != 0 && err == nil {
				t.Error("the program was executed while the thread that started it lived")
			}
			w.status = -1
			release()
		}
		if end = w.finish(end); end.err != nil {
			t.Fatalf("%s: %v", name, end.err)
		}
		if status := wait(t, pid); status != 0 {
			t.Errorf("%s: the program ended with %#x", name, status)
		}
	}
}

func TestConfinedStartsWaitForTheirThread(t *testing.T) {
	for name, again := range map[string]bool{"a thread for each start": false, "one for all": true} {
		threads := threads{again: again}
		unset := "\x05" + string(threadDigits(0)) + "/bin/true"
		s := start{argv0: "/bin/true", argv: []string{unset, "true"}, result: make(chan started, 1), limited: true}
		end := threads.start(s, false, func(bool) (int, error) { return -1, nil })
		check(t, end.err)
		wait(t, end.pid)
		threads.close()
		if waits := s.argv[0] != unset; waits == again || len(s.argv[0]) != len(unset) {
			t.Errorf("%s: the limiter was told %q", name, s.argv[0])
		}
	}
	requireABI(t, abiScopes)
	s := newStage(t, true)
	for _, supervised := range []bool{true, false} {
		caps := Probe()
		caps.UserNotify = supervised && caps.UserNotify
		launcher, err := Compile(with(func(p *Policy) { p.Enforcement = BestEffort }), s.layout(), caps)
		check(t, err)
		defer launcher.Close()
		if waits := launcher.limiter != nil; waits == caps.UserNotify {
			t.Errorf("with a supervisor (%v) starts wait for their thread: %v", caps.UserNotify, waits)
		}
	}
}

// noProgramsMain makes its pid namespace one that executes no memory files, and says what is wrong with a sandbox there.
func noProgramsMain() int {
	if err := os.WriteFile("/proc/sys/vm/memfd_noexec", []byte("2"), 0); err != nil {
		fmt.Println(err)
		return 1
	}
	layout, caps := Layout{Workspace: os.Getenv("BASE")}, Probe()
	launcher, err := Compile(Default(), layout, caps)
	if err != nil {
		fmt.Println("with a supervisor:", err)
		return 1
	}
	defer launcher.Close()
	caps.UserNotify = false
	_, err = Compile(Default(), layout, caps)
	if refused, ok := errors.AsType[*NotEnforceableError](err); !ok || !strings.Contains(refused.Error(), "send signals to the agent") {
		fmt.Println("without one:", err)
	}
	return 0
}

// Where no program in memory can be executed and no supervisor answers, nothing keeps signals from the thread that starts a command.
func TestNoProgramsInMemory(t *testing.T) {
	requireABI(t, abiScopes)
	s := newStage(t, true)
	if os.Geteuid() != 0 {
		t.Skip("only root makes a pid namespace")
	}
	cmd := exec.CommandContext(t.Context(), s.binary)
	cmd.Env = []string{raceOptions, roleVariable + "=" + roleNoPrograms, "BASE=" + s.at("workspace")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestLimitsHold: each limit meets the program that reaches it.
func TestLimitsHold(t *testing.T) {
	requireABI(t, 1)
	s := newStage(t, true)
	file := filepath.Join(s.base, "workspace/large")
	self := func(attempt string) []string { return []string{attempt} }
	shell := func(script string) []string { return []string{"/bin/sh", "-c", script} }
	cases := map[string]struct {
		reason string
		values map[string]uint64
		argv   []string // one word is an attempt of roleSelf
		signal syscall.Signal
		output string
	}{
		"nofile":         {"no descriptor more", map[string]uint64{"nofile": 100}, self("open files"), 0, `"EMFILE"`},
		"fsize":          {"the signal ends it", map[string]uint64{"fsize": 4096}, shell("exec head -c 100000 /dev/zero >" + file), unix.SIGXFSZ, ""},
		"fsize, ignored": {"without the signal the call fails", map[string]uint64{"fsize": 4096}, shell("trap '' XFSZ; head -c 100000 /dev/zero >" + file), 0, "File too large"},
		"cpu":            {"the signal says why", map[string]uint64{"cpu": 1}, shell("while :; do :; done"), unix.SIGXCPU, ""},
		"cpu, ignored":   {"a second later it is killed", map[string]uint64{"cpu": 1}, shell("trap '' XCPU; while :; do :; done"), unix.SIGKILL, ""},
		"as":             {"no memory more", map[string]uint64{"as": 3 << 30}, self("map memory"), 0, `"ENOMEM"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if raceDetector && name == "as" {
				t.Skip("a program with the race detector maps more than any limit")
			}
			argv, environment := c.argv, []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
			if len(argv) == 1 {
				argv, environment = s.asSelf(c.argv[0])
			}
			status, output := runOutput(t, newLimitedLauncher(t, s, c.values).Start, s.base+"/workspace", argv, environment)
			if status.Signaled() != (c.signal != 0) || status.Signaled() && status.Signal() != c.signal || !strings.Contains(output, c.output) {
				t.Errorf("%s: status %#x, output %q", c.reason, status, output)
			}
			if info, err := os.Stat(file); err == nil && info.Size() > 4096 {
				t.Errorf("%s: the file has %d bytes", c.reason, info.Size())
			}
		})
	}
}

// TestProcessesLimited needs a user of its own: the limit counts all processes of a user.
func TestProcessesLimited(t *testing.T) {
	requireABI(t, 1)
	if os.Getuid() != 0 {
		t.Skip("needs root: the limit counts all processes of a user, so the test takes one of its own")
	}
	s := newStage(t, true)
	cmd := exec.CommandContext(t.Context(), s.binary)
	cmd.Env = []string{roleVariable + "=" + roleCounted, "STAGE=" + s.base, "PATH=/usr/bin:/bin", raceOptions}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: lonelyUID + 1, Gid: lonelyUID + 1}}
	out, err := cmd.CombinedOutput()
	if err != nil || string(bytes.TrimSpace(out)) != `"EAGAIN"` {
		t.Errorf("%v: %s", err, out)
	}
}

func countedMain() int {
	s := stage{base: os.Getenv("STAGE"), binary: os.Args[0]}
	policy := with(func(p *Policy) { p.Process.Limits = map[string]uint64{"nproc": 90} })
	launcher, err := Compile(policy, s.layout(), Probe())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer launcher.Close()
	argv, environment := s.asSelf("fork")
	pid, err := launcher.Start(argv[0], argv, &syscall.ProcAttr{Env: environment, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer func() { _ = unix.Kill(-pid, unix.SIGKILL) }()
	_, err = syscall.Wait4(pid, nil, 0, nil)
	if err != nil {
		fmt.Println(err)
	}
	return 0
}

// TestLimitsCannotBeRaised: what is set stays, for a program that has no capabilities.
func TestLimitsCannotBeRaised(t *testing.T) {
	requireABI(t, 1)
	s := newStage(t, true)
	values := map[string]uint64{"nofile": 64, "fsize": 1 << 20, "cpu": 100, "as": 1 << 40, "core": 0}
	if raceDetector {
		delete(values, "as")
	}
	held := maps.Clone(values)
	held["core"] = noCore
	argv, environment := s.asSelf("raise")
	status, output := runOutput(t, newLimitedLauncher(t, s, values).Start, "", argv, environment)
	var said map[string]string
	if err := json.Unmarshal([]byte(output), &said); err != nil {
		t.Fatalf("status %#x, %v: %s", status, err, output)
	}
	for name, value := range held {
		want := fmt.Sprintf("%d EPERM", newLimitSetting(name, value).hard)
		if said[name] != want {
			t.Errorf("%s: got %q, want %q", name, said[name], want)
		}
	}
}

// TestLimitNamesAreTheKernels compares with what x/sys has for the architecture that is built.
func TestLimitNamesAreTheKernels(t *testing.T) {
	want := map[string]int{
		"cpu": unix.RLIMIT_CPU, "fsize": unix.RLIMIT_FSIZE, "core": unix.RLIMIT_CORE,
		"nproc": unix.RLIMIT_NPROC, "nofile": unix.RLIMIT_NOFILE, "as": unix.RLIMIT_AS,
	}
	if !maps.Equal(want, limits) {
		t.Errorf("got %v, want %v", limits, want)
	}
}
