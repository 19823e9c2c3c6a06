package sandbox

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const roleFlood = "flood"

// floodMain makes as many refused calls as it is told, then one that is refused for another reason.
func floodMain() int {
	for range atoi(os.Getenv("CALLS")) {
		if fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0); errno != unix.EACCES {
			os.Stdout.WriteString("a call ended otherwise: " + errno.Error())
			return int(fd)
		}
	}
	_ = unix.Mount("", "", "", 0, "")
	if next := os.Getenv("NEXT"); next != "" {
		_ = unix.Exec(next, []string{next}, []string{roleVariable + "=" + roleFlood, "CALLS=" + os.Getenv("CALLS"), raceOptions})
		return 1
	}
	return 0
}

// requireDenials skips where no supervisor can be had.
func requireDenials(tb testing.TB) {
	tb.Helper()
	caps := Probe()
	if !caps.UserNotify {
		tb.Skipf("no supervisor can be had here (taken: %v)", caps.NotifyTaken)
	}
}

// watchOne starts a program and returns its status and all that it was refused.
func watchOne(tb testing.TB, l *Launcher, argv []string, environment ...string) (syscall.WaitStatus, []Denial) {
	tb.Helper()
	var denials []Denial
	ended := make(chan struct{})
	pid, err := l.StartWatched(argv[0], argv, &syscall.ProcAttr{Env: environment, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}},
		Watch{OnDenial: func(d Denial) { denials = append(denials, d) }, OnEnd: func() { close(ended) }})
	check(tb, err)
	status := wait(tb, pid)
	select {
	case <-ended:
	case <-time.After(deadline):
		tb.Fatal("the supervisor never ended")
	}
	return status, denials
}

// TestFloodOfDenials: very many refused calls are all answered, all counted, and told in a handful of events,
// while the agent starts other commands.
func TestFloodOfDenials(t *testing.T) {
	requireDenials(t)
	s := newStage(t, true)
	launcher := newTestLauncher(t, s)
	calls := 50_000
	if raceDetector {
		calls = 5_000
	}
	if given := os.Getenv("FLOOD_CALLS"); given != "" {
		calls = atoi(given)
	}
	var flooding sync.WaitGroup
	over := make(chan struct{})
	began := time.Now()
	var denials []Denial
	flooding.Go(func() {
		defer close(over)
		_, denials = watchOne(t, launcher, []string{s.binary}, roleVariable+"="+roleFlood, "CALLS="+itoa(calls), raceOptions)
	})
	var slowest time.Duration
	others := 0
	for done := false; !done; others++ {
		before := time.Now()
		watchOne(t, launcher, []string{"/bin/true"})
		slowest = max(slowest, time.Since(before))
		select {
		case <-over:
			done = true
		default:
		}
	}
	flooding.Wait()
	t.Logf("%d refused calls in %v, told in %d events; meanwhile %d other commands, the slowest in %v", calls, time.Since(began), len(denials), others, slowest)
	counted := make(map[string]uint64)
	for _, d := range denials {
		counted[d.Rule] += d.Count
		if d.Last.Before(d.First) {
			t.Errorf("ends before it begins: %+v", d)
		}
	}
	if counted["socket"] != uint64(calls) || counted["mounts"] != 1 || len(counted) != 2 {
		t.Errorf("got %v, want %d and one of mounts", counted, calls)
	}
	if len(denials) > 30 {
		t.Errorf("%d events are not aggregated", len(denials))
	}
}

