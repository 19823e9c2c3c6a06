package unifiedexec

import (
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// notebook is a journal that a test looks into; while gate is not nil, nothing counts as kept before it is closed.
type notebook struct {
	gate chan struct{}

	mu      sync.Mutex
	started map[int32]Info
	ended   map[int32]Info
	told    []int32
	calls   chan struct{}
}

func newNotebook() *notebook {
	return &notebook{started: map[int32]Info{}, ended: map[int32]Info{}, calls: make(chan struct{}, 1000)}
}

func (n *notebook) note(f func()) <-chan struct{} {
	n.mu.Lock()
	f()
	n.mu.Unlock()
	n.calls <- struct{}{}
	if n.gate != nil {
		return n.gate
	}
	kept := make(chan struct{})
	close(kept)
	return kept
}

func (n *notebook) Started(info Info) <-chan struct{} {
	return n.note(func() { n.started[info.ID] = info })
}
func (n *notebook) Ended(info Info) <-chan struct{} {
	return n.note(func() { n.ended[info.ID] = info })
}
func (n *notebook) Told(id int32) { n.note(func() { n.told = append(n.told, id) }) }

func (n *notebook) of(id int32) (started, ended Info, told bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.started[id], n.ended[id], slices.Contains(n.told, id)
}

// Nobody learns of a start or of an end that the journal has not kept.
func TestJournalIsToldFirst(t *testing.T) {
	n := newNotebook()
	n.gate = make(chan struct{})
	e := newEngine(t, Config{Journal: n})
	var result Result
	var call sync.WaitGroup
	answered := make(chan struct{})
	call.Go(func() {
		defer close(answered)
		result = exec(t, e, Command{Script: "echo hi; exit 3"}, 30_000)
	})
	<-n.calls
	select {
	case <-answered:
		t.Fatal("the call answered before the start was kept")
	case <-time.After(500 * time.Millisecond):
	}
	n.mu.Lock()
	gate := n.gate
	n.mu.Unlock()
	// The end waits for the journal in the same way: the process ended long ago.
	eventually(t, "the journal is told the end", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.ended) == 1
	})
	list := e.List()
	if len(list) != 1 || list[0].Exit != nil {
		t.Errorf("List tells %+v before the end is kept", list)
	}
	if kept := e.Kept(); len(kept) != 1 || kept[0].Exit == nil || kept[0].Exit.Code != 3 || kept[0].Told {
		t.Errorf("Kept tells %+v", kept)
	}
	close(gate)
	call.Wait()
	if result.Exit == nil || result.Exit.Code != 3 || result.Output != "hi\n" {
		t.Errorf("result %+v", result)
	}
	started, ended, told := n.of(list[0].ID)
	if started.Exit != nil || started.PID == 0 || started.Mark == 0 && started.PIDStart == 0 || ended.OutputBytes != 3 || !told {
		t.Errorf("the journal has %+v, %+v, told %v", started, ended, told)
	}
	if kept := e.Kept(); len(kept) != 1 || !kept[0].Told {
		t.Errorf("afterwards Kept tells %+v", kept)
	}
}

