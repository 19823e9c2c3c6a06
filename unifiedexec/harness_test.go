package unifiedexec

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait of the tests; nothing is expected to take that long.
const patience = 60 * time.Second

// nap is a number that only processes of this test process sleep for; scripts say NAP.
var nap = strconv.Itoa(4_000_000 + os.Getpid())

func (c Command) named() Command {
	c.Script = strings.ReplaceAll(c.Script, "NAP", nap)
	return c
}

func newEngine(t *testing.T, cfg Config) *Engine {
	t.Helper()
	if cfg.Settings.Workdir == "" {
		cfg.Settings.Workdir = t.TempDir()
	}
	if cfg.Settings.Shell == (ShellSettings{}) {
		cfg.Settings.Shell.Login = LoginForbidden
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, e *Engine, c Command) *Process {
	t.Helper()
	p, err := e.Start(testContext(t), c.named())
	if err != nil {
		t.Fatalf("Start(%+v): %v", c, err)
	}
	return p
}

func waitExit(t *testing.T, p *Process) ExitRecord {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatalf("process %d did not end", p.ID())
	}
	rec, ok := p.Exit()
	if !ok {
		t.Fatalf("process %d is done and has no record", p.ID())
	}
	return rec
}

// readAll reads what one stream (0: all) wrote, as far as wait says; gaps fail the test.
func readAll(t *testing.T, p *Process, o ReaderOptions, stream Stream) string {
	t.Helper()
	r := p.NewReader(o)
	defer r.Close()
	ctx := testContext(t)
	var out bytes.Buffer
	for {
		c, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		if err != nil {
			t.Fatalf("Next: %v", err)
		}
		if c.GapTo != 0 {
			t.Fatalf("gap from %d to %d", c.Offset, c.GapTo)
		}
		if stream == 0 || c.Stream == stream {
			out.Write(c.Data)
		}
	}
}

func exec(t *testing.T, e *Engine, c Command, yieldMS int64) Result {
	t.Helper()
	r, err := e.ExecCommand(testContext(t), ExecCommandRequest{Command: c.named(), YieldTimeMS: &yieldMS})
	if err != nil {
		t.Fatalf("ExecCommand(%q): %v", c.Script, err)
	}
	return r
}

func writeStdin(t *testing.T, e *Engine, id int32, chars string, yieldMS int64) Result {
	t.Helper()
	r, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: id, Chars: chars, YieldTimeMS: &yieldMS})
	if err != nil {
		t.Fatalf("WriteStdin(%d, %q): %v", id, shorten(chars), err)
	}
	return r
}

// running tells which live processes have a word in their command line.
func running(t *testing.T, word string) []int {
	t.Helper()
	word = strings.ReplaceAll(word, "NAP", nap)
	var pids []int
	for _, entry := range liveProcesses() {
		line, err := os.ReadFile("/proc/" + itoa(entry.pid) + "/cmdline")
		if err == nil && strings.Contains(string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))), word) {
			pids = append(pids, entry.pid)
		}
	}
	return pids
}

// awaitOutput waits until a process wrote a text.
func awaitOutput(t *testing.T, p *Process, text string) {
	t.Helper()
	r := p.NewReader(ReaderOptions{Wait: WaitClosed})
	defer r.Close()
	var seen bytes.Buffer
	for ctx := testContext(t); !strings.Contains(seen.String(), text); {
		c, err := r.Next(ctx)
		if err != nil {
			t.Fatalf("process %d wrote %q, not %q: %v", p.ID(), seen.String(), text, err)
		}
		seen.Write(c.Data)
	}
}

// launchTool starts a command with a short yield and waits until it wrote a text, which the next result tells.
func launchTool(t *testing.T, e *Engine, c Command, ready string) *Process {
	t.Helper()
	r := exec(t, e, c, 250)
	p, err := e.Process(r.ProcessID)
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	awaitOutput(t, p, ready)
	return p
}

// awaitProcess waits for the engine's first process.
func awaitProcess(t *testing.T, e *Engine) *Process {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if all := e.table.all(); len(all) > 0 {
			return all[0]
		}
	}
	t.Error("nothing was started")
	runtime.Goexit()
	return nil
}

// converse writes and collects results until they hold a text.
func converse(t *testing.T, e *Engine, id int32, chars, want string) string {
	t.Helper()
	var seen strings.Builder
	for deadline := time.Now().Add(patience); ; chars = "" {
		r, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: id, Chars: chars, YieldTimeMS: ms(250)})
		if err != nil {
			t.Fatalf("WriteStdin(%d, %q): %v", id, chars, err)
		}
		seen.WriteString(r.Output)
		if strings.Contains(seen.String(), want) {
			return seen.String()
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d answered %q, not %q", id, seen.String(), want)
		}
	}
}

func ms(n int64) *int64 { return new(n) }