// TestDenialsOfTheNextProgram: a thread that was refused very many calls keeps its number when it starts another program, and what that
// one is refused is told of that one.
func TestDenialsOfTheNextProgram(t *testing.T) {
	requireDenials(t)
	s := newStage(t, true)
	launcher := newTestLauncher(t, s)
	next := filepath.Join(s.base, "workspace", "next")
	copyFile(t, s.binary, next, 0o755)
	const calls = 3 * manyCalls
	_, denials := watchOne(t, launcher, []string{s.binary}, roleVariable+"="+roleFlood, "CALLS="+itoa(calls), "NEXT="+next, raceOptions)
	counted := map[string]uint64{}
	for _, d := range denials {
		counted[d.Program] += d.Count
	}
	if want := uint64(calls + 1); counted[s.binary] != want || counted[next] != want || len(counted) != 2 {
		t.Errorf("got %v, want %d of each of two programs", counted, want)
	}
}

// TestDenialsOfDescendants: who double-forks and outlives the command is watched on, and the supervisor ends with it.
func TestDenialsOfDescendants(t *testing.T) {
	requireDenials(t)
	s := newStage(t, true)
	launcher := newTestLauncher(t, s)
	reader, writer, err := os.Pipe()
	check(t, err)
	defer reader.Close()
	var denials []Denial
	ended := make(chan struct{})
	pid, err := launcher.StartWatched("/bin/sh", []string{"sh", "-c", "(read line; exec unshare -n true) <&3 2>/dev/null & exit 0"},
		&syscall.ProcAttr{Env: []string{"PATH=/usr/bin:/bin"}, Files: []uintptr{0, 1, 2, reader.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true}},
		Watch{OnDenial: func(d Denial) { denials = append(denials, d) }, OnEnd: func() { close(ended) }})
	check(t, err)
	if status := wait(t, pid); status.ExitStatus() != 0 {
		t.Fatalf("the shell ended with %v", status)
	}
	select {
	case <-ended:
		t.Fatal("the supervisor ended before the last process")
	default:
	}
	check(t, writer.Close())
	select {
	case <-ended:
	case <-time.After(deadline):
		t.Fatal("the supervisor outlives the last process")
	}
	if len(denials) != 1 || denials[0].Syscall != "unshare" || denials[0].Arguments != "flags=CLONE_NEWNET" || !strings.HasSuffix(denials[0].Program, "/unshare") {
		t.Errorf("got %+v", denials)
	}
}

// TestWatchedStartsUnderPressure starts from many goroutines while the collector stops the world again and again: a
// call between fork and exec that waited for the supervisor would hang here.
func TestWatchedStartsUnderPressure(t *testing.T) {
	requireDenials(t)
	caps := Probe()
	t.Run("this kernel", func(t *testing.T) { startUnderPressure(t, caps) })
	// Where signals are asked about, those by which Go's runtime preempts threads, also from a confined one, must not be.
	caps.LandlockABI = min(caps.LandlockABI, 2)
	t.Run("ABI 2", func(t *testing.T) { startUnderPressure(t, caps) })
}

func startUnderPressure(t *testing.T, caps Capabilities) {
	t.Helper()
	s := newStage(t, true)
	launcher := newLauncherOn(t, s, caps)
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	stop := make(chan struct{})
	var pressure, starters sync.WaitGroup
	for range 2 {
		pressure.Go(func() {
			var waste [][]byte
			for {
				select {
				case <-stop:
					return
				default:
					waste = append(waste[len(waste)/2:], make([]byte, 64<<10))
				}
			}
		})
	}
	done := make(chan struct{})
	rounds := 10
	if raceDetector {
		rounds = 2
	}
	failures := make(chan string, 16*rounds)
	for range 8 {
		starters.Go(func() {
			for range rounds {
				status, denials := watchOne(t, launcher, []string{s.binary}, roleVariable+"="+roleFlood, "CALLS=50", raceOptions)
				var count uint64
				for _, d := range denials {
					count += d.Count
				}
				if status.ExitStatus() != 0 || count != 51 {
					failures <- itoa(int(count)) + " denials, want 51"
				}
			}
		})
	}
	go func() {
		starters.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(4 * deadline):
		t.Fatal("starts hang")
	}
	close(stop)
	pressure.Wait()
	close(failures)
	for failure := range failures {
		t.Error(failure)
	}
}

