package unifiedexec

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestExitRecord(t *testing.T) {
	type want struct {
		Reason ExitReason
		Code   int
		Signal string
	}
	cases := map[string]struct {
		reason string
		script string
		want   want
	}{
		"Zero":    {"a command that ends by itself has its own code", "true", want{ReasonExited, 0, ""}},
		"Seven":   {"a command that ends by itself has its own code", "exit 7", want{ReasonExited, 7, ""}},
		"300":     {"the kernel keeps eight bits", "exit 300", want{ReasonExited, 44, ""}},
		"Pipe":    {"piped commands keep their true exit code", "set -o pipefail; (exit 3) | cat", want{ReasonExited, 3, ""}},
		"Kill":    {"128 and the signal's number in both forms", "kill -KILL $$", want{ReasonSignaled, 137, "SIGKILL"}},
		"Term":    {"128 and the signal's number in both forms", "kill -TERM $$", want{ReasonSignaled, 143, "SIGTERM"}},
		"Segv":    {"128 and the signal's number in both forms", "kill -SEGV $$", want{ReasonSignaled, 139, "SIGSEGV"}},
		"Int":     {"128 and the signal's number in both forms", "kill -INT $$", want{ReasonSignaled, 130, "SIGINT"}},
		"Missing": {"a program that a shell does not find is the shell's own code", "no-such-program-here", want{ReasonExited, 127, ""}},
	}
	for name, tc := range cases {
		for _, tty := range []bool{false, true} {
			t.Run(name+"/tty="+strconv.FormatBool(tty), func(t *testing.T) {
				e := newEngine(t, Config{})
				rec := waitExit(t, start(t, e, Command{Script: tc.script, TTY: tty}))
				if diff := cmp.Diff(tc.want, want{rec.Reason, rec.Code, rec.Signal}); diff != "" {
					t.Errorf("%s: record (-want +got):\n%s", tc.reason, diff)
				}
				if rec.StartTime.IsZero() || rec.EndTime.Before(rec.StartTime) {
					t.Errorf("times %v, %v", rec.StartTime, rec.EndTime)
				}
			})
		}
	}
}

func TestStreams(t *testing.T) {
	e := newEngine(t, Config{})
	p := start(t, e, Command{Script: "echo out; echo err >&2"})
	if got := readAll(t, p, ReaderOptions{}, StreamStdout); got != "out\n" {
		t.Errorf("stdout %q", got)
	}
	if got := readAll(t, p, ReaderOptions{}, StreamStderr); got != "err\n" {
		t.Errorf("stderr %q", got)
	}
	p = start(t, e, Command{Script: "echo out; echo err >&2; stty size; test -t 0 && test -t 1 && tty", TTY: true})
	got := readAll(t, p, ReaderOptions{}, StreamTTY)
	if !strings.HasPrefix(got, "out\r\nerr\r\n24 80\r\n/dev/pts/") {
		t.Errorf("tty %q", got)
	}
}

// A command may hold its terminal by no descriptor for a while, and many programs close their output before they end. It
// is not hung up for that, and what it writes when it opened the terminal again is there.
func TestTerminalThatNobodyHasOpen(t *testing.T) {
	e := newEngine(t, Config{})
	p := start(t, e, Command{Script: "echo first; exec <&- >&- 2>&-; sleep 1; exec </dev/tty >/dev/tty 2>&1; echo back; read -r x; echo \"<$x>\"; exit 7", TTY: true})
	awaitOutput(t, p, "back")
	if _, err := p.Write(testContext(t), []byte("in\n")); err != nil {
		t.Fatal(err)
	}
	if rec := waitExit(t, p); rec.Code != 7 || rec.Reason != ReasonExited {
		t.Errorf("record %+v", rec)
	}
	if got := readAll(t, p, ReaderOptions{Wait: WaitClosed}, 0); got != "first\r\nback\r\nin\r\n<in>\r\n" {
		t.Errorf("output %q", got)
	}
	for range 20 {
		p := start(t, e, Command{Script: "exec <&- >&- 2>&-; exit 3", TTY: true})
		if rec := waitExit(t, p); rec.Code != 3 || rec.Reason != ReasonExited {
			t.Fatalf("record %+v", rec)
		}
		if p.Info().OutputOpen {
			t.Errorf("the terminal is still open: %+v", p.Info())
		}
	}
}

