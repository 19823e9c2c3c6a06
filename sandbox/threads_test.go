package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	roleLimited = "limited"
	// lonelyUID has no other process, so that a limit on its processes counts only what the test starts.
	lonelyUID = 64321
	taskLimit = 80
)

// TestTaskLimit fills the limit of tasks as a fork bomb does and goes on starting: each start has to be an error, and
// the next one works as soon as there is room. Without the reserve, or with threads that do not wait for the next start,
// Go ends the program here.
func TestTaskLimit(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: the limit counts all processes of a user, so the test takes one of its own")
	}
	s := newStage(t, true)
	cmd := exec.CommandContext(t.Context(), s.binary)
	cmd.Env = []string{roleVariable + "=" + roleLimited, "STAGE=" + s.base, "PATH=/usr/bin:/bin", raceOptions}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: lonelyUID, Gid: lonelyUID}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, bytes.TrimSpace(out))
	}
	t.Logf("%s", bytes.TrimSpace(out))
}

func limitedMain() int {
	if err := startAtTheLimit(stage{base: os.Getenv("STAGE")}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func startAtTheLimit(s stage) error {
	ReserveThreads(24)
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: taskLimit, Max: taskLimit}); err != nil {
		return err
	}
	policy := with(func(p *Policy) { p.Enforcement = BestEffort })
	launcher, err := Compile(policy, s.layout(), Probe())
	if err != nil {
		return err
	}
	defer func() { _ = launcher.Close() }()
	for range 40 {
		if err := runTrue(launcher); err != nil {
			return fmt.Errorf("with room: %w", err)
		}
	}
	// The main goroutine keeps its thread, so they end with this process, however it ends.
	var fillers []int
	for {
		pid, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "600"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}})
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			return err
		}
		fillers = append(fillers, pid)
	}
	refused, err := startMany(launcher)
	if err != nil {
		return err
	}
	for _, pid := range fillers {
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	}
	for range 40 {
		if err := runTrue(launcher); err != nil {
			return fmt.Errorf("with room again: %w", err)
		}
	}
	fmt.Printf("%d processes filled the limit of %d, %d starts were refused\n", len(fillers), taskLimit, refused)
	return nil
}

// startMany starts 800 processes, 8 at a time, and counts those that were refused for want of a task. A start that finds
// the task of one that just ended is as good.
func startMany(launcher *Launcher) (refused int, err error) {
	var starters sync.WaitGroup
	results := make(chan error, 800)
	for range 8 {
		starters.Go(func() {
			for range 100 {
				results <- runTrue(launcher)
			}
		})
	}
	starters.Wait()
	close(results)
	for result := range results {
		switch {
		case result == syscall.EAGAIN: //nolint:errorlint // the contract is a bare errno
			refused++
		case result != nil:
			return refused, fmt.Errorf("at the limit: %w", result)
		}
	}
	if refused == 0 {
		return 0, errors.New("the limit was never met")
	}
	return refused, nil
}

func runTrue(launcher *Launcher) error {
	pid, err := launcher.Start("/bin/true", []string{"true"}, &syscall.ProcAttr{})
	if err != nil {
		return err
	}
	_, err = syscall.Wait4(pid, nil, 0, nil)
	return err
}

func (t *threads) waits() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waitingLocked(false) >= 0
}

// A thread that is confined starts one process; one that nothing confines starts them all.
func TestThreadsServeAgain(t *testing.T) {
	for name, c := range map[string]struct {
		again bool
		want  int64
	}{
		"Confined":   {false, 10},
		"Unconfined": {true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			threads := threads{again: c.again}
			var confined atomic.Int64
			for range 10 {
				end := threads.start(start{argv0: "/bin/true", argv: []string{"true"}, result: make(chan started, 1)}, false, func(bool) (int, error) {
					confined.Add(1)
					return -1, nil
				})
				check(t, end.err)
				wait(t, end.pid)
				for end := time.Now().Add(deadline); !threads.waits(); time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatal("no thread waits for the next start")
					}
				}
			}
			threads.close()
			if got := confined.Load(); got < c.want || got > c.want+1 {
				t.Errorf("%d threads were made, want %d and perhaps the next", got, c.want)
			}
		})
	}
}

// A start takes the thread that is on its way, unless another start waits for it, and makes one if that one fails.
func TestStartsWaitForTheThreadThatComes(t *testing.T) {
	for name, c := range map[string]struct {
		comes error
		want  int64
	}{
		"It comes": {nil, 2},
		"It fails": {syscall.EPERM, 3},
	} {
		t.Run(name, func(t *testing.T) {
			var threads threads
			var confined atomic.Int64
			comes, come := make(chan struct{}), make(chan struct{})
			confine := func(bool) (int, error) {
				if confined.Add(1) == 1 {
					close(comes)
					<-come
					return -1, c.comes
				}
				return -1, nil
			}
			threads.prepare(false, confine)
			<-comes
			ends := make(chan started, 2)
			for range cap(ends) {
				go func() {
					ends <- threads.start(start{argv0: "/bin/true", argv: []string{"true"}, result: make(chan started, 1)}, false, confine)
				}()
			}
			first := <-ends // the one that nothing comes for
			select {
			case <-ends:
				t.Error("both starts made a thread")
			default:
			}
			close(come)
			for _, end := range []started{first, <-ends} {
				check(t, end.err)
				wait(t, end.pid)
			}
			if got := confined.Load(); got < c.want || got > c.want+1 {
				t.Errorf("%d threads were made, want %d and perhaps the next", got, c.want)
			}
			threads.close()
		})
	}
}