// TestLaunchIsNeverAsked: the filter hands nothing to the supervisor that Go's own code calls between it and exec.
func TestLaunchIsNeverAsked(t *testing.T) {
	// What ForkExec calls with arguments that some rule looks at.
	calls := []struct {
		name string
		args args
	}{
		{"clone", args{unix.CLONE_VFORK | unix.CLONE_VM | uint64(unix.SIGCHLD)}},
		{"clone", args{unix.CLONE_VFORK | unix.CLONE_VM | unix.CLONE_PIDFD | uint64(unix.SIGCHLD)}},
		{"clone", args{unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM | unix.CLONE_THREAD}},
		{"prlimit64", args{0, unix.RLIMIT_NOFILE, 0, 0xc000}},
		{"prlimit64", args{0, unix.RLIMIT_NOFILE, 0xc000, 0}},
		{"ioctl", args{0, unix.TIOCSCTTY, 1}},
		{"ioctl", args{0, unix.TIOCSPGRP, 0xc000}},
		{"ioctl", args{0, unix.TIOCNOTTY}},
	}
	for _, arch := range architectures {
		for _, mode := range []NetworkMode{NoNetwork, LoopbackNetwork, ProxyNetwork, OpenNetwork} {
			for abi := range newestABI + 1 {
				raw := program(t, arch, observed(filterRules(Default(), mode, abi, testAgent)))
				for _, c := range calls {
					number := arch.number(syscalls[c.name])
					if got := simulate(t, raw, callData{audit: arch.audit, number: uint32(number), args: c.args}); got != allow {
						t.Errorf("%s: %s%x gets %#x in %s with ABI %d", arch.name, c.name, c.args, got, mode, abi)
					}
				}
				for _, name := range launchSyscalls {
					if name == "tkill" || abi < abiScopes && name == "kill" {
						continue // Go's runtime makes these only to end itself by a signal
					}
					number := arch.number(syscalls[name])
					if got := simulate(t, raw, callData{audit: arch.audit, number: uint32(number), args: launchArguments[name]}); number != absent && got != allow {
						t.Errorf("%s: %s gets %#x in %s with ABI %d", arch.name, name, got, mode, abi)
					}
				}
			}
		}
	}
}

// launchArguments are those of calls about which the arguments decide.
var launchArguments = map[string]args{"tgkill": {testAgent, testAgent + 3, sigURG}}

// TestObservedFilterRefusesTheSame: with a supervisor the same calls are refused, and the supervisor finds the same errno.
func TestObservedFilterRefusesTheSame(t *testing.T) {
	for _, arch := range architectures {
		for _, c := range filterCases {
			rules := filterRules(Default(), c.mode, c.abi, testAgent)
			number := uint32(arch.number(syscalls[c.call]))
			got := simulate(t, program(t, arch, observed(rules)), callData{audit: arch.audit, number: number, args: c.args})
			decided, found := indexRules(arch, rules).decide(number, &c.args)
			if got != askOwner {
				if got != c.want || got.errno() != 0 && !decided.unseen && got.errno() != enosys {
					t.Errorf("%s: %s%x: got %#x, want %#x", arch.name, c.call, c.args, got, c.want)
				}
				continue
			}
			if !found || decided.then != c.want {
				t.Errorf("%s: %s%x: the supervisor finds %+v, want %#x", arch.name, c.call, c.args, decided, c.want)
			}
		}
	}
}

