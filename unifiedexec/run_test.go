package unifiedexec

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestRunKeepsStreamsApart(t *testing.T) {
	e := newEngine(t, Config{})
	r, err := e.Run(testContext(t), RunRequest{Command: Command{Script: "echo out; echo err >&2; exit 3"}})
	if err != nil || r.Code != 3 || string(r.Stdout) != "out\n" || string(r.Stderr) != "err\n" || r.TimedOut || r.Exit.Reason != ReasonExited {
		t.Errorf("%+v %v", r, err)
	}
	// stderr drains with stdout silent.
	r, err = e.Run(testContext(t), RunRequest{Command: Command{Script: "head -c 300000 /dev/zero >&2", Timeout: patience}})
	if err != nil || len(r.Stdout) != 0 || len(r.Stderr) != 300_000 {
		t.Errorf("%d %d %v", len(r.Stdout), len(r.Stderr), err)
	}
}

func TestRunCapsEachStreamAndKeepsDraining(t *testing.T) {
	e := newEngine(t, Config{})
	script := "head -c 3000000 /dev/zero; head -c 2000000 /dev/zero >&2"
	r, err := e.Run(testContext(t), RunRequest{Command: Command{Script: script, Timeout: patience}})
	if err != nil || r.Code != 0 || len(r.Stdout) != 1<<20 || len(r.Stderr) != 1<<20 || r.StdoutBytes != 3_000_000 || r.StderrBytes != 2_000_000 {
		t.Errorf("%d of %d, %d of %d, %v", len(r.Stdout), r.StdoutBytes, len(r.Stderr), r.StderrBytes, err)
	}
	r, err = e.Run(testContext(t), RunRequest{Command: Command{Script: script, Timeout: patience}, StreamBytes: -1})
	if err != nil || len(r.Stdout) != 3_000_000 || len(r.Stderr) != 2_000_000 {
		t.Errorf("no cap: %d, %d, %v", len(r.Stdout), len(r.Stderr), err)
	}
}

func TestRunTimeoutKillsGrandchildren(t *testing.T) {
	e := newEngine(t, Config{StopGrace: 300 * time.Millisecond})
	r, err := e.Run(testContext(t), RunRequest{Command: Command{Script: "echo begun; sleep NAP & echo $!; sleep NAP", Timeout: 2 * time.Second}.named()})
	if err != nil || r.Code != 124 || !r.TimedOut || r.Exit.Reason != ReasonTimedOut || !strings.HasPrefix(string(r.Stdout), "begun\n") {
		t.Errorf("%+v %v", r, err)
	}
	if left := running(t, "sleep NAP"); len(left) > 0 {
		t.Errorf("%v still run", left)
	}
}

func TestRunCancelledCleansUp(t *testing.T) {
	e := newEngine(t, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	mark := filepath.Join(t.TempDir(), "cleaned")
	_, err := e.Run(ctx, RunRequest{Command: Command{Script: "trap 'echo yes >" + mark + "; exit' TERM; sleep 300 & wait", Timeout: patience}})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Errorf("the trap did not run: %v", err)
	}
}

func TestRunDoesNotWaitForASurvivor(t *testing.T) {
	e := newEngine(t, Config{})
	r, err := e.Run(testContext(t), RunRequest{Command: Command{Script: "sleep 300 & echo started", Timeout: patience}})
	if err != nil || string(r.Stdout) != "started\n" || r.Code != 0 || r.WallTime > 20*time.Second {
		t.Errorf("%+v %v", r, err)
	}
}

// No cap and no timeout, and still no waiting for a descendant that holds a pipe.
func TestRunWithoutLimits(t *testing.T) {
	e := newEngine(t, Config{})
	r, err := e.Run(testContext(t), RunRequest{Command: Command{Script: "sleep 300 & head -c 2000000 /dev/zero; sleep 11"}, NoTimeout: true, StreamBytes: -1})
	if err != nil || len(r.Stdout) != 2_000_000 || r.TimedOut || r.Code != 0 {
		t.Errorf("%d bytes, %+v %v", len(r.Stdout), r.Exit, err)
	}
}

