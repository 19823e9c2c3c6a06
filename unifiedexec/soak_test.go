package unifiedexec

import (
	"context"
	"errors"
	"flag"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var soakCommands = flag.Int("soak", 400, "how many commands TestSoak runs")

// footprint is what must not grow.
type footprint struct{ fds, goroutines, privateKB int }

func takeFootprint(t *testing.T) footprint {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	data, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	f := footprint{fds: len(entries), goroutines: runtime.NumGoroutine()}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 3 && strings.HasPrefix(fields[0], "Private_") {
			kb, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			f.privateKB += kb
		}
	}
	return f
}

// TestSoak runs many commands, eight at a time, on pipes and terminals, and stops a third of them.
func TestSoak(t *testing.T) {
	e, err := New(Config{StopGrace: 500 * time.Millisecond, Settings: Settings{Workdir: t.TempDir(), Shell: ShellSettings{Login: LoginForbidden}}})
	if err != nil {
		t.Fatal(err)
	}
	// One context for all: one for each command would be what grows.
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	var next atomic.Int64
	one := func(i int64) {
		c := Command{TTY: i%2 == 0, Script: "echo hello; exit 3"}
		if i%3 == 0 {
			c.Script = "echo hello; sleep NAP & sleep NAP"
		}
		p, err := e.Start(ctx, c.named())
		if err != nil {
			t.Error(err)
			return
		}
		if i%3 == 0 {
			if rec, was, err := p.Stop(ctx, -1); err != nil || !was || rec.Reason != ReasonStopped {
				t.Errorf("%+v %v %v", rec, was, err)
			}
			return
		}
		if rec := waitExit(t, p); rec.Code != 3 || rec.Reason != ReasonExited {
			t.Errorf("%+v", rec)
		}
		if p.Info().OutputBytes < 6 {
			t.Errorf("%+v", p.Info())
		}
	}
	run := func(upTo int64) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := next.Add(1); i <= upTo && !t.Failed(); i = next.Add(1) {
					one(i)
				}
			})
		}
		wg.Wait()
		next.Store(upTo)
	}
	before := takeFootprint(t)
	run(int64(*soakCommands) / 10)
	early := takeFootprint(t)
	run(int64(*soakCommands))
	late := takeFootprint(t)
	// The streams of the last ones may be told their end a moment later.
	for deadline := time.Now().Add(patience); late.fds > early.fds && time.Now().Before(deadline); late = takeFootprint(t) {
		time.Sleep(50 * time.Millisecond)
	}
	if err := e.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	after := takeFootprint(t)
	t.Logf("%d commands: before %+v, after a tenth %+v, at the end %+v, closed %+v", *soakCommands, before, early, late, after)
	if after.fds > before.fds || late.fds > early.fds {
		t.Errorf("descriptors leak: %+v %+v %+v %+v", before, early, late, after)
	}
	if after.goroutines > before.goroutines+1 {
		t.Errorf("goroutines leak: %+v %+v", before, after)
	}
	if _, err := waitid(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("children are left: %v", err)
	}
	if left := running(t, "sleep NAP"); len(left) > 0 {
		t.Errorf("%v still run", left)
	}
}
