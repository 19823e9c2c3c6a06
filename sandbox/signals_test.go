package sandbox

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const roleSignals = "signals"

// signalsMain signals as WHOM says: CALLS times, or for ever.
func signalsMain() int {
	child := exec.Command("sleep", "600")
	if err := child.Start(); err != nil {
		os.Stdout.WriteString(err.Error())
		return 1
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	agent := os.Getppid()
	signalOnce := map[string]func() error{
		"itself": func() error { return unix.Kill(os.Getpid(), 0) },
		"child":  func() error { return unix.Kill(child.Process.Pid, 0) },
		"group":  func() error { return unix.Kill(-unix.Getpgrp(), 0) },
		"agent":  func() error { return preemptAll(agent) },
	}[os.Getenv("WHOM")]
	for calls := atoi(os.Getenv("CALLS")); calls != 0; calls-- {
		if err := signalOnce(); err != nil {
			os.Stdout.WriteString(err.Error())
			return 1
		}
	}
	return 0
}

// preemptAll sends all threads of a process the one signal that passes. Some end meanwhile.
func preemptAll(process int) error {
	entries, err := os.ReadDir("/proc/" + itoa(process) + "/task")
	if err != nil {
		return err
	}
	for range 1000 {
		for _, entry := range entries {
			if err := unix.Tgkill(process, atoi(entry.Name()), unix.SIGURG); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}

// olderKernel is Linux 6.1 as far as this kernel can stand for it.
func olderKernel(tb testing.TB) Capabilities {
	tb.Helper()
	requireDenials(tb)
	caps := Probe()
	caps.LandlockABI = min(caps.LandlockABI, 2)
	return caps
}

// TestAgentUnderPreemption: below ABI 6 a command may send the agent the signal by which Go preempts threads. Even without a
// pause, and to all threads, it keeps the agent from nothing.
func TestAgentUnderPreemption(t *testing.T) {
	s := newStage(t, true)
	launcher := newLauncherOn(t, s, olderKernel(t))
	ended := make(chan struct{})
	environment := []string{roleVariable + "=" + roleSignals, "WHOM=agent", "CALLS=-1", "PATH=/usr/bin:/bin", raceOptions}
	pid, err := launcher.StartWatched(s.binary, []string{s.binary},
		&syscall.ProcAttr{Env: environment, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}}, Watch{OnEnd: func() { close(ended) }})
	check(t, err)
	var slowest time.Duration
	began := time.Now()
	const commands = 50
	for range commands {
		before := time.Now()
		if status, _ := watchOne(t, launcher, []string{"/bin/true"}); status.ExitStatus() != 0 {
			t.Fatalf("a command ended with %v", status)
		}
		slowest = max(slowest, time.Since(before))
	}
	t.Logf("%d commands in %v, the slowest in %v", commands, time.Since(began), slowest)
	check(t, unix.Kill(-pid, unix.SIGKILL))
	if status := wait(t, pid); status.Signal() != unix.SIGKILL {
		t.Errorf("the command that preempts ended by itself with %v", status)
	}
	<-ended
}

// TestStartMarks: each start has a mark of its own, that of whoever gave it one before, or else one that nothing else has.
func TestStartMarks(t *testing.T) {
	m := newStartMarks()
	seen := make(map[uint64]bool)
	start := func() (has uint64) {
		mark, end := m.start(func() started {
			limit, err := lockLimit(0)
			check(t, err)
			has = limit
			return started{pid: 1, listener: -1}
		})
		if end.err != nil || end.pid != 1 || mark != has || seen[mark] {
			t.Errorf("a start got the mark %d, has %d, and ended with %+v", mark, has, end)
		}
		seen[mark] = true
		return has
	}
	for range 3 {
		mark := start()
		if after, err := lockLimit(0); err != nil || after >= mark {
			t.Errorf("after a start with %d this process has %d, %v", mark, after, err)
		}
	}
	before, err := lockLimit(0)
	check(t, err)
	given := before - 10
	check(t, unix.Prlimit(0, unix.RLIMIT_LOCKS, &unix.Rlimit{Cur: given, Max: given}, nil))
	if mark := start(); mark != given {
		t.Errorf("a start under the mark %d got %d", given, mark)
	}
	if after, err := lockLimit(0); err != nil || after != given {
		t.Errorf("another's mark %d became %d, %v", given, after, err)
	}
	start() // nobody gave a new one
	exhausted := &startMarks{}
	_, end := exhausted.start(func() started { t.Error("it started without a mark"); return started{} })
	var setup *SetupError
	if !errors.As(end.err, &setup) || setup.Stage != StageMark {
		t.Errorf("without marks a start ends with %v", end.err)
	}
}

// TestSignalsOfUnwatchedStarts: who does not want to know of denials has the wall all the same, without a session of its own too.
func TestSignalsOfUnwatchedStarts(t *testing.T) {
	launcher := newLauncherOn(t, newStage(t, true), olderKernel(t))
	other, err := launcher.Start("/bin/sleep", []string{"sleep", "600"}, nil)
	check(t, err)
	script := `kill -KILL ` + itoa(other) + ` && exit 1; kill -KILL ` + itoa(os.Getpid()) + ` && exit 2
		trap 'exit 7' TERM; kill 0; exit 3`
	pid, err := launcher.Start("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{Env: []string{"PATH=/usr/bin:/bin"}, Files: []uintptr{0, 1, 2}})
	check(t, err)
	if status := wait(t, pid); status.ExitStatus() != 7 {
		t.Errorf("the shell ended with %v", status)
	}
	check(t, unix.Kill(other, unix.SIGALRM))
	if status := wait(t, other); status.Signal() != unix.SIGALRM {
		t.Errorf("the other command ended with %v", status)
	}
}

// BenchmarkSignal is what one kill takes, by Landlock and by the supervisor that stands in for it.
func BenchmarkSignal(b *testing.B) {
	s := newStage(b, true)
	for name, caps := range map[string]Capabilities{"Landlock": Probe(), "supervisor": olderKernel(b)} {
		launcher := newLauncherOn(b, s, caps)
		for _, whom := range []string{"itself", "child", "group"} {
			b.Run(name+"/"+whom, func(b *testing.B) {
				environment := []string{roleVariable + "=" + roleSignals, "WHOM=" + whom, "CALLS=" + itoa(b.N), "PATH=/usr/bin:/bin", raceOptions}
				pid, err := launcher.StartWatched(s.binary, []string{s.binary},
					&syscall.ProcAttr{Env: environment, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}}, Watch{})
				check(b, err)
				if status := wait(b, pid); status.ExitStatus() != 0 {
					b.Fatalf("it ended with %v", status)
				}
			})
		}
	}
}
