package unifiedexec

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakes makes table entries, the first one used longest ago.
func fakes(n int) []*Process {
	procs := make([]*Process, n)
	for i := range procs {
		procs[i] = &Process{id: int32(firstID + i), turn: make(chan struct{}, 1), entry: entry{tool: true, used: uint64(i + 1)}}
	}
	return procs
}

func TestPrune(t *testing.T) {
	ended := func(p *Process) { p.entry.ended = time.Unix(1, 0) }
	busy := func(p *Process) { p.turn <- struct{}{} }
	cases := map[string]struct {
		reason string
		setup  func([]*Process)
		want   int32
		full   bool
	}{
		"LeastRecent":    {"the least recently used when all run", func([]*Process) {}, 1000, false},
		"EndedFirst":     {"one that ended goes before one that runs", func(p []*Process) { ended(p[5]) }, 1005, false},
		"OldestEnded":    {"of several that ended the least recently used", func(p []*Process) { ended(p[6]); ended(p[3]) }, 1003, false},
		"ProtectedEnded": {"the most recently used are safe, also when ended", func(p []*Process) { ended(p[12]) }, 1000, false},
		"BusyRunning":    {"one that a call is busy with is left alone", func(p []*Process) { busy(p[0]) }, 1001, false},
		"BusyEnded":      {"no running one goes while an ended one is being told", func(p []*Process) { ended(p[2]); busy(p[2]) }, 0, false},
		"NextEnded":      {"but another ended one does", func(p []*Process) { ended(p[2]); busy(p[2]); ended(p[4]) }, 1004, false},
		"AllBusy": {"when none may go the table is full", func(p []*Process) {
			for _, one := range p {
				busy(one)
			}
		}, 0, true},
		"NoTools": {"what Start began never goes", func(p []*Process) {
			for _, one := range p {
				one.entry.tool = false
			}
		}, 0, true},
		"OneTool": {"a single tool process is among the most recently used", func(p []*Process) {
			for _, one := range p[1:] {
				one.entry.tool = false
			}
		}, 0, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			procs := fakes(16)
			tc.setup(procs)
			victim, full := prune(procs, 8)
			got := int32(0)
			if victim != nil {
				got = victim.id
			}
			if got != tc.want || full != tc.full {
				t.Errorf("%s: %d full=%v, want %d full=%v", tc.reason, got, full, tc.want, tc.full)
			}
		})
	}
}

// What has to make room is gone before another command starts in its place, and is then like any other that ended: its
// record and its output are there, and its end is told once.
func TestTableMakesRoom(t *testing.T) {
	e := newEngine(t, Config{StopGrace: time.Second, Settings: Settings{Limits: Limits{MaxProcesses: 4, ProtectedProcesses: 2}}})
	counts := func() (running, ended int) {
		for _, info := range e.List() {
			if info.State == StateRunning {
				running++
			} else {
				ended++
			}
		}
		return running, ended
	}
	var procs []*Process
	for i, script := range []string{"exec sleep 300", "trap '' TERM; while :; do sleep 0.1; done", "exec sleep 300", "exec sleep 300"} {
		procs = append(procs, launchTool(t, e, Command{Script: fmt.Sprintf("echo up %d; %s", i, script)}, "up"))
	}
	for i, p := range procs[:2] {
		exec(t, e, Command{Script: "sleep 300"}, 250)
		if running, ended := counts(); running != 4 || ended != i+1 {
			t.Errorf("%d run and %d ended, want 4 and %d", running, ended, i+1)
		}
		if rec := waitExit(t, p); rec.Reason != ReasonStopped || rec.Message != "ended to make room for another command" {
			t.Errorf("record %+v", rec)
		}
		want := fmt.Sprintf("up %d\n", i)
		if got := readAll(t, p, ReaderOptions{}, 0); got != want {
			t.Errorf("output %q, want %q", got, want)
		}
		r := writeStdin(t, e, p.ID(), "", 5000)
		if r.Exit == nil || r.Exit.Reason != ReasonStopped || r.ProcessID != 0 {
			t.Errorf("the evicted one answered %+v", r)
		}
		if _, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: p.ID()}); !errors.Is(err, ErrUnknownProcess) {
			t.Errorf("its end was told twice: %v", err)
		}
	}
}

