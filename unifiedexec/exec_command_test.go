package unifiedexec

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestResultOfFinishedCommand(t *testing.T) {
	e := newEngine(t, Config{})
	r := exec(t, e, Command{Script: "printf 12345; exit 3"}, 30_000)
	if !regexp.MustCompile(`^[0-9a-f]{6}$`).MatchString(r.ChunkID) {
		t.Errorf("chunk id %q", r.ChunkID)
	}
	if r.Exit == nil || r.Exit.Code != 3 || r.ProcessID != 0 || r.Output != "12345" || r.OriginalTokenCount != 2 || r.WallTime <= 0 {
		t.Errorf("result %+v", r)
	}
	if len(r.Notices) != 0 {
		t.Errorf("notices %q", r.Notices)
	}
}

// An early exit ends the wait before the yield time.
func TestEarlyExitEndsTheWait(t *testing.T) {
	e := newEngine(t, Config{})
	if r := exec(t, e, Command{Script: "true"}, 30_000); r.WallTime > 20*time.Second {
		t.Errorf("waited %s", r.WallTime)
	}
}

// Too short a yield returns what there is; a later poll returns the rest and the end, and the next one nothing.
func TestShortYieldThenPoll(t *testing.T) {
	for _, tty := range []bool{false, true} {
		e := newEngine(t, Config{})
		r := exec(t, e, Command{Script: "printf early; sleep 5; printf late", TTY: tty}, 10)
		if r.ProcessID < firstID || r.ProcessID > lastID || r.Exit != nil || strings.Contains(r.Output, "late") {
			t.Fatalf("first result %+v", r)
		}
		id, first := r.ProcessID, r.Output
		if r = writeStdin(t, e, id, "", 30_000); r.Exit == nil || r.Exit.Code != 0 || r.ProcessID != 0 || first+r.Output != "earlylate" {
			t.Fatalf("second result %+v after %q", r, first)
		}
		_, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: id})
		var unknown *UnknownProcessError
		if !errors.As(err, &unknown) || unknown.ID != id || !errors.Is(err, ErrUnknownProcess) {
			t.Errorf("third call: %v", err)
		}
		if p, err := e.Process(id); err != nil || readAll(t, p, ReaderOptions{}, 0) != "earlylate" {
			t.Errorf("the output is still readable: %v", err)
		}
	}
}

func TestClampsAreTold(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{MaxOutputTokens: 500}}})
	millis := func(n int64) *int64 { return &n }
	cases := map[string]struct {
		yield  *int64
		tokens *int64
		want   string
	}{
		"Low":     {yield: millis(1), want: "yield_time_ms 1 was changed to 250; it must be from 250 to 30000 here"},
		"High":    {yield: millis(3_600_000), want: "yield_time_ms 3600000 was changed to 30000; it must be from 250 to 30000 here"},
		"Highest": {yield: millis(1<<63 - 1), want: "yield_time_ms 9223372036854775807 was changed to 30000; it must be from 250 to 30000 here"},
		"Fits":    {yield: millis(300)},
		"Unset":   {},
		"Tokens":  {tokens: millis(501), want: "max_output_tokens 501 was changed to 500, the most that is allowed"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r, err := e.ExecCommand(testContext(t), ExecCommandRequest{Command: Command{Script: "true"}, YieldTimeMS: tc.yield, MaxOutputTokens: tc.tokens})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r.Notices, "; "); got != tc.want {
				t.Errorf("notices %q, want %q", got, tc.want)
			}
		})
	}
	for _, bad := range []ExecCommandRequest{
		{Command: Command{Script: "true"}, YieldTimeMS: millis(-1)},
		{Command: Command{Script: "true"}, MaxOutputTokens: millis(-1)},
	} {
		var field *FieldError
		if _, err := e.ExecCommand(testContext(t), bad); !errors.As(err, &field) || field.Value != "-1" {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// The budget of a poll is bounded by the same limit as that of the first call.
func TestClampsOfAPollAreTold(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{MaxOutputTokens: 10}}})
	id := exec(t, e, Command{Script: "read go; seq 1 1000", Stdin: StdinOpen}, 250).ProcessID
	r, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: id, Chars: "go\n", YieldTimeMS: ms(30_000), MaxOutputTokens: ms(11)})
	if err != nil || r.Exit == nil {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := strings.Join(r.Notices, "; "); got != "max_output_tokens 11 was changed to 10, the most that is allowed" {
		t.Errorf("notices %q", got)
	}
	if !strings.HasPrefix(r.Output, "Warning: truncated output") || len(r.Output) > 200 {
		t.Errorf("output %q", r.Output)
	}
}

