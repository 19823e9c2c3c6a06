package sandbox

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
)

func yes() bool { return true }

func TestRefusals(t *testing.T) {
	var r Refusals
	curl := Denial{Rule: "socket", Syscall: "socket", Arguments: "family=AF_INET", Errno: syscall.EACCES, Program: "/usr/bin/curl", PID: 7}
	r.count(curl, yes)
	r.count(curl, yes)
	if r.count(curl, func() bool { return false }) {
		t.Error("a call that ended without the answer counts as refused")
	}
	ping := curl
	ping.Program, ping.PID = "/bin/ping", 9
	r.count(ping, yes)
	first := r.Take()
	if len(first) != 2 || first[0].Count != 2 || first[0].Program != "/usr/bin/curl" || first[0].PID != 7 || first[1].Count != 1 || first[0].Last.Before(first[0].First) {
		t.Errorf("took %+v", first)
	}
	if again := r.Take(); len(again) != 0 {
		t.Errorf("took again %+v", again)
	}
	r.count(ping, yes)
	if second := r.Take(); len(second) != 1 || second[0].Count != 1 {
		t.Errorf("took %+v, want only what is new", second)
	}
	if all := r.All(); len(all) != 2 || all[0].Count != 2 || all[1].Count != 2 || r.Total() != 4 {
		t.Errorf("all of %d is %+v", r.Total(), all)
	}
}

// TestRefusalsAreBounded: what is kept does not grow with what is refused, and every call is in it.
func TestRefusalsAreBounded(t *testing.T) {
	var r Refusals
	const calls = 1000
	for i := range calls {
		r.count(Denial{Rule: fmt.Sprint("rule", i%3), Arguments: fmt.Sprint(i), Errno: syscall.EPERM, Program: strings.Repeat("é", 3000)}, yes)
	}
	if !r.full() {
		t.Error("there is room for another kind")
	}
	for name, kinds := range map[string][]Denial{"all": r.All(), "fresh": r.Take()} {
		var sum uint64
		mixed := 0
		for _, d := range kinds {
			sum += d.Count
			if len(d.Program) > maxProgramBytes || !utf8.ValidString(d.Program) {
				t.Fatalf("%s keeps a program of %d bytes", name, len(d.Program))
			}
			if d.Omitted {
				mixed++
				if d.Program != "" || d.Arguments != "" || d.Errno != syscall.EPERM {
					t.Errorf("%s: calls of many kinds have one's particulars: %+v", name, d)
				}
			}
		}
		if len(kinds) != maxKinds+3 || mixed != 3 || sum != calls {
			t.Errorf("%s: %d kinds, %d of them mixed, %d calls; want %d, 3 and %d", name, len(kinds), mixed, sum, maxKinds+3, calls)
		}
	}
	if r.full() {
		t.Error("there is no room after what was taken")
	}
}

func TestNoRefusals(t *testing.T) {
	var r *Refusals
	if r.Total() != 0 || r.All() != nil || r.Take() != nil || !r.full() || !r.count(Denial{}, yes) {
		t.Error("nil is not empty")
	}
}

// TestRefusalsAreCompleteAtTheEnd: who knows that a process ended finds every call in them that it was refused.
func TestRefusalsAreCompleteAtTheEnd(t *testing.T) {
	requireDenials(t)
	s := newStage(t, true)
	launcher := newTestLauncher(t, s)
	const calls = 300
	for round := range 20 {
		var refusals Refusals
		ended := make(chan struct{})
		pid, err := launcher.StartWatched(s.binary, []string{s.binary}, &syscall.ProcAttr{
			Env:   []string{roleVariable + "=" + roleFlood, "CALLS=" + itoa(calls), raceOptions},
			Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
		}, Watch{Refusals: &refusals, OnEnd: func() { close(ended) }})
		check(t, err)
		status := wait(t, pid)
		kinds := refusals.All()
		if status.ExitStatus() != 0 || refusals.Total() != calls+1 || len(kinds) != 2 || kinds[0].Count != calls || kinds[1].Syscall != "mount" {
			t.Fatalf("round %d: ended with %v, and %d calls are counted: %+v", round, status, refusals.Total(), kinds)
		}
		if kinds[0].Program != s.binary || kinds[0].PID != pid || kinds[0].Arguments != "family=AF_INET type=SOCK_STREAM protocol=0" {
			t.Fatalf("got %+v", kinds[0])
		}
		<-ended
	}
}