// One that ended and was told nobody goes first. It has ended, so what it left running stays.
func TestTableMakesRoomByAnEndedOne(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{MaxProcesses: 2, ProtectedProcesses: 1}}})
	p := launchTool(t, e, Command{Script: "echo up; sleep NAP & read -r x; echo bye", Stdin: StdinOpen}, "up")
	if err := p.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	waitExit(t, p)
	for range 2 {
		exec(t, e, Command{Script: "sleep 300"}, 250)
	}
	if n := len(running(t, "sleep NAP")); n != 1 {
		t.Errorf("%d of what it left run, want 1", n)
	}
	if r := writeStdin(t, e, p.ID(), "", 5000); r.Exit == nil || r.Exit.Reason != ReasonExited || !strings.HasSuffix(r.Output, "bye\n") {
		t.Errorf("its end is %+v", r)
	}
}

// What made room is kept for the time and the count of others, though nobody was told its end.
func TestEvictedProcessesAreForgotten(t *testing.T) {
	e := newEngine(t, Config{StopGrace: 200 * time.Millisecond, Settings: Settings{Limits: Limits{MaxProcesses: 2, ProtectedProcesses: 1, EndedTime: time.Second}}})
	p := launchTool(t, e, Command{Script: "echo up; exec sleep 300"}, "up")
	for range 2 {
		exec(t, e, Command{Script: "sleep 300"}, 250)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if _, err := e.Process(p.ID()); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is kept for ever")
		}
	}
}

// A process that Start began is told its end like any other, also when it ended before anybody polled.
func TestEndOfAStartedProcessIsToldOnce(t *testing.T) {
	e := newEngine(t, Config{})
	p := start(t, e, Command{Script: "echo out; exit 3"})
	waitExit(t, p)
	if r := writeStdin(t, e, p.ID(), "", 5000); r.Exit == nil || r.Exit.Code != 3 || r.Output != "out\n" {
		t.Errorf("%+v", r)
	}
	if _, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: p.ID()}); !errors.Is(err, ErrUnknownProcess) {
		t.Errorf("its end was told twice: %v", err)
	}
	if got := readAll(t, p, ReaderOptions{}, 0); got != "out\n" {
		t.Errorf("then it is %q", got)
	}
}

func TestWhatCannotStartMakesNoRoom(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{MaxProcesses: 2, ProtectedProcesses: 1}}})
	for range 2 {
		exec(t, e, Command{Script: "sleep 300"}, 250)
	}
	for name, c := range map[string]Command{
		"program": {Argv: []string{"/no/such"}},
		"folder":  {Argv: []string{"/bin/true"}, Workdir: "/no/such"},
		"in PATH": {Argv: []string{"no-such-program"}},
		"no file": {Argv: []string{"/bin"}},
	} {
		_, err := e.ExecCommand(testContext(t), ExecCommandRequest{Command: c})
		if _, ok := errors.AsType[*StartError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
		for _, info := range e.List() {
			if info.State != StateRunning {
				t.Errorf("%s: process %d was ended for it: %+v", name, info.ID, info.Exit)
			}
		}
	}
	if n := len(e.List()); n != 2 {
		t.Errorf("%d processes", n)
	}
}

// Whatever became of a process, it counts against the limit exactly as long as somebody may wait for its end.
func TestTableKnowsWhoCounts(t *testing.T) {
	var starts sync.WaitGroup
	table := newTable(&starts)
	now := time.Now()
	ended := func(p *Process) { table.ended(p, now) }
	cases := map[string]struct {
		reason string
		entry  entry
		then   []func(*Process)
		counts bool
	}{
		"Runs":      {"it runs", entry{tool: true}, nil, true},
		"Started":   {"it runs, and is not of the tool", entry{}, nil, true},
		"Hidden":    {"the engine's own are nobody's", entry{hidden: true}, nil, false},
		"Untold":    {"its end was told nobody", entry{tool: true}, []func(*Process){ended}, true},
		"Told":      {"its end was told", entry{tool: true}, []func(*Process){ended, table.delivered}, false},
		"ToldFirst": {"its end was told in the moment in which it ended", entry{tool: true}, []func(*Process){table.delivered, ended}, false},
		"Over":      {"nobody has to be told", entry{}, []func(*Process){ended}, false},
		"Forgotten": {"it had to go", entry{tool: true}, []func(*Process){func(p *Process) {
			table.mu.Lock()
			defer table.mu.Unlock()
			table.forgetLocked(p)
		}}, false},
		"Evicted": {"it had to make room", entry{tool: true, evicted: true}, []func(*Process){ended}, false},
		"EndsLater": {"it had to go and ends later", entry{tool: true}, []func(*Process){func(p *Process) {
			table.mu.Lock()
			defer table.mu.Unlock()
			table.forgetLocked(p)
		}, ended}, false},
		"Restored": {"it ended under an earlier engine", entry{ended: now}, nil, false},
	}
	id := int32(firstID)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			id++
			p := &Process{id: id, entry: tc.entry}
			table.insert(p)
			for _, f := range tc.then {
				f(p)
			}
			if table.active[p] != tc.counts {
				t.Errorf("%s: counts = %v", tc.reason, table.active[p])
			}
		})
	}
}