func TestRestore(t *testing.T) {
	began := time.Now().Add(-time.Minute)
	exited := func(code int) *ExitRecord {
		return &ExitRecord{Reason: ReasonExited, Code: code, StartTime: began, EndTime: began.Add(time.Second)}
	}
	e := newEngine(t, Config{})
	lost := e.Restore([]Info{
		{ID: 1001, Command: "lost", PID: 1 << 22, StartTime: began, TTY: true, Workdir: "/w", Program: "/p"},
		{ID: 1002, Command: "ended", PID: 1<<22 - 1, StartTime: began, OutputBytes: 500, Exit: exited(7)},
		{ID: 1003, Command: "told", PID: 1<<22 - 2, StartTime: began, OutputBytes: 5, Exit: exited(0), Told: true},
	}, 0, "it was killed")
	if len(lost) != 1 || lost[0].ID != 1001 || lost[0].Exit.Reason != ReasonEngineStopped || lost[0].Exit.Code != -1 || lost[0].Exit.Message != "it was killed" {
		t.Errorf("Restore returned %+v", lost)
	}
	list := e.List()
	if len(list) != 3 {
		t.Fatalf("List = %+v", list)
	}
	for i, info := range list {
		if info.State != StateExited || info.Exit == nil || info.Descendants != 0 || info.OutputOpen || info.StdinOpen || !info.StartTime.Equal(began) {
			t.Errorf("%d: %+v", i, info)
		}
	}
	if a, b := list[0], list[1]; !a.TTY || a.Workdir != "/w" || a.Program != "/p" || !a.OutputLost || b.OutputLost || b.OutputBytes != 500 || b.DroppedBytes != 500 {
		t.Errorf("List = %+v", list)
	}

	// Each call that a process has, answers with its end.
	r := writeStdin(t, e, 1001, "hello\n", 250)
	if r.Exit == nil || r.Exit.Reason != ReasonEngineStopped || r.ProcessID != 0 || r.Output != "" || len(r.Notices) != 1 {
		t.Errorf("WriteStdin gave %+v", r)
	}
	r = writeStdin(t, e, 1002, "", 5000)
	if r.Exit == nil || r.Exit.Code != 7 || !strings.Contains(r.Output, "500 bytes omitted") {
		t.Errorf("WriteStdin gave %+v", r)
	}
	for _, id := range []int32{1001, 1002, 1003} {
		if _, err := e.WriteStdin(testContext(t), WriteStdinRequest{ProcessID: id}); !errors.Is(err, ErrUnknownProcess) {
			t.Errorf("the end of %d was told, and a poll gives %v", id, err)
		}
	}
	p, err := e.Process(1002)
	if err != nil {
		t.Fatal(err)
	}
	for _, wait := range []ReadWait{WaitExit, WaitNone, WaitClosed} {
		reader := p.NewReader(ReaderOptions{Wait: wait, From: 20, Lossless: true})
		if c, err := reader.Next(testContext(t)); err != nil || c.Offset != 20 || c.GapTo != 500 {
			t.Errorf("a reader got %+v, %v", c, err)
		}
		if _, err := reader.Next(testContext(t)); !errors.Is(err, io.EOF) {
			t.Errorf("and then %v", err)
		}
		reader.Close()
	}
	terminal, err := e.Process(1001)
	if err != nil {
		t.Fatal(err)
	}
	beyond := terminal.NewReader(ReaderOptions{From: 12345})
	defer beyond.Close()
	if _, err := beyond.Next(testContext(t)); !errors.Is(err, io.EOF) {
		t.Errorf("a reader of unknown output got %v", err)
	}
	if _, err := terminal.Write(testContext(t), []byte("x")); !errors.Is(err, ErrStdinClosed) {
		t.Errorf("Write: %v", err)
	}
	if err := terminal.Resize(Size{Rows: 1, Columns: 1}); !errors.Is(err, ErrNotTerminal) {
		t.Errorf("Resize: %v", err)
	}
	if err := errors.Join(terminal.Signal("INT"), terminal.Signal("KILL")); err != nil {
		t.Errorf("Signal: %v", err)
	}
	if rec, was, err := terminal.Stop(testContext(t), 0); err != nil || was || rec.Reason != ReasonEngineStopped {
		t.Errorf("Stop: %+v %v %v", rec, was, err)
	}
	if kept := e.Kept(); len(kept) != 3 || !kept[0].OutputLost || !kept[0].Told || kept[1].OutputBytes != 500 {
		t.Errorf("Kept = %+v", kept)
	}
}

// Restored processes make way by the same limits as others, and never for a start.
func TestRestoredAreKeptForAWhile(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{MaxProcesses: 2, EndedTime: 3 * time.Second}}})
	now := time.Now()
	var past []Info
	for i := range int32(20) {
		past = append(past, Info{ID: 1000 + i, StartTime: now})
	}
	for i := range int32(20) {
		// These ended too long ago, or by a clock that was put back since.
		end := now.Add(-time.Hour)
		if i == 0 {
			end = now.Add(time.Hour)
		}
		past = append(past, Info{ID: 2000 + i, StartTime: end, Exit: &ExitRecord{Reason: ReasonExited, StartTime: end, EndTime: end}})
	}
	e.Restore(past, 0, "killed")
	if n := len(e.List()); n != 21 {
		t.Errorf("%d are kept, want 21", n)
	}
	// None of them counts, and none of their numbers is taken.
	p := start(t, e, Command{Argv: []string{"sleep", nap}})
	if slices.ContainsFunc(past, func(info Info) bool { return info.ID == p.ID() }) {
		t.Errorf("number %d was used again", p.ID())
	}
	eventually(t, "only the new one is listed", func() bool { return len(e.List()) == 1 })
}