// A shell session keeps its variables between calls, and two sessions know nothing of each other.
func TestShellSessionsKeepTheirState(t *testing.T) {
	e := newEngine(t, Config{})
	for _, tty := range []bool{false, true} {
		c := Command{Script: "exec bash --norc --noprofile", TTY: tty, Stdin: StdinOpen}
		one, two := exec(t, e, c, 250).ProcessID, exec(t, e, c, 250).ProcessID
		converse(t, e, one, "HERE=one-$((40+2)); echo set $?\n", "set 0")
		converse(t, e, one, "echo \"<$HERE>\"\n", "<one-42>")
		converse(t, e, two, "echo \"<$HERE>\"\n", "<>")
		r := writeStdin(t, e, one, "exit 9\n", 30_000)
		if r.Exit == nil || r.Exit.Code != 9 || r.ProcessID != 0 {
			t.Errorf("tty=%v: exit %+v", tty, r)
		}
	}
}

func TestInterruptOnPipes(t *testing.T) {
	e := newEngine(t, Config{})
	p := launchTool(t, e, Command{Script: "echo up; exec sleep 300"}, "up")
	if r := writeStdin(t, e, p.ID(), "\x03", 30_000); r.Exit == nil || r.Exit.Code != 130 || r.Exit.Signal != "SIGINT" || r.Exit.Reason != ReasonSignaled {
		t.Errorf("default: %+v", r.Exit)
	}
	p = launchTool(t, e, Command{Script: "trap 'echo trapped; exit 5' INT; echo up; while :; do sleep 0.05; done"}, "up")
	if r := writeStdin(t, e, p.ID(), "\x03", 30_000); r.Exit == nil || r.Exit.Code != 5 || !strings.HasSuffix(r.Output, "trapped\n") {
		t.Errorf("trap: %+v", r)
	}
}

func TestInterruptKeyOnTerminal(t *testing.T) {
	e := newEngine(t, Config{})
	p := launchTool(t, e, Command{Script: "echo up; exec sleep 300", TTY: true}, "up")
	if r := writeStdin(t, e, p.ID(), "\x03", 30_000); r.Exit == nil || r.Exit.Code != 130 || !strings.Contains(r.Output, "^C") {
		t.Errorf("%+v %+v", r, r.Exit)
	}
}

func TestStdinModes(t *testing.T) {
	e := newEngine(t, Config{})
	if r := exec(t, e, Command{Script: "cat"}, 30_000); r.Exit == nil || r.Exit.Code != 0 || r.Output != "" {
		t.Errorf("null: %+v", r)
	}
	r := exec(t, e, Command{Script: "cat", Stdin: StdinData, StdinData: []byte("given")}, 30_000)
	if r.Exit == nil || r.Output != "given" {
		t.Errorf("data: %+v", r)
	}
	large := strings.Repeat("0123456789abcdef", 1<<16)
	if r = exec(t, e, Command{Script: "wc -c", Stdin: StdinData, StdinData: []byte(large)}, 30_000); r.Output != "1048576\n" {
		t.Errorf("large data: %+v", r)
	}
	if r = exec(t, e, Command{Script: "true", Stdin: StdinData, StdinData: []byte(large)}, 30_000); r.Exit == nil || r.Exit.Code != 0 {
		t.Errorf("unread data: %+v", r)
	}
	id := exec(t, e, Command{Script: "cat; echo end", Stdin: StdinOpen}, 250).ProcessID
	if got := converse(t, e, id, "line\n", "line\n"); got != "line\n" {
		t.Errorf("open: %q", got)
	}
	yield := int64(30_000)
	r, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: id, Chars: "last", CloseStdin: true, YieldTimeMS: &yield})
	if err != nil || r.Exit == nil || r.Output != "lastend\n" {
		t.Errorf("close: %+v, %v", r, err)
	}
}

func TestStdinClosedIsAnErrorAndHarmless(t *testing.T) {
	e := newEngine(t, Config{})
	r := exec(t, e, Command{Script: "sleep 4; echo fine"}, 250)
	if _, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: r.ProcessID, Chars: "x"}); !errors.Is(err, ErrStdinClosed) {
		t.Errorf("write: %v", err)
	}
	if r = writeStdin(t, e, r.ProcessID, "", 30_000); r.Exit == nil || r.Output != "fine\n" {
		t.Errorf("poll afterwards: %+v", r)
	}
}