// TestListenerTaken: below another supervisor there is none for us; that is said, and the filter refuses by itself.
func TestListenerTaken(t *testing.T) {
	requireDenials(t)
	s := newStage(t, true)
	cmd := exec.CommandContext(t.Context(), s.binary)
	cmd.Env = []string{roleVariable + "=" + roleNested, "BASE=" + s.base, "PATH=/usr/bin:/bin", raceOptions}
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

const (
	roleNested = "nested"
	roleInner  = "inner"
)

// nestedMain is an agent that starts an agent in its sandbox.
func nestedMain() int {
	s := stage{base: os.Getenv("BASE"), binary: os.Args[0]}
	launcher, err := Compile(with(func(p *Policy) { p.Enforcement = BestEffort }), s.layout(), Probe())
	if err != nil {
		os.Stdout.WriteString(err.Error())
		return 1
	}
	ended := make(chan struct{})
	pid, err := launcher.StartWatched(s.binary, []string{s.binary},
		&syscall.ProcAttr{Env: []string{roleVariable + "=" + roleInner, "BASE=" + s.base, "PATH=/usr/bin:/bin", raceOptions}, Files: []uintptr{0, 1, 2}},
		Watch{OnEnd: func() { close(ended) }})
	if err != nil {
		os.Stdout.WriteString(err.Error())
		return 1
	}
	var status syscall.WaitStatus
	_, err = syscall.Wait4(pid, &status, 0, nil)
	<-ended
	if err != nil || status.ExitStatus() != 0 {
		return 1
	}
	return 0
}

// innerMain complains about everything that is not as it has to be below another supervisor.
func innerMain() int {
	complain := func(what string) int {
		os.Stdout.WriteString(what)
		return 1
	}
	caps := Probe()
	if caps.UserNotify || !caps.NotifyTaken {
		return complain("the probe says that a supervisor can be had")
	}
	s := stage{base: os.Getenv("BASE")}
	for _, mode := range []NetworkMode{LoopbackNetwork, ProxyNetwork} {
		_, err := Compile(with(func(p *Policy) { p.Network.Mode = mode }), s.layout(), caps)
		if _, refused := errors.AsType[*NotEnforceableError](err); !refused {
			return complain(string(mode) + " needs a supervisor")
		}
	}
	launcher, err := Compile(with(func(p *Policy) { p.Enforcement = BestEffort }), s.layout(), caps)
	if err != nil {
		return complain(err.Error())
	}
	defer launcher.Close()
	report := launcher.Report()
	if report.Denials || !strings.Contains(strings.Join(report.Notes, ";"), "denials are not observed") {
		return complain("the report hides that denials are not observed")
	}
	told := 0
	ended := make(chan struct{})
	pid, err := launcher.StartWatched(os.Args[0], os.Args[:1],
		&syscall.ProcAttr{Env: []string{roleVariable + "=" + roleFlood, "CALLS=10", raceOptions}, Files: []uintptr{0, 1, 2}},
		Watch{OnDenial: func(Denial) { told++ }, OnEnd: func() { close(ended) }})
	if err != nil {
		return complain(err.Error())
	}
	var status syscall.WaitStatus
	_, err = syscall.Wait4(pid, &status, 0, nil)
	<-ended
	if err != nil || status.ExitStatus() != 0 || told > 0 {
		return complain("the filter alone does not refuse")
	}
	return 0
}

// BenchmarkRefusedCall is what a program waits for a refusal, from the filter alone and from the supervisor.
func BenchmarkRefusedCall(b *testing.B) {
	requireDenials(b)
	s := newStage(b, true)
	launcher := newTestLauncher(b, s)
	flood := func(b *testing.B, start startFunc) {
		b.Helper()
		environment := []string{roleVariable + "=" + roleFlood, "CALLS=" + itoa(b.N), raceOptions}
		pid, err := start(s.binary, []string{s.binary}, &syscall.ProcAttr{Env: environment, Files: []uintptr{0, 1, 2}})
		check(b, err)
		wait(b, pid)
	}
	b.Run("filter", func(b *testing.B) { flood(b, launcher.Start) })
	b.Run("supervisor", func(b *testing.B) {
		flood(b, func(argv0 string, argv []string, attr *syscall.ProcAttr) (int, error) {
			return launcher.StartWatched(argv0, argv, attr, Watch{OnDenial: func(Denial) {}})
		})
	})
}
