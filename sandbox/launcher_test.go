package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newTestLauncher(tb testing.TB, s stage) *Launcher {
	tb.Helper()
	return newLauncherOn(tb, s, Probe())
}

func newLauncherOn(tb testing.TB, s stage, caps Capabilities) *Launcher {
	tb.Helper()
	policy := with(func(p *Policy) { p.Enforcement = BestEffort })
	launcher, err := Compile(policy, s.layout(), caps)
	check(tb, err)
	tb.Cleanup(func() { check(tb, launcher.Close()) })
	return launcher
}

func wait(tb testing.TB, pid int) syscall.WaitStatus {
	tb.Helper()
	var status syscall.WaitStatus
	_, err := syscall.Wait4(pid, &status, 0, nil)
	check(tb, err)
	return status
}

// TestStartErrors checks that what the program does wrong is a bare errno, never a SetupError.
func TestStartErrors(t *testing.T) {
	s := newStage(t, true)
	launcher := newTestLauncher(t, s)
	script := filepath.Join(s.base, "workspace/script")
	check(t, os.WriteFile(script, []byte("echo no interpreter\n"), 0o755))
	cases := map[string]struct {
		reason string
		argv0  string
		argv   []string
		dir    string
		want   syscall.Errno
	}{
		"missing":         {"nothing to execute", filepath.Join(s.base, "nothing"), nil, "", unix.ENOENT},
		"not executable":  {"the mode lacks x", filepath.Join(s.base, "outside/file"), nil, "", unix.EACCES},
		"folder":          {"a folder is no program", s.base, nil, "", unix.EACCES},
		"no interpreter":  {"a script without #!", script, nil, "", unix.ENOEXEC},
		"too long":        {"more arguments than the kernel takes", "/bin/true", []string{strings.Repeat("x", 1<<20)}, "", unix.E2BIG},
		"missing workdir": {"chdir happens in the child", "/bin/true", nil, filepath.Join(s.base, "nowhere"), unix.ENOENT},
		"not a folder":    {"path through a file", script + "/x", nil, "", unix.ENOTDIR},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := launcher.Start(c.argv0, append([]string{c.argv0}, c.argv...), &syscall.ProcAttr{Dir: c.dir})
			if errno, bare := err.(syscall.Errno); !bare || errno != c.want { //nolint:errorlint // the contract is a bare errno
				t.Errorf("%s: got %T %v, want %v", c.reason, err, err, c.want)
			}
		})
	}
}

func TestStartRefusesAttributes(t *testing.T) {
	launcher := newTestLauncher(t, newStage(t, true))
	cases := map[string]*syscall.SysProcAttr{
		"Pdeathsig":    {Pdeathsig: unix.SIGKILL},
		"Ptrace":       {Ptrace: true},
		"Chroot":       {Chroot: "/"},
		"Cloneflags":   {Cloneflags: unix.CLONE_NEWUSER},
		"Unshareflags": {Unshareflags: unix.CLONE_NEWNS},
		"UseCgroupFD":  {UseCgroupFD: true},
		"AmbientCaps":  {AmbientCaps: []uintptr{1}},
		"Credential":   {Credential: &syscall.Credential{}},
	}
	for name, attr := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := launcher.Start("/bin/true", []string{"true"}, &syscall.ProcAttr{Sys: attr})
			var setup *SetupError
			var field *FieldError
			if !errors.As(err, &setup) || setup.Stage != StageAttributes || !errors.As(err, &field) || field.Field != "attr.Sys."+name {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestStartAfterClose(t *testing.T) {
	launcher := newTestLauncher(t, newStage(t, true))
	check(t, launcher.Close())
	_, err := launcher.Start("/bin/true", []string{"true"}, nil)
	var setup *SetupError
	if !errors.As(err, &setup) || setup.Stage != StageLauncher || !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v, want a SetupError about a closed launcher", err)
	}
}

// TestStartStages breaks what a stage needs and expects its name.
func TestStartStages(t *testing.T) {
	requireABI(t, 1)
	s := newStage(t, true)
	cases := map[string]struct {
		damage func(*Launcher)
		stage  string
		want   syscall.Errno
	}{
		"rules":  {func(l *Launcher) { l.rules = []*ruleset{{fd: 1 << 20}} }, StageLandlock, unix.EBADF},
		"filter": {func(l *Launcher) { l.program = []unix.SockFilter{{Code: 0xFFFF}} }, StageSeccomp, unix.EINVAL},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			whole := newTestLauncher(t, s)
			broken := &Launcher{noNewPrivs: true, program: whole.program, rules: whole.rules}
			c.damage(broken)
			t.Cleanup(broken.threads.close) // its next thread reads the rules that it shares
			marker := filepath.Join(s.base, "tmp/marker")
			_, err := broken.Start("/bin/touch", []string{"touch", marker}, nil)
			var setup *SetupError
			if !errors.As(err, &setup) || setup.Stage != c.stage || !errors.Is(err, c.want) {
				t.Errorf("got %v, want stage %s and %v", err, c.stage, c.want)
			}
			if _, err := os.Stat(marker); err == nil {
				t.Error("the program ran without its sandbox")
			}
		})
	}
}

