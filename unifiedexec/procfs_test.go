package unifiedexec

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	const tail = " 1 7 7 34816 7 4194304 100 0 0 0 1 2 3 4 20 0 1 0 4242 1000 10 18446744073709551615"
	cases := map[string]struct {
		line string
		want procEntry
		ok   bool
	}{
		"Plain":       {"7 (sleep) S" + tail, procEntry{pid: 7, ppid: 1, pgrp: 7, session: 7, state: 'S', start: 4242}, true},
		"Parentheses": {"7 (a) Z (b) ) R" + tail, procEntry{pid: 7, ppid: 1, pgrp: 7, session: 7, state: 'R', start: 4242}, true},
		"Newline":     {"7 (a\n1 2 3) R" + tail, procEntry{pid: 7, ppid: 1, pgrp: 7, session: 7, state: 'R', start: 4242}, true},
		"Short":       {"7 (sleep) S 1 7", procEntry{}, false},
		"Empty":       {"", procEntry{}, false},
		"NoEnd":       {"7 (sleep S 1 7 7", procEntry{}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, ok := parseStat([]byte(tc.line))
			if ok != tc.ok {
				t.Errorf("ok = %v", ok)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(procEntry{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseLimits(t *testing.T) {
	data, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	want := markOf(os.Getpid())
	if got := parseLimits(data); got != want && (got != 0 || want != 1<<64-1) {
		t.Errorf("%d, prlimit says %d", got, want)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("7 (a) b) R 1 7 7 34816 7 4194304 100 0 0 0 1 2 3 4 20 0 1 0 4242"))
	f.Fuzz(func(_ *testing.T, data []byte) { parseStat(data) })
}

// A process that lowered its own limit is found by its parents.
func TestLoweredMarkIsFoundByParents(t *testing.T) {
	e := newEngine(t, Config{})
	p := start(t, e, Command{Script: "prlimit --locks=1000 sleep NAP & echo up; wait"})
	awaitOutput(t, p, "up")
	for len(running(t, "sleep NAP")) == 0 {
		if t.Context().Err() != nil {
			t.Fatal("the child did not start")
		}
	}
	if _, _, err := p.Stop(testContext(t), -1); err != nil {
		t.Fatal(err)
	}
	if left := running(t, "sleep NAP"); len(left) > 0 {
		t.Errorf("%v still run", left)
	}
}