func TestBackgroundGrandchild(t *testing.T) {
	dir := t.TempDir()
	e := newEngine(t, Config{Settings: Settings{Workdir: dir, Shell: ShellSettings{Login: LoginForbidden}}})
	r := exec(t, e, Command{Script: "(until [ -e go ]; do sleep 0.05; done; echo late) & echo started"}, 30_000)
	if r.Exit == nil || r.Exit.Code != 0 || r.Output != "started\n" || r.ProcessID != 0 {
		t.Fatalf("result %+v, want the end and %q", r, "started\n")
	}
	list := e.List()
	if len(list) != 1 || list[0].Descendants == 0 || list[0].Exit == nil || !list[0].OutputOpen {
		t.Fatalf("List = %+v, want the ended process with its descendant", list)
	}
	p, err := e.Process(list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, p, ReaderOptions{Wait: WaitClosed}, 0); got != "started\nlate\n" {
		t.Errorf("output %q, want what came late too", got)
	}
}

func TestBackgroundGrandchildHoldsUpNobody(t *testing.T) {
	e := newEngine(t, Config{StopGrace: 300 * time.Millisecond})
	const limit = 500 * time.Millisecond
	fastest := patience
	// One try can meet a machine that is busy.
	for try := 0; try < 8 && fastest > limit; try++ {
		r := exec(t, e, Command{Script: "sleep NAP & echo started"}, 30_000)
		if r.Exit == nil || r.Output != "started\n" {
			t.Fatalf("result %+v, want the end and %q", r, "started\n")
		}
		fastest = min(fastest, r.WallTime)
	}
	if fastest > limit {
		t.Errorf("the call took %s, and is wanted within %s", fastest, limit)
	}
}

// What survives on a terminal has it hung up and can not write to it, but may hold it for as long as it likes.
func TestSurvivorOnATerminal(t *testing.T) {
	cases := map[string]struct{ reason, script string }{
		"Job":     {"a job of its own group", "set -m; trap '' HUP; sleep NAP & echo hi"},
		"Session": {"a session of its own", "setsid sleep NAP & sleep 0.2; echo hi"},
		"Deaf":    {"one that does not hear the hang-up", "trap '' HUP; (sleep NAP; echo late) & echo hi"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, Config{})
			fastest := patience
			// One try can meet a machine that is busy; the fault was two seconds for each.
			for try := 0; try < 8 && fastest > time.Second; try++ {
				p := start(t, e, Command{Script: tc.script, TTY: true})
				rec := waitExit(t, p)
				fastest = min(fastest, time.Since(rec.EndTime))
				if got := readAll(t, p, ReaderOptions{}, 0); got != "hi\r\n" {
					t.Errorf("output %q", got)
				}
			}
			if fastest > time.Second {
				t.Errorf("%s: the record came %s after the end", tc.reason, fastest)
			}
		})
	}
}

// Bytes come to a terminal's reader through another thread of the kernel; the record waits for all of them.
func TestOutputOfATerminalIsComplete(t *testing.T) {
	e := newEngine(t, Config{DrainGrace: time.Nanosecond})
	want := ""
	for i := 1; i <= 3000; i++ {
		want += itoa(i) + "\r\n"
	}
	for _, survivor := range []string{"", "trap '' HUP; sleep NAP & "} {
		for range 20 {
			p := start(t, e, Command{Script: survivor + "seq 3000", TTY: true})
			waitExit(t, p)
			if got := readAll(t, p, ReaderOptions{}, 0); got != want {
				t.Fatalf("survivor %q: %d bytes, want %d; the last are %q", survivor, len(got), len(want), got[max(0, len(got)-20):])
			}
		}
	}
}