// Writing to a process that ended answers with its end, on a terminal too.
func TestWriteToEndedProcess(t *testing.T) {
	for _, tty := range []bool{false, true} {
		e := newEngine(t, Config{})
		r := exec(t, e, Command{Script: "sleep 2; echo bye; exit 4", TTY: tty, Stdin: StdinOpen}, 250)
		p, err := e.Process(r.ProcessID)
		if err != nil {
			t.Fatal(err)
		}
		waitExit(t, p)
		r = writeStdin(t, e, r.ProcessID, "too late\n", 30_000)
		if r.Exit == nil || r.Exit.Code != 4 || strings.TrimSpace(r.Output) != "bye" {
			t.Errorf("tty=%v: %+v", tty, r)
		}
	}
}

// Giving up a wait does not end the process, and loses none of its output.
func TestGivingUpTheWait(t *testing.T) {
	e := newEngine(t, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := e.ExecCommand(ctx, ExecCommandRequest{Command: Command{Script: "echo one; sleep 3; echo two"}})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	list := e.List()
	if len(list) != 1 || list[0].State != StateRunning {
		t.Fatalf("List = %+v", list)
	}
	if r := writeStdin(t, e, list[0].ID, "", 30_000); r.Output != "one\ntwo\n" || r.Exit == nil {
		t.Errorf("poll: %+v", r)
	}
}

// A process that is stopped while a call waits for it gives that call its end.
func TestStopDuringAWait(t *testing.T) {
	e := newEngine(t, Config{StopGrace: 100 * time.Millisecond})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			list := e.List()
			if len(list) == 1 {
				p, err := e.Process(list[0].ID)
				if err != nil {
					t.Error(err)
					return
				}
				if _, _, err := p.Stop(testContext(t), -1); err != nil {
					t.Error(err)
				}
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	r := exec(t, e, Command{Script: "sleep 300"}, 30_000)
	wg.Wait()
	if r.Exit == nil || r.Exit.Reason != ReasonStopped || r.ProcessID != 0 {
		t.Errorf("%+v", r)
	}
}

// Calls on different processes run in parallel, calls on one process one after the other.
func TestInteractionLock(t *testing.T) {
	e := newEngine(t, Config{})
	a := exec(t, e, Command{Script: "cat", TTY: true}, 250)
	b := exec(t, e, Command{Script: "cat", TTY: true}, 250)
	p, err := e.Process(b.ProcessID)
	if err != nil {
		t.Fatal(err)
	}
	var poll, wg sync.WaitGroup
	var polled atomic.Bool
	poll.Go(func() {
		writeStdin(t, e, b.ProcessID, "", 300_000)
		polled.Store(true)
	})
	eventually(t, "one process is waited for", func() bool { return len(p.turn) == 1 })
	began := time.Now()
	for range 2 {
		wg.Go(func() { writeStdin(t, e, a.ProcessID, "x\n", 500) })
	}
	wg.Wait()
	if took := time.Since(began); took < 900*time.Millisecond {
		t.Errorf("one process took %s, which is at the same time", took)
	}
	if polled.Load() {
		t.Error("the calls on one process came after that on the other")
	}
	if _, _, err := p.Stop(testContext(t), -1); err != nil {
		t.Error(err)
	}
	poll.Wait()
}

// Many bursts in a short time: a later poll still shows what was printed afterwards.
func TestLaterPollShowsTheTail(t *testing.T) {
	e := newEngine(t, Config{})
	r := exec(t, e, Command{Script: "for i in 1 2 3 4; do head -c 39000 /dev/zero | tr '\\0' x; sleep 0.02; done; sleep 3; echo TAIL-MARKER; sleep 1"}, 250)
	if r = writeStdin(t, e, r.ProcessID, "", 30_000); !strings.HasSuffix(r.Output, "TAIL-MARKER\n") {
		t.Errorf("output ends %q", r.Output[max(0, len(r.Output)-40):])
	}
}

func TestLargeOutputIsSummarised(t *testing.T) {
	e := newEngine(t, Config{})
	tokens := int64(100)
	yield := int64(30_000)
	r, err := e.ExecCommand(testContext(t), ExecCommandRequest{Command: Command{Script: "seq 1 100000"}, YieldTimeMS: &yield, MaxOutputTokens: &tokens})
	if err != nil {
		t.Fatal(err)
	}
	want := "Warning: truncated output (original token count: 147224)\nTotal output lines: 100000\n\n1\n2\n3\n"
	if !strings.HasPrefix(r.Output, want) || !strings.Contains(r.Output, "…147124 tokens truncated…") || !strings.HasSuffix(r.Output, "99999\n100000\n") {
		t.Errorf("output %q", r.Output)
	}
	if r.OriginalTokenCount != 147224 {
		t.Errorf("count %d", r.OriginalTokenCount)
	}
	// More than is kept: the hole is named, and the count is of everything.
	r = exec(t, e, Command{Script: "head -c 5000000 /dev/zero | tr '\\0' y"}, 30_000)
	if r.OriginalTokenCount != 1_250_000 || !strings.Contains(r.Output, "... 3951424 bytes omitted ...") || !strings.HasPrefix(r.Output, "Warning: truncated output (original token count: 1250000)\n\n") {
		t.Errorf("count %d, output %q", r.OriginalTokenCount, r.Output[:200])
	}
}

func TestCharactersAreNotCutBetweenResults(t *testing.T) {
	e := newEngine(t, Config{})
	r := exec(t, e, Command{Script: "printf 'a\\303'; read go; printf '\\251b\\377'", Stdin: StdinOpen}, 250)
	id := r.ProcessID
	if r.Output == "" {
		r.Output = converse(t, e, id, "", "a")
	}
	if r.Output != "a" {
		t.Errorf("first %q", r.Output)
	}
	if r := writeStdin(t, e, id, "go\n", 30_000); r.Output != "éb\uFFFD" {
		t.Errorf("second %q", r.Output)
	}
}

// A process that is stopped while a poll waits for it gives that poll its end, also when somebody forgot the process meanwhile.
func TestStopDuringAPoll(t *testing.T) {
	e := newEngine(t, Config{StopGrace: 100 * time.Millisecond})
	p := launchTool(t, e, Command{Script: "echo up; exec sleep 300"}, "up")
	var wg sync.WaitGroup
	wg.Go(func() {
		time.Sleep(300 * time.Millisecond)
		if _, _, err := p.Stop(testContext(t), -1); err != nil {
			t.Error(err)
		}
	})
	r := writeStdin(t, e, p.ID(), "", 30_000)
	wg.Wait()
	if r.Exit == nil || r.Exit.Reason != ReasonStopped || r.ProcessID != 0 || r.WallTime > 25*time.Second {
		t.Errorf("%+v", r)
	}
}

// However often results are taken, each byte is told once, in one of them or as omitted.
func TestOmissionsAreCountedOverManyResults(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{OutputBytes: 2000}}})
	c := Command{Script: "for i in 1 2 3 4 5 6; do head -c 5000 /dev/zero | tr '\\0' x; read go; done", Stdin: StdinOpen}
	r := exec(t, e, c, 250)
	id := r.ProcessID
	omitted := regexp.MustCompile(`\.\.\. (\d+) bytes omitted \.\.\.`)
	var told, tokens int64
	count := func(r Result) {
		told += int64(strings.Count(r.Output, "x"))
		for _, m := range omitted.FindAllStringSubmatch(r.Output, -1) {
			n, err := strconv.ParseInt(m[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			told += n
		}
		tokens += r.OriginalTokenCount
	}
	count(r)
	for range 6 {
		if r = writeStdin(t, e, id, "go\n", 1000); len(r.Output) > 4000 {
			t.Errorf("a result of %d bytes", len(r.Output))
		}
		count(r)
	}
	for r.Exit == nil {
		r = writeStdin(t, e, id, "", 30_000)
		count(r)
	}
	if told != 30_000 || tokens < 7500 || tokens > 7510 {
		t.Errorf("%d bytes and %d tokens were told", told, tokens)
	}
}

// A command that asks for a terminal finds one, and else finds none.
func TestDefaultIsPipes(t *testing.T) {
	e := newEngine(t, Config{})
	for _, tty := range []bool{false, true} {
		r := exec(t, e, Command{Script: "for fd in 0 1 2; do test -t $fd && echo yes || echo no; done; echo $TERM", TTY: tty}, 30_000)
		want := strings.Repeat("no\n", 3) + "dumb\n"
		if tty {
			want = strings.Repeat("yes\r\n", 3) + "dumb\r\n"
		}
		if r.Output != want {
			t.Errorf("tty=%v: %q", tty, r.Output)
		}
	}
}
