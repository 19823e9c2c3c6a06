package unifiedexec

import (
	"context"
	"errors"
	"os"
	osexec "os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestCloseEndsEverything(t *testing.T) {
	var mu sync.Mutex
	var events []string
	note := func(what string) func(Info) {
		return func(i Info) {
			mu.Lock()
			defer mu.Unlock()
			reason := ExitReason("")
			if i.Exit != nil {
				reason = i.Exit.Reason
			}
			events = append(events, what+" "+i.Command+" "+string(reason))
		}
	}
	e, err := New(Config{StopGrace: 300 * time.Millisecond, OnStart: note("start"), OnExit: note("exit")})
	if err != nil {
		t.Fatal(err)
	}
	polite := start(t, e, Command{Script: "trap 'exit 3' TERM; echo polite; sleep NAP & wait"})
	stubborn := start(t, e, Command{Script: "trap '' TERM HUP; echo stubborn; while :; do sleep NAP; done", TTY: true})
	awaitOutput(t, polite, "polite")
	awaitOutput(t, stubborn, "stubborn")
	if r := exec(t, e, Command{Script: "setsid sleep NAP >/dev/null 2>&1 & true"}, 30_000); r.Exit == nil {
		t.Fatalf("%+v", r)
	}
	if err := e.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if rec := waitExit(t, polite); rec.Reason != ReasonEngineStopped || rec.Code != 3 {
		t.Errorf("polite: %+v", rec)
	}
	if rec := waitExit(t, stubborn); rec.Reason != ReasonEngineStopped || rec.Signal != "SIGKILL" {
		t.Errorf("stubborn: %+v", rec)
	}
	if left := running(t, "sleep NAP"); len(left) > 0 {
		t.Errorf("%v still run", left)
	}
	if _, err := e.Start(testContext(t), Command{Script: "true"}); !errors.Is(err, ErrClosed) {
		t.Errorf("Start: %v", err)
	}
	if err := e.Close(testContext(t)); err != nil {
		t.Errorf("second Close: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(events, "\n"); len(events) != 6 || strings.Count(got, "EngineStopped") != 2 || strings.Count(got, "exit ") < 3 {
		t.Errorf("events:\n%s", got)
	}
}

// A command that was started in the moment of the end has done something, so that its end is told like the others'.
func TestStartWhileClosing(t *testing.T) {
	launched, closing := make(chan struct{}), make(chan struct{})
	e, err := New(Config{Settings: Settings{Start: func(argv0 string, argv []string, attr *syscall.ProcAttr) (int, error) {
		pid, err := syscall.ForkExec(argv0, argv, attr)
		close(launched)
		<-closing
		return pid, err
	}}})
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan Result, 1)
	go func() {
		defer close(results)
		result, err := e.ExecCommand(testContext(t), ExecCommandRequest{Command: Command{Argv: []string{"sleep", nap}}})
		if err != nil {
			t.Errorf("the command that was started: %v", err)
			return
		}
		results <- result
	}()
	<-launched
	closed := make(chan error, 1)
	go func() { closed <- e.Close(testContext(t)) }()
	isClosed := func() bool {
		e.table.mu.Lock()
		defer e.table.mu.Unlock()
		return e.table.closed
	}
	for ctx := testContext(t); !isClosed(); time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatal("the engine does not close")
		}
	}
	close(closing)
	if r := <-results; r.Exit == nil || r.Exit.Reason != ReasonEngineStopped || r.Exit.Message != engineStopped {
		t.Errorf("the record is %+v", r.Exit)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if left := running(t, "sleep NAP"); len(left) > 0 {
		t.Errorf("%v still run", left)
	}
}