// Who knows the terminal's name can open it again while somebody holds it.
func TestLateOutputOnATerminal(t *testing.T) {
	e := newEngine(t, Config{})
	r := exec(t, e, Command{Script: "t=$(tty); trap '' HUP; (sleep 1; echo late >$t) & echo hi", TTY: true}, 30_000)
	if r.Exit == nil || r.Output != "hi\r\n" {
		t.Fatalf("result %+v, want the end and hi", r)
	}
	p, err := e.Process(e.List()[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, p, ReaderOptions{Wait: WaitClosed}, 0); got != "hi\r\nlate\r\n" {
		t.Errorf("output %q, want what came late too", got)
	}
}

// A survivor that writes all the time does not hold up the record.
func TestSurvivorThatNeverPauses(t *testing.T) {
	e := newEngine(t, Config{})
	p := start(t, e, Command{Script: "yes NAP & echo hi"})
	if rec := waitExit(t, p); rec.Code != 0 || !p.Info().OutputOpen {
		t.Errorf("record %+v of %+v", rec, p.Info())
	}
}

func TestStopLeavesNothing(t *testing.T) {
	cases := map[string]struct {
		reason string
		script string
	}{
		"Background": {"a background process of the same group", "sleep NAP & wait"},
		"Setsid":     {"a session of its own", "setsid sleep NAP & sleep NAP & wait"},
		"Orphan":     {"a double fork: the parent is gone", "(setsid sleep NAP & exit) ; sleep NAP"},
		"Ignoring":   {"one that ignores the question", "trap '' TERM; sleep NAP & wait; sleep NAP"},
		"CleanEnv":   {"no environment, a session of its own, an orphan", "(env -i /usr/bin/setsid -f /bin/sleep NAP); sleep NAP"},
		"Closed":     {"no descriptor left", "(setsid -f sleep NAP </dev/null >/dev/null 2>&1); sleep NAP"},
		"Stopped":    {"a stopped process hears the question", "sleep NAP & kill -STOP $!; wait"},
	}
	for name, tc := range cases {
		for _, tty := range []bool{false, true} {
			t.Run(name+"/tty="+strconv.FormatBool(tty), func(t *testing.T) {
				e := newEngine(t, Config{StopGrace: 300 * time.Millisecond})
				p := start(t, e, Command{Script: tc.script, TTY: tty})
				for deadline := time.Now().Add(patience); len(running(t, "sleep NAP")) == 0; {
					if time.Now().After(deadline) {
						t.Fatal("the command did not start its child")
					}
					time.Sleep(5 * time.Millisecond)
				}
				time.Sleep(100 * time.Millisecond)
				rec, was, err := p.Stop(testContext(t), -1)
				if err != nil || !was || rec.Reason != ReasonStopped {
					t.Errorf("Stop = %+v, %v, %v", rec, was, err)
				}
				if left := running(t, "sleep NAP"); len(left) > 0 {
					t.Errorf("%s: %v still run", tc.reason, left)
				}
			})
		}
	}
}

func TestTimeout(t *testing.T) {
	cases := map[string]struct {
		reason, script, signal string
		grace                  time.Duration
	}{
		"Dies":    {"the signal's own code would be 143", "setsid sleep NAP & sleep NAP & wait", "SIGTERM", patience},
		"Deaf":    {"it has to be killed", "trap '' TERM; setsid sleep NAP & while :; do sleep 0.1; done", "SIGKILL", 300 * time.Millisecond},
		"Ends":    {"an end that it chose itself is no success", "trap 'exit 0' TERM; setsid sleep NAP & sleep NAP & wait", "", patience},
		"OwnCode": {"nor is its own code told", "trap 'exit 7' TERM; setsid sleep NAP & sleep NAP & wait", "", patience},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, Config{StopGrace: tc.grace})
			p := start(t, e, Command{Script: "echo up; " + tc.script, Timeout: time.Second})
			rec := waitExit(t, p)
			if rec.Reason != ReasonTimedOut || rec.Code != 124 {
				t.Errorf("%s: record %+v, want TimedOut and 124", tc.reason, rec)
			}
			// On a busy machine the time may be over before the trap is there.
			if rec.Signal != tc.signal && rec.Signal != "SIGTERM" {
				t.Errorf("%s: signal %q, want %q", tc.reason, rec.Signal, tc.signal)
			}
			if _, _, err := p.Stop(testContext(t), -1); err != nil {
				t.Error(err)
			}
			if left := running(t, "sleep NAP"); len(left) > 0 {
				t.Errorf("%v still run", left)
			}
		})
	}
}

// Nothing blocks a thread: not the wait, not the reading, on pipes or terminals.
func TestNoThreadPerProcess(t *testing.T) {
	e := newEngine(t, Config{})
	threads := func() int {
		entries, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := threads()
	for i := range 40 {
		p := start(t, e, Command{Script: "echo up; sleep 300", TTY: i%2 == 0, Stdin: StdinOpen})
		r := p.NewReader(ReaderOptions{})
		defer r.Close()
		if _, err := r.Next(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	if after := threads(); after > before+12 {
		t.Errorf("%d threads, %d before", after, before)
	}
}

// The order in which a process and its descendants are signalled begins with itself, whatever their numbers are.
func TestLeaderIsSignalledFirst(t *testing.T) {
	for _, leader := range []int{5, 7, 9} {
		members := leaderFirst([]procEntry{{pid: 5}, {pid: 7}, {pid: 9}}, leader)
		if len(members) != 3 || members[0].pid != leader {
			t.Errorf("of 5, 7 and 9, %d leads, and the order is %v", leader, members)
		}
	}
	if members := leaderFirst([]procEntry{{pid: 5}, {pid: 7}}, 3); members[0].pid != 5 || len(members) != 2 {
		t.Errorf("a leader that is gone changed the order to %v", members)
	}
}