// A reserved number is never one of a restored process.
func TestRestoredNumbersAreNotUsedAgain(t *testing.T) {
	var starts sync.WaitGroup
	table := newTable(&starts)
	for id := int32(firstID); id <= lastID; id++ {
		if id != 54321 {
			table.restore(&Process{id: id, entry: entry{ended: time.Now()}})
		}
	}
	id, _, err := table.reserve(Limits{MaxProcesses: 1})
	if err != nil || id != 54321 {
		t.Errorf("reserved %d, %v", id, err)
	}
}

// What a killed engine left running is ended before its record says that it ended: by its mark, and where there is
// none by its number and the moment of its start.
func TestRestoreEndsWhatIsLeft(t *testing.T) {
	cases := map[string]struct {
		reason string
		known  func(Info) Info
		marks  uint64
		left   bool
	}{
		"Mark":   {"also descendants in sessions of their own", func(i Info) Info { return Info{ID: i.ID, StartTime: i.StartTime, Mark: i.Mark} }, 0, false},
		"Number": {"the process and who shares its session", func(i Info) Info { return Info{ID: i.ID, StartTime: i.StartTime, PID: i.PID, PIDStart: ticks(i.PID)} }, 0, false},
		"Stranger": {"a number that is another's now is left alone", func(i Info) Info {
			return Info{ID: i.ID, StartTime: i.StartTime, PID: i.PID, PIDStart: ticks(i.PID) + 1}
		}, 0, true},
		"Forgotten": {"whoever has one of the earlier marks", func(i Info) Info { return Info{ID: i.ID, StartTime: i.StartTime} }, Marks(), false},
		"Other":     {"another engine's marks are left alone", func(i Info) Info { return Info{ID: i.ID, StartTime: i.StartTime} }, Marks() / 2, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			old := newEngine(t, Config{StopGrace: 200 * time.Millisecond})
			script := "trap '' TERM; sleep NAP & echo up; wait"
			if name == "Mark" || name == "Forgotten" {
				script = "setsid sleep NAP & echo up; wait"
			}
			p := start(t, old, Command{Script: script})
			awaitOutput(t, p, "up")
			next := newEngine(t, Config{StopGrace: 200 * time.Millisecond})
			next.Restore([]Info{tc.known(p.Info())}, tc.marks, "killed")
			if tc.left {
				if len(running(t, "sleep NAP")) == 0 {
					t.Error(tc.reason)
				}
				return
			}
			if left := running(t, "sleep NAP"); len(left) > 0 {
				t.Errorf("%s: %v still run", tc.reason, left)
			}
			if rec := waitExit(t, p); rec.Reason != ReasonSignaled {
				t.Errorf("%s: record %+v", tc.reason, rec)
			}
		})
	}
}

func ticks(pid int) uint64 {
	entry, _ := readProcEntry(pid)
	return entry.start
}

// A number that an ended process had and that names another one now does not hide that one.
func TestEndedNumberHidesNobody(t *testing.T) {
	e := newEngine(t, Config{})
	p := start(t, e, Command{Script: "sleep NAP & sleep NAP"})
	past := p.Info()
	e.Restore([]Info{{ID: 99_999, PID: past.PID, StartTime: time.Now().Add(-time.Hour)}}, 0, "killed")
	eventually(t, "the child is there", func() bool { return len(running(t, "sleep NAP")) >= 2 })
	p.mu.Lock()
	p.mark = 0 // as where there are no marks
	p.mu.Unlock()
	members := claims(e.table.all(), liveProcesses())[p]
	if len(members) < 2 {
		t.Errorf("%d members, want the shell and its children", len(members))
	}
	if err := p.Signal("KILL"); err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		_ = unix.Kill(m.pid, unix.SIGKILL)
	}
	waitExit(t, p)
}