func TestAggregate(t *testing.T) {
	cases := map[string]struct {
		reason         string
		stdout, stderr int
		limit          int
		want           string
	}{
		"Fits":        {"plain order under the cap", 3, 4, 7, "oooeeee"},
		"Contention":  {"stderr is preferred", 100, 100, 9, "oooeeeeee"},
		"SmallStderr": {"what stderr does not need is stdout's", 100, 2, 9, "oooooooee"},
		"SmallStdout": {"what stdout does not need is stderr's", 1, 100, 9, "oeeeeeeee"},
		"Uncapped":    {"no cap keeps all", 3, 4, -1, "oooeeee"},
		"Zero":        {"nothing is nothing", 3, 4, 0, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := RunResult{Stdout: []byte(strings.Repeat("o", tc.stdout)), Stderr: []byte(strings.Repeat("e", tc.stderr))}
			if got := string(r.Aggregate(tc.limit)); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestOneShot(t *testing.T) {
	e := newEngine(t, Config{StopGrace: 300 * time.Millisecond})
	r, err := e.ExecOneShot(testContext(t), Command{Script: "echo a; exit 2", Timeout: patience}, nil)
	if err != nil || r.Exit == nil || r.Exit.Code != 2 || r.ProcessID != 0 || r.Output != "a\n" {
		t.Errorf("%+v %v", r, err)
	}
	r, err = e.ExecOneShot(testContext(t), Command{Script: "echo begun; sleep 300", Timeout: 2 * time.Second}, nil)
	if err != nil || r.Exit == nil || r.Exit.Reason != ReasonTimedOut || r.ProcessID != 0 || r.Output != "begun\n" {
		t.Errorf("timeout: %+v %v", r, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err = e.ExecOneShot(ctx, Command{Script: "sleep NAP", Timeout: patience}.named(), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancel: %v", err)
	}
	if left := running(t, "sleep NAP"); len(left) > 0 {
		t.Errorf("%v still run", left)
	}
	var field *FieldError
	for _, c := range []Command{{Script: "x", TTY: true}, {Script: "x", Stdin: StdinOpen}} {
		if _, err = e.ExecOneShot(testContext(t), c, nil); !errors.As(err, &field) {
			t.Errorf("%+v: %v", c, err)
		}
		if _, err = e.Run(testContext(t), RunRequest{Command: c}); !errors.As(err, &field) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Nobody could come back to a one-shot command, so an interrupt ends it with its call, and a pause prolongs its life.
func TestOneShotIsInterruptedAndPaused(t *testing.T) {
	e := newEngine(t, Config{StopGrace: 300 * time.Millisecond})
	var wg sync.WaitGroup
	wg.Go(func() {
		for len(e.List()) == 0 || e.Interrupt() == 0 {
			time.Sleep(20 * time.Millisecond)
		}
	})
	r, err := e.ExecOneShot(testContext(t), Command{Script: "echo begun; sleep NAP", Timeout: patience}.named(), nil)
	wg.Wait()
	if err != nil || r.Exit == nil || r.Exit.Reason != ReasonStopped || !strings.Contains(r.Exit.Message, "interrupted") {
		t.Errorf("%+v %v", r, err)
	}
	if left := running(t, "sleep NAP"); len(left) > 0 {
		t.Errorf("%v still run", left)
	}
	resume := e.Pause()
	wg.Go(func() {
		time.Sleep(2 * time.Second)
		resume()
	})
	r, err = e.ExecOneShot(testContext(t), Command{Script: "sleep 1; echo done", Timeout: 500 * time.Millisecond}, nil)
	wg.Wait()
	if err != nil || r.Exit == nil || r.Exit.Reason != ReasonExited || r.Output != "done\n" {
		t.Errorf("paused: %+v %v", r, err)
	}
}

// A buffered run is no different.
func TestRunIsInterrupted(t *testing.T) {
	e := newEngine(t, Config{StopGrace: 300 * time.Millisecond})
	var wg sync.WaitGroup
	wg.Go(func() {
		awaitOutput(t, awaitProcess(t, e), "begun")
		if n := e.Interrupt(); n != 1 {
			t.Errorf("%d waits ended, want the run's", n)
		}
	})
	r, err := e.Run(testContext(t), RunRequest{Command: Command{Script: "echo begun; sleep NAP & sleep NAP", Timeout: patience}.named()})
	wg.Wait()
	if err != nil || r.TimedOut || r.Exit.Reason != ReasonStopped || r.Exit.Message != callInterrupted || string(r.Stdout) != "begun\n" {
		t.Errorf("%+v %v", r, err)
	}
	if left := running(t, "sleep NAP"); len(left) > 0 {
		t.Errorf("%v still run", left)
	}
}

// A call that waits for the call before it ends too, has done nothing, and the command is as it was.
func TestInterruptEndsQueuedCalls(t *testing.T) {
	e := newEngine(t, Config{})
	p := launchTool(t, e, Command{Script: "echo up; while read -r line; do echo \"<$line>\"; done", Stdin: StdinOpen}, "up")
	var wg sync.WaitGroup
	wg.Go(func() { writeStdin(t, e, p.ID(), "one\n", 30_000) })
	awaitOutput(t, p, "<one>")
	for _, chars := range []string{"two\n", ""} {
		wg.Go(func() {
			r := writeStdin(t, e, p.ID(), chars, 30_000)
			if r.ProcessID != p.ID() || r.Output != "" || len(r.Notices) != 1 || !strings.Contains(r.Notices[0], "nothing was read or written") {
				t.Errorf("the call that queued with %q gave %+v", chars, r)
			}
		})
	}
	active := func() int {
		e.waits.mu.Lock()
		defer e.waits.mu.Unlock()
		return e.waits.active
	}
	for deadline := time.Now().Add(patience); active() < 3 && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	if n := e.Interrupt(); n != 3 {
		t.Errorf("%d waits ended, want 3", n)
	}
	if n := e.Interrupt(); n != 0 {
		t.Errorf("%d waits ended twice", n)
	}
	wg.Wait()
	if got := converse(t, e, p.ID(), "three\n", "<three>"); strings.Contains(got, "two") {
		t.Errorf("the interrupted call's input was written: %q", got)
	}
}

// The end of a turn ends its waits; the processes go on.
func TestInterruptEndsWaitsOnly(t *testing.T) {
	e := newEngine(t, Config{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for e.Interrupt() == 0 {
			time.Sleep(20 * time.Millisecond)
		}
	})
	r := exec(t, e, Command{Script: "read go; echo went", Stdin: StdinOpen}, 30_000)
	wg.Wait()
	if r.Exit != nil || r.ProcessID == 0 || len(r.Notices) != 1 || r.WallTime > 25*time.Second {
		t.Fatalf("%+v", r)
	}
	if r = writeStdin(t, e, r.ProcessID, "go\n", 30_000); r.Output != "went\n" {
		t.Errorf("%+v", r)
	}
}

// A pause extends the wait instead of consuming it.
func TestPauseStopsTheClock(t *testing.T) {
	w := newWaits()
	e := &Engine{waits: w}
	first, second := e.Pause(), e.Pause()
	var wg sync.WaitGroup
	wg.Go(func() {
		time.Sleep(600 * time.Millisecond)
		first()
		first()
		time.Sleep(600 * time.Millisecond)
		second()
	})
	began := time.Now()
	interrupted, err := w.begin().until(testContext(t), nil, 500*time.Millisecond)
	if took := time.Since(began); interrupted || err != nil || took < 1600*time.Millisecond {
		t.Errorf("%v %v after %s", interrupted, err, took)
	}
	wg.Wait()
	began = time.Now()
	if _, err := w.begin().until(testContext(t), nil, 300*time.Millisecond); err != nil || time.Since(began) < 300*time.Millisecond {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	defer e.Pause()()
	done := make(chan struct{})
	close(done)
	if _, err := w.begin().until(testContext(t), done, time.Millisecond); err != nil {
		t.Error("a paused wait does not end with its process")
	}
}

// A command's own life stands still too while a human is being asked, however it was started.
func TestPauseStopsTheLivesOfCommands(t *testing.T) {
	e := newEngine(t, Config{})
	c := Command{Script: "sleep 1.5; echo done", Timeout: 500 * time.Millisecond}
	resume := e.Pause()
	var wg sync.WaitGroup
	wg.Go(func() {
		if r := exec(t, e, c, 30_000); r.Output != "done\n" {
			t.Errorf("the tool's command: %+v %+v", r, r.Exit)
		}
	})
	wg.Go(func() {
		if rec := waitExit(t, start(t, e, c)); rec.Reason != ReasonExited {
			t.Errorf("a started one: %+v", rec)
		}
	})
	wg.Go(func() {
		if r, err := e.Run(testContext(t), RunRequest{Command: c}); err != nil || r.TimedOut || string(r.Stdout) != "done\n" {
			t.Errorf("a run: %+v %v", r, err)
		}
	})
	wg.Wait()
	p := start(t, e, Command{Script: "exec sleep 300", Timeout: 100 * time.Millisecond})
	resume()
	if rec := waitExit(t, p); rec.Reason != ReasonTimedOut {
		t.Errorf("after the pause: %+v", rec)
	}
}

func TestOutOfMemory(t *testing.T) {
	events := filepath.Join(t.TempDir(), "memory.events")
	write := func(n string) {
		if err := os.WriteFile(events, []byte("low 0\nhigh 0\nmax 7\noom 3\noom_kill "+n+"\noom_group_kill 0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("4")
	e := newEngine(t, Config{MemoryEvents: events})
	if rec := waitExit(t, start(t, e, Command{Script: "kill -KILL $$"})); rec.Reason != ReasonSignaled {
		t.Errorf("nothing happened: %+v", rec)
	}
	p := start(t, e, Command{Script: "exec sleep 300"})
	write("5")
	if err := unix.Kill(p.Info().PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if rec := waitExit(t, p); rec.Reason != ReasonOutOfMemory || rec.Code != 137 {
		t.Errorf("killed: %+v", rec)
	}
	p = start(t, e, Command{Script: "exec sleep 300"})
	write("6")
	if rec, _, err := p.Stop(testContext(t), 0); err != nil || rec.Reason != ReasonStopped {
		t.Errorf("stopped: %+v %v", rec, err)
	}
}

func TestOOMKills(t *testing.T) {
	cases := map[string]struct {
		reason, text string
		want         uint64
	}{
		"Unified": {"memory.events", "low 0\nhigh 0\nmax 7\noom 3\noom_kill 4\noom_group_kill 5\n", 4},
		"Older":   {"memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 12\n", 12},
		"First":   {"in any order", "oom_kill 3\nlow 1\n", 3},
		"Unended": {"the last line may lack its end", "low 1\noom_kill 30", 30},
		"Silent":  {"an old kernel does not count", "oom_kill_disable 1\nunder_oom 0\n", 0},
		"Group":   {"another counter", "oom_group_kill 5\ngroup_oom_kill 5\n", 0},
		"Empty":   {"nothing", "", 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			events := filepath.Join(t.TempDir(), "events")
			if err := os.WriteFile(events, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if n := newEngine(t, Config{MemoryEvents: events}).oomKills(); n != tc.want {
				t.Errorf("%s: %d, want %d", tc.reason, n, tc.want)
			}
		})
	}
	if n := newEngine(t, Config{MemoryEvents: "/nowhere"}).oomKills(); n != 0 {
		t.Errorf("without a file: %d", n)
	}
}

func TestOOMScore(t *testing.T) {
	e := newEngine(t, Config{OOMScoreAdj: 500})
	p := start(t, e, Command{Script: "read go; cat /proc/self/oom_score_adj", Stdin: StdinOpen})
	if _, err := p.Write(testContext(t), []byte("go\n")); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, p, ReaderOptions{}, 0); got != "500\n" {
		t.Errorf("%q", got)
	}
}
