package unifiedexec

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// fill is more than every buffer between the engine and a process that does not read.
func fill(n int) string { return strings.Repeat("0123456789abcde\n", n/16) }

// A call that feeds a process that does not read ends with its yield time all the same, says what waits, and loses
// nothing of it: what later calls bring comes after it, and the end after all of it.
func TestUnreadInputWaitsAndKeepsItsOrder(t *testing.T) {
	e := newEngine(t, Config{})
	r := exec(t, e, Command{Script: "while [ ! -e go ]; do sleep 0.05; done; cat | cksum; echo done", Stdin: StdinOpen}, 250)
	id, want := r.ProcessID, fill(300_000)
	first := writeStdin(t, e, id, want, 300)
	if first.ProcessID != id || len(first.Notices) != 1 || !strings.Contains(first.Notices[0], "bytes of input wait for the command to read them") {
		t.Fatalf("first %+v", first)
	}
	for _, more := range []string{"second\n", "third\n"} {
		writeStdin(t, e, id, more, 250)
		want += more
	}
	r, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: id, Chars: "last", CloseStdin: true, YieldTimeMS: ms(250)})
	if err != nil || r.Exit != nil || len(r.Notices) != 1 {
		t.Fatalf("last %+v, %v", r, err)
	}
	// Closing says it too, again and again.
	r, err = e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: id, CloseStdin: true, YieldTimeMS: ms(250)})
	if err != nil || r.Exit != nil || len(r.Notices) != 1 || !strings.Contains(r.Notices[0], "bytes of input wait") {
		t.Fatalf("closing %+v, %v", r, err)
	}
	if _, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: id, Chars: "x"}); !errors.Is(err, ErrStdinClosed) {
		t.Errorf("after the end: %v", err)
	}
	sum := exec(t, e, Command{Script: "cksum", Stdin: StdinData, StdinData: []byte(want + "last")}, 30_000).Output
	exec(t, e, Command{Script: "touch go"}, 30_000)
	if got := converse(t, e, id, "", "done\n"); got != sum+"done\n" {
		t.Errorf("the process read %q, want %q", got, sum)
	}
}

// The end of the input waits like the input, and says so; a command that reads no more makes it no error.
func TestEndOfUnreadInput(t *testing.T) {
	e := newEngine(t, Config{})
	id := exec(t, e, Command{Script: "while [ ! -e go ]; do sleep 0.05; done; exec 0<&-; while [ ! -e on ]; do sleep 0.05; done; echo done", Stdin: StdinOpen}, 250).ProcessID
	writeStdin(t, e, id, fill(300_000), 250)
	r, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: id, CloseStdin: true, YieldTimeMS: ms(250)})
	if err != nil || r.Exit != nil || len(r.Notices) != 1 || !strings.Contains(r.Notices[0], "bytes of input wait") {
		t.Errorf("%+v, %v", r, err)
	}
	exec(t, e, Command{Script: "touch go"}, 30_000)
	exec(t, e, Command{Script: "touch on"}, 30_000)
	converse(t, e, id, "", "done\n")
}

// A call does all of what it says or nothing: an end that cannot be is told before anybody is interrupted.
func TestInterruptAndEndOfNoInput(t *testing.T) {
	e := newEngine(t, Config{})
	for _, c := range []Command{{}, {Stdin: StdinData, StdinData: []byte("x")}} {
		c.Script = "trap 'touch a-hit' INT; echo up; while [ ! -e go ]; do sleep 0.05; done; ls"
		p := launchTool(t, e, c, "up")
		_, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: p.ID(), Chars: "\x03", CloseStdin: true})
		if !errors.Is(err, ErrStdinClosed) {
			t.Errorf("error %v", err)
		}
		exec(t, e, Command{Script: "touch go"}, 30_000)
		if got := converse(t, e, p.ID(), "", "go\n"); strings.Contains(got, "hit") {
			t.Errorf("it was interrupted all the same: %q", got)
		}
		exec(t, e, Command{Script: "rm go"}, 30_000)
	}
}

func TestUnreadInputIsBounded(t *testing.T) {
	e := newEngine(t, Config{})
	id := exec(t, e, Command{Script: "sleep 300", Stdin: StdinOpen}, 250).ProcessID
	if r := writeStdin(t, e, id, fill(3<<20), 250); len(r.Notices) != 1 {
		t.Fatalf("one call may bring as much as it likes: %+v", r)
	}
	var field *FieldError
	if _, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: id, Chars: "x"}); !errors.As(err, &field) || field.Field != "chars" {
		t.Errorf("and then no other: %v", err)
	}
}

// Interrupting and stopping end a wait for input to be read like any other.
func TestWaitForUnreadInputEnds(t *testing.T) {
	e := newEngine(t, Config{StopGrace: 100 * time.Millisecond})
	for name, end := range map[string]func(*Process){
		"Interrupt": func(*Process) { e.Interrupt() },
		"Stop": func(p *Process) {
			if _, _, err := p.Stop(testContext(t), -1); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := launchTool(t, e, Command{Script: "echo up; exec sleep 300", Stdin: StdinOpen}, "up")
			var wg sync.WaitGroup
			wg.Go(func() {
				for p.input.queued() == 0 {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(50 * time.Millisecond)
				end(p)
			})
			r := writeStdin(t, e, p.ID(), fill(300_000), 30_000)
			wg.Wait()
			if r.WallTime > 25*time.Second || (r.Exit != nil) != (name == "Stop") {
				t.Errorf("%+v", r)
			}
		})
	}
}

// An interrupt key works although the terminal has no room for it, and drops the input before it, as the key does.
func TestInterruptKeyBehindUnreadInput(t *testing.T) {
	e := newEngine(t, Config{})
	p := launchTool(t, e, Command{Script: "echo up; exec sleep 300", TTY: true}, "up")
	writeStdin(t, e, p.ID(), fill(64<<10), 250)
	if r := writeStdin(t, e, p.ID(), "\x03", 30_000); r.Exit == nil || r.Exit.Code != 130 {
		t.Errorf("%+v", r)
	}
	p = launchTool(t, e, Command{Script: "trap 'touch hit' INT; stty -echo; echo up; while [ ! -e hit ]; do sleep 0.05; done; echo reads; read -r line; echo \"<$line>\"; read -r x", TTY: true}, "up")
	writeStdin(t, e, p.ID(), fill(64<<10), 250)
	converse(t, e, p.ID(), "dropped\x03", "reads")
	converse(t, e, p.ID(), "kept\n", "<kept>")
}

// Where the key is no interrupt it is a byte like any other, however long it waits.
func TestInterruptKeyThatIsData(t *testing.T) {
	e := newEngine(t, Config{})
	const size = 64 << 10
	p := launchTool(t, e, Command{Script: "stty raw -echo; echo up; while [ ! -e go ]; do sleep 0.05; done; head -c 65540 | tr -dc '\\003' | wc -c", TTY: true}, "up")
	writeStdin(t, e, p.ID(), fill(size), 250)
	writeStdin(t, e, p.ID(), "\x03ab\x03", 700)
	exec(t, e, Command{Script: "touch go"}, 30_000)
	converse(t, e, p.ID(), "", "2\n")
}