// A context that ends makes Close kill at once.
func TestCloseInAHurry(t *testing.T) {
	e, err := New(Config{StopGrace: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, e, Command{Script: "trap '' TERM; echo deaf; sleep NAP; sleep NAP"})
	r := p.NewReader(ReaderOptions{})
	defer r.Close()
	if _, err := r.Next(testContext(t)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	if rec := waitExit(t, p); rec.Reason != ReasonEngineStopped || rec.Signal != "SIGKILL" {
		t.Errorf("record %+v", rec)
	}
}

func TestConfigureChangesLaterCommands(t *testing.T) {
	e := newEngine(t, Config{})
	if err := e.Configure(Settings{Workdir: "/usr", Shell: ShellSettings{Path: "/bin/sh", Login: LoginForbidden}}); err != nil {
		t.Fatal(err)
	}
	if r := exec(t, e, Command{Script: "pwd; echo $0"}, 30_000); r.Output != "/usr\n/bin/sh\n" {
		t.Errorf("%q", r.Output)
	}
	if err := e.Configure(Settings{Workdir: "relative"}); err == nil {
		t.Error("a bad setting was taken")
	}
	if r := exec(t, e, Command{Script: "pwd"}, 30_000); r.Output != "/usr\n" {
		t.Errorf("%q", r.Output)
	}
}

func TestSignal(t *testing.T) {
	e := newEngine(t, Config{})
	for _, tty := range []bool{false, true} {
		for name, want := range map[string]string{"TERM": "SIGTERM", "sigusr1": "SIGUSR1", "INT": "SIGINT", "9": "SIGKILL", "RTMIN+2": "SIGRTMIN+2"} {
			p := start(t, e, Command{Script: "echo up; exec sleep 300", TTY: tty})
			awaitOutput(t, p, "up")
			if err := p.Signal(name); err != nil {
				t.Fatal(err)
			}
			if rec := waitExit(t, p); rec.Signal != want || rec.Reason != ReasonSignaled {
				t.Errorf("tty=%v %s: %+v", tty, name, rec)
			}
			if err := p.Signal(name); err != nil {
				t.Errorf("after the end: %v", err)
			}
		}
	}
	p := start(t, e, Command{Script: "true"})
	var field *FieldError
	if err := p.Signal("WINK"); !errors.As(err, &field) || field.Field != "signal" || field.Value != "WINK" {
		t.Errorf("error %v", err)
	}
}

// A signal reaches who left the group and the session; a key does not.
func TestSignalReachesEveryDescendant(t *testing.T) {
	e := newEngine(t, Config{})
	for _, tty := range []bool{false, true} {
		p := start(t, e, Command{Script: "trap : INT; setsid sleep NAP & (setsid sh -c 'sleep NAP & wait' &); sleep 0.2; echo up; while :; do sleep NAP; done", TTY: tty})
		awaitOutput(t, p, "up")
		if err := p.Signal("INT"); err != nil {
			t.Fatal(err)
		}
		if left := running(t, "sleep NAP"); len(left) < 2 {
			t.Errorf("tty=%v: a key ended what is in other sessions: %v are left", tty, left)
		}
		if err := p.Signal("KILL"); err != nil {
			t.Fatal(err)
		}
		waitExit(t, p)
		for ctx := testContext(t); len(running(t, "sleep NAP")) > 0; time.Sleep(time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatalf("tty=%v: %v still run", tty, running(t, "sleep NAP"))
			}
		}
	}
}

func TestSignalNames(t *testing.T) {
	for name, want := range map[string]syscall.Signal{
		"9": syscall.SIGKILL, "1": syscall.SIGHUP, "64": 64, "33": 33, "int": syscall.SIGINT, "SIGCLD": syscall.SIGCHLD, "IOT": syscall.SIGABRT, "poll": syscall.SIGIO,
		"RTMIN": 34, "sigrtmin+1": 35, "RTMIN+30": 64, "RTMAX": 64, "SIGRTMAX-14": 50, "rtmax-30": 34,
	} {
		if got, err := parseSignal(name); err != nil || got != want {
			t.Errorf("%q is %d, %v, want %d", name, got, err, want)
		}
	}
	for _, name := range []string{"", "0", "65", "-1", "+9", "9.0", "09x", "SIG", "SIG9", "RTMIN+31", "RTMIN-1", "RTMAX+1", "RTMAX-31", "RTMIN+", "RTMIN+1x", "RTMIN++1", "NOPE"} {
		if got, err := parseSignal(name); err == nil {
			t.Errorf("%q is %d", name, got)
		}
	}
	for sig := syscall.Signal(1); sig <= lastRealTime; sig++ {
		name := signalName(sig)
		if got, err := parseSignal(name); (err != nil || got != sig) && sig != 32 && sig != 33 {
			t.Errorf("%d is called %q, which is %d, %v", sig, name, got, err)
		}
	}
}

func TestResize(t *testing.T) {
	e := newEngine(t, Config{})
	p := start(t, e, Command{Script: "trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.02; done", TTY: true, Size: Size{Rows: 40, Columns: 132}})
	r := p.NewReader(ReaderOptions{})
	defer r.Close()
	if c, err := r.Next(testContext(t)); err != nil || string(c.Data) != "40 132\r\n" {
		t.Fatalf("%q %v", c.Data, err)
	}
	if err := p.Resize(Size{Rows: 50, Columns: 200}); err != nil {
		t.Fatal(err)
	}
	if c, err := r.Next(testContext(t)); err != nil || string(c.Data) != "50 200\r\n" {
		t.Fatalf("%q %v", c.Data, err)
	}
	waitExit(t, p)
	if err := p.Resize(Size{Rows: 1, Columns: 1}); err == nil {
		t.Error("a terminal that is gone was resized")
	}
	if err := start(t, e, Command{Script: "true"}).Resize(Size{Rows: 1, Columns: 1}); !errors.Is(err, ErrNotTerminal) {
		t.Errorf("pipe: %v", err)
	}
}

// A program asks for input on a terminal, answers and ends.
func TestPythonOnTerminal(t *testing.T) {
	if _, err := osexec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	e := newEngine(t, Config{})
	p := launchTool(t, e, Command{Argv: []string{"python3", "-q"}, TTY: true}, ">>> ")
	converse(t, e, p.ID(), "print(6*7)\n", "42")
	if r := writeStdin(t, e, p.ID(), "exit()\n", 30_000); r.Exit == nil || r.Exit.Code != 0 {
		t.Errorf("%+v", r)
	}
}

func TestWriteGivesUpWithItsContext(t *testing.T) {
	e := newEngine(t, Config{})
	p := start(t, e, Command{Script: "sleep 2; wc -c", Stdin: StdinOpen})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	n, err := p.Write(ctx, make([]byte, 1<<20))
	if !errors.Is(err, context.DeadlineExceeded) || n <= 0 || n >= 1<<20 {
		t.Fatalf("Write = %d, %v", n, err)
	}
	if more, err := p.Write(testContext(t), make([]byte, 1000)); err != nil || more != 1000 {
		t.Fatalf("Write = %d, %v", more, err)
	}
	if err := p.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(readAll(t, p, ReaderOptions{}, 0)); got != itoa(n+1000) {
		t.Errorf("%q, want %d", got, n+1000)
	}
}

// The reaper needs a process of its own, because it takes exits from everybody else in it.
func TestReaperCollectsOrphans(t *testing.T) {
	if os.Getenv("UNIFIEDEXEC_REAPER") == "" {
		cmd := osexec.Command(os.Args[0], "-test.run=^TestReaperCollectsOrphans$", "-test.v")
		cmd.Env = append(os.Environ(), "UNIFIEDEXEC_REAPER=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	e := newEngine(t, Config{Subreaper: true, ReapOrphans: true})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 25 {
				script := "for i in 1 2 3; do (setsid sleep 0.0$i >/dev/null 2>&1 &) ; done; exit 7"
				p, err := e.Start(testContext(t), Command{Script: script, TTY: i%2 == 0})
				if err != nil {
					t.Error(err)
					return
				}
				if rec := waitExit(t, p); rec.Code != 7 {
					t.Errorf("record %+v", rec)
				}
			}
		})
	}
	wg.Wait()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		_, err := waitid(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.ECHILD) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("children are left: %v", err)
		}
	}
}