func TestTableFull(t *testing.T) {
	e := newEngine(t, Config{StopGrace: 100 * time.Millisecond, Settings: Settings{Limits: Limits{MaxProcesses: 3}}})
	for range 3 {
		start(t, e, Command{Script: "sleep 300"})
	}
	if _, err := e.ExecCommand(testContext(t), ExecCommandRequest{Command: Command{Script: "true"}}); !errors.Is(err, ErrTableFull) {
		t.Errorf("error %v", err)
	}
	if _, err := e.StopAll(testContext(t), -1); err != nil {
		t.Fatal(err)
	}
	for _, info := range e.List() {
		p, err := e.Process(info.ID)
		if err != nil {
			t.Fatal(err)
		}
		if rec := waitExit(t, p); rec.Reason != ReasonStopped {
			t.Errorf("record %+v", rec)
		}
	}
	exec(t, e, Command{Script: "true"}, 30_000)
}

func TestEndedProcessesAreKeptForAWhile(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{EndedProcesses: 5, EndedTime: 2 * time.Second}}})
	var first int32
	for i := range 5 + 2*sweepSlack {
		p := start(t, e, Command{Argv: []string{"/bin/echo", fmt.Sprint(i)}})
		if i == 0 {
			first = p.ID()
		}
		waitExit(t, p)
	}
	list := e.List()
	if len(list) < 5 || len(list) > 5+sweepSlack {
		t.Errorf("%d are kept", len(list))
	}
	if _, err := e.Process(first); !errors.Is(err, ErrUnknownProcess) {
		t.Errorf("the first: %v", err)
	}
	for deadline := time.Now().Add(patience); len(e.List()) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("they are kept for ever")
		}
	}
}

// However few they are, ended processes hold little more output than they may.
func TestEndedOutputIsBounded(t *testing.T) {
	const most, each = 1 << 20, 300_000
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{EndedBytes: most}}})
	for range 12 {
		waitExit(t, start(t, e, Command{Script: fmt.Sprintf("head -c %d /dev/zero", each)}))
	}
	kept := 0
	for _, p := range e.table.all() {
		kept += p.log.size().kept
	}
	if kept > most+most/4 || kept < most-each {
		t.Errorf("%d bytes are kept", kept)
	}
}

// What an ended process left behind is listed as its own, and stopping it stops that.
func TestSurvivorStaysListed(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{EndedProcesses: 1, EndedTime: time.Second}}})
	r := exec(t, e, Command{Script: "setsid sleep NAP >/dev/null 2>&1 </dev/null & echo up"}, 30_000)
	if r.Exit == nil || r.Output != "up\n" {
		t.Fatalf("%+v", r)
	}
	time.Sleep(2500 * time.Millisecond)
	list := e.List()
	if len(list) != 1 || list[0].Descendants != 1 {
		t.Fatalf("List = %+v", list)
	}
	p, err := e.Process(list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	rec, was, err := p.Stop(testContext(t), -1)
	if err != nil || was || rec.Reason != ReasonExited || rec.Code != 0 {
		t.Errorf("Stop = %+v %v %v", rec, was, err)
	}
	if left := running(t, "sleep NAP"); len(left) > 0 {
		t.Errorf("%v still run", left)
	}
}

func TestIDsAreNotUsedAgain(t *testing.T) {
	var wg sync.WaitGroup
	table := newTable(&wg)
	seen := map[int32]bool{}
	for range rememberedIDs {
		id, _, err := table.reserve(Limits{MaxProcesses: 1 << 30})
		if err != nil || id < firstID || id > lastID || seen[id] {
			t.Fatalf("id %d %v", id, err)
		}
		seen[id] = true
		p := &Process{id: id}
		table.insert(p)
		table.mu.Lock()
		table.forgetLocked(p)
		table.mu.Unlock()
	}
	if len(table.blocked) != rememberedIDs || len(table.reserved) != 0 {
		t.Errorf("%d blocked, %d reserved", len(table.blocked), len(table.reserved))
	}
}