func TestStartPidFD(t *testing.T) {
	launcher := newTestLauncher(t, newStage(t, true))
	pidfd := -1
	pid, err := launcher.Start("/bin/sleep", []string{"sleep", "600"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{PidFD: &pidfd}})
	check(t, err)
	defer unix.Close(pidfd)
	check(t, launcher.Close())
	// The thread that started it is gone by now or soon; the process must not follow.
	if left := awaitUnfiltered(); left > 0 {
		t.Errorf("%d threads stayed confined", left)
	}
	ready, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 100)
	if err != nil || ready != 0 {
		t.Errorf("the process ended with the thread that started it: %d %v", ready, err)
	}
	check(t, unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0))
	if status := wait(t, pid); status.Signal() != unix.SIGKILL {
		t.Errorf("got %v", status)
	}
}

func TestStartConcurrently(t *testing.T) {
	launcher := newTestLauncher(t, newStage(t, true))
	var group sync.WaitGroup
	failures := make(chan error, 400)
	for i := range 20 {
		group.Go(func() {
			for range 20 {
				pid, err := launcher.Start("/bin/true", []string{"true"}, nil)
				if err == nil {
					var status syscall.WaitStatus
					_, err = syscall.Wait4(pid, &status, 0, nil)
				}
				if err != nil && !errors.Is(err, os.ErrClosed) {
					failures <- err
				}
			}
			if i == 0 {
				failures <- launcher.Close()
			}
		})
	}
	group.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			t.Error(err)
		}
	}
	if left := awaitUnfiltered(); left > 0 {
		t.Errorf("%d threads stayed confined", left)
	}
}

// unpinnedMain starts many processes without holding the main thread, so that starts land on it.
func unpinnedMain() int {
	policy := with(func(p *Policy) { p.Enforcement = BestEffort })
	launcher, err := Compile(policy, Layout{Workspace: os.Getenv("BASE")}, Probe())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer launcher.Close()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 25 {
				pid, err := launcher.Start("/bin/true", []string{"true"}, nil)
				if err != nil {
					fmt.Println(err)
					return
				}
				_, _ = syscall.Wait4(pid, nil, 0, nil)
			}
		})
	}
	group.Wait()
	if err := launcher.Close(); err != nil {
		fmt.Println(err)
		return 1
	}
	if left := awaitUnfiltered(); left > 0 {
		fmt.Printf("%d threads stayed confined\n", left)
		return 1
	}
	return 0
}

func TestMainThreadIsNeverConfined(t *testing.T) {
	s := newStage(t, true)
	for range 5 {
		cmd := exec.CommandContext(t.Context(), s.binary)
		cmd.Env = []string{raceOptions, roleVariable + "=" + roleUnpinned, "BASE=" + s.base}
		out, err := cmd.CombinedOutput()
		if err != nil || len(bytes.TrimSpace(out)) > 0 {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// TestDeniedSyscalls denies everything that may be denied: starting must still end in an answer.
func TestDeniedSyscalls(t *testing.T) {
	requireABI(t, 1)
	s := newStage(t, true)
	policy := with(func(p *Policy) { p.Enforcement = BestEffort })
	for name := range syscalls {
		if (Process{DeniedSyscalls: []string{name}}).validate() == nil {
			policy.Process.DeniedSyscalls = append(policy.Process.DeniedSyscalls, name)
		}
	}
	launcher, err := Compile(policy, s.layout(), Probe())
	check(t, err)
	defer launcher.Close()
	for range 20 {
		answered := make(chan error, 1)
		go func() { // ends with the start; the test fails if it does not
			pid, err := launcher.Start("/bin/true", []string{"true"}, nil)
			if err == nil {
				_, err = syscall.Wait4(pid, nil, 0, nil)
			}
			answered <- err
		}()
		select {
		case err := <-answered:
			check(t, err)
		case <-time.After(deadline):
			t.Fatal("starting hangs")
		}
	}
}

func BenchmarkStart(b *testing.B) {
	s := newStage(b, true)
	launcher := newTestLauncher(b, s)
	variants := []struct {
		name  string
		start startFunc
	}{{"bare", syscall.ForkExec}, {"sandboxed", launcher.Start}, {"watched", func(argv0 string, argv []string, attr *syscall.ProcAttr) (int, error) {
		return launcher.StartWatched(argv0, argv, attr, Watch{OnDenial: func(Denial) {}})
	}}, {"limited", newLimitedLauncher(b, s, map[string]uint64{"nofile": 512, "fsize": 1 << 30}).Start}}
	for _, variant := range variants {
		b.Run(variant.name, func(b *testing.B) {
			for b.Loop() {
				pid, err := variant.start("/bin/true", []string{"true"}, &syscall.ProcAttr{})
				check(b, err)
				wait(b, pid)
			}
		})
	}
}
