package agentd

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"execsession.dev/unifiedexec"
)

// tableOf is what a journal asks an engine for.
type tableOf struct {
	mu    sync.Mutex
	infos map[int32]unifiedexec.Info
}

func newTable(infos ...unifiedexec.Info) *tableOf {
	t := &tableOf{infos: map[int32]unifiedexec.Info{}}
	for _, info := range infos {
		t.put(info)
	}
	return t
}

func (t *tableOf) put(info unifiedexec.Info) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.infos[info.ID] = info
}

func (t *tableOf) forget(id int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.infos, id)
}

func (t *tableOf) kept() []unifiedexec.Info {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []unifiedexec.Info
	for _, info := range t.infos {
		all = append(all, info)
	}
	return all
}

// fragileFile is a real file whose disk fails or hangs on command.
type fragileFile struct {
	*os.File
	disk *disk
}

// disk is what all files of a journal lie on.
type disk struct {
	mu   sync.Mutex
	full error
	hung chan struct{}
}

func (d *disk) set(full error, hung chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full, d.hung = full, hung
}

func (d *disk) state() (hung chan struct{}, full error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hung, d.full
}

func (f *fragileFile) WriteAt(p []byte, at int64) (int, error) {
	hung, full := f.disk.state()
	if hung != nil {
		<-hung
	}
	// A full disk still takes what changes nothing about its room.
	if info, err := f.Stat(); full != nil && (err != nil || at+int64(len(p)) > info.Size()) {
		n, _ := f.File.WriteAt(p[:len(p)/2], at)
		return n, full
	}
	return f.File.WriteAt(p, at)
}

// quick are limits that tests need not wait for.
var quick = journalLimits{patience: patience, syncEvery: time.Millisecond, retry: 5 * time.Millisecond, size: 1 << 20, queue: 1 << 20}

type testJournal struct {
	*journal
	disk  *disk
	table *tableOf
	path  string
	once  sync.Once
}

func openTestJournal(t *testing.T, path string, limits journalLimits, table *tableOf) *testJournal {
	t.Helper()
	j := &testJournal{journal: newJournal(path, "boot", slog.New(slog.DiscardHandler)), disk: &disk{}, table: table, path: path}
	j.limits = limits
	j.open = func(path string, flags int) (journalFile, error) {
		if _, full := j.disk.state(); full != nil {
			return nil, full
		}
		f, err := os.OpenFile(path, flags, 0o600)
		return &fragileFile{File: f, disk: j.disk}, err
	}
	return j
}

// settled waits until tend has nothing to do.
func (j *testJournal) settled(t *testing.T) {
	t.Helper()
	eventually(t, "the journal has nothing to do", func() bool {
		j.mu.Lock()
		idle := j.next == nil && j.busy == nil && !j.dirty && !j.stale && j.problem == ""
		j.mu.Unlock()
		j.fileMu.Lock()
		defer j.fileMu.Unlock()
		return idle && j.tee == nil
	})
}

// renewNow has the file written anew.
func (j *testJournal) renewNow(t *testing.T) {
	t.Helper()
	j.mu.Lock()
	j.stale = true
	j.mu.Unlock()
	signal(j.work)
	j.settled(t)
}

// end closes the journal, unless that was done.
func (j *testJournal) end() { j.once.Do(j.close) }

func (j *testJournal) stopAfter(t *testing.T) {
	t.Helper()
	t.Cleanup(j.end)
}

func begun(id int32) unifiedexec.Info {
	return unifiedexec.Info{
		ID: id, State: unifiedexec.StateRunning, PID: int(id) + 100, Mark: uint64(id) << 33, PIDStart: 77, TTY: id%2 == 0,
		Command: fmt.Sprintf("echo %d; \"quoted\" €", id), Program: "/bin/sh", Workdir: "/work", StartTime: time.Unix(1_700_000_000+int64(id), 123456789).UTC(),
	}
}

func over(info unifiedexec.Info) unifiedexec.Info {
	info.OutputBytes, info.State = 4711, unifiedexec.StateExited
	info.Exit = &unifiedexec.ExitRecord{
		Reason: unifiedexec.ReasonTimedOut, Code: 124, Signal: "SIGTERM", StartTime: info.StartTime, EndTime: info.StartTime.Add(3 * time.Second),
		Message: "its timeout of 1s was over", UserTime: 12345, SystemTime: 678, MaxRSS: 9 << 20,
	}
	return info
}

// remembered is what a restart has of a process.
func remembered(info unifiedexec.Info) unifiedexec.Info {
	info.State = 0
	return info
}

func read(t *testing.T, path string) journalled {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found, err := readJournal(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestJournalTellsWhatWasToldToIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	running, ended, told := begun(1001), over(begun(1002)), over(begun(1003))
	j := openTestJournal(t, path, quick, newTable())
	j.start(j.table.kept)
	j.stopAfter(t)
	j.settled(t)
	for _, info := range []unifiedexec.Info{running, ended, told} {
		j.table.put(info)
		<-j.Started(info)
		if !slices.ContainsFunc(read(t, path).processes, func(p unifiedexec.Info) bool { return p.ID == info.ID }) {
			t.Errorf("process %d was told before it was in the file", info.ID)
		}
	}
	for _, info := range []unifiedexec.Info{ended, told} {
		<-j.Ended(info)
		found := read(t, path).processes
		if i := slices.IndexFunc(found, func(p unifiedexec.Info) bool { return p.ID == info.ID }); i < 0 || found[i].Exit == nil {
			t.Errorf("the end of %d was told before it was in the file", info.ID)
		}
	}
	j.Told(told.ID)
	told.Told = true
	j.table.put(told)
	j.settled(t)
	want := []unifiedexec.Info{remembered(running), remembered(ended), remembered(told)}
	appended := read(t, path)
	if diff := cmp.Diff(want, appended.processes); diff != "" || appended.closed || appended.skipped != 0 || appended.torn {
		t.Errorf("after appending: %s, %+v", diff, appended)
	}
	j.renewNow(t)
	if diff := cmp.Diff(want, read(t, path).processes); diff != "" {
		t.Errorf("written anew: %s", diff)
	}
	j.end()
	again := newJournal(path, "another", slog.New(slog.DiscardHandler))
	if diff := cmp.Diff(want, again.past.processes); diff != "" || !again.past.closed || again.state() != nil {
		t.Errorf("the next run reads: %s, %+v", diff, again.past)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestReadJournal(t *testing.T) {
	lines := func(records ...journalRecord) string {
		var all []byte
		for _, r := range records {
			all = appendRecord(all, r)
		}
		return string(all)
	}
	open := journalRecord{Open: &openRecord{Boot: "b", Machine: "m", Time: time.Unix(5, 0).UTC()}}
	start, end := startOf(begun(1001)), endOf(over(begun(1001)))
	whole := lines(open, start, end)
	other := begun(1001)
	other.StartTime = other.StartTime.Add(time.Hour)
	version2 := bytes.ReplaceAll([]byte(whole), []byte(`"v":1`), []byte(`"v":2`))
	cases := map[string]struct {
		reason  string
		text    string
		want    []unifiedexec.Info
		skipped uint64
		torn    bool
		lost    string
	}{
		"Nothing":     {"a file that is not there yet", "", nil, 0, false, "the machine stopped"},
		"Whole":       {"as written", whole, []unifiedexec.Info{remembered(over(begun(1001)))}, 0, false, "agentd was killed while the command ran"},
		"Running":     {"no end is told", lines(open, start), []unifiedexec.Info{remembered(begun(1001))}, 0, false, "agentd was killed while the command ran"},
		"Torn":        {"half a last line is no damage", whole[:len(whole)-5], []unifiedexec.Info{remembered(begun(1001))}, 0, true, "has gaps"},
		"Unended":     {"nor is a newline that is missing", whole[:len(whole)-1], []unifiedexec.Info{remembered(over(begun(1001)))}, 0, false, ""},
		"Garbage":     {"lines that are none are counted", "\x00\x00\xff\nhello\n" + whole + "{}\n", []unifiedexec.Info{remembered(over(begun(1001)))}, 3, false, "has gaps"},
		"LongGarbage": {"also when they are long", strings.Repeat("x", 3*maxJournalLine) + "\n" + whole, []unifiedexec.Info{remembered(over(begun(1001)))}, 1, false, "has gaps"},
		"Bit":         {"a changed bit is seen", strings.Replace(whole, "124", "125", 1), []unifiedexec.Info{remembered(begun(1001))}, 1, false, "has gaps"},
		"Version":     {"another version is not read", string(version2), nil, 3, false, "the machine stopped"},
		"Twice":       {"records may come twice", lines(open, start, end, start, end), []unifiedexec.Info{remembered(over(begun(1001)))}, 0, false, ""},
		"Stranger":    {"an end whose start was forgotten is passed over", lines(open, end), nil, 0, false, ""},
		"SameNumber":  {"a number that was used again names the later process", lines(open, start, end, startOf(other)), []unifiedexec.Info{remembered(other)}, 0, false, ""},
		"OldEnd":      {"and an end belongs to the process that it names", lines(open, startOf(other), end), []unifiedexec.Info{remembered(other)}, 0, false, ""},
		"Closed":      {"agentd ended by itself", lines(open, start, journalRecord{Closed: &closedRecord{}}), []unifiedexec.Info{remembered(begun(1001))}, 0, false, "agentd ended before"},
		"Flawed":      {"a record could not be written", lines(journalRecord{Open: &openRecord{Machine: "m", Flawed: 1}}, start), []unifiedexec.Info{remembered(begun(1001))}, 0, false, "has gaps"},
		"Two":         {"two fields are no record", lines(journalRecord{Open: open.Open, Start: start.Start}), nil, 1, false, ""},
		"None":        {"nor is none", lines(journalRecord{}), nil, 1, false, ""},
		"Reason":      {"nor a reason that there is not", lines(journalRecord{Exit: &endRecord{ID: 1, Reason: "Bored", Started: time.Unix(1, 0), Time: time.Unix(1, 0)}}), nil, 1, false, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			found, err := readJournal(strings.NewReader(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, found.processes); diff != "" {
				t.Errorf("%s: %s", tc.reason, diff)
			}
			if found.skipped != tc.skipped || found.torn != tc.torn || !strings.Contains(found.lost("m"), tc.lost) {
				t.Errorf("%s: skipped %d, torn %v, %q; want %d, %v, %q", tc.reason, found.skipped, found.torn, found.lost("m"), tc.skipped, tc.torn, tc.lost)
			}
			if text := found.lost("another"); !strings.Contains(text, "the machine stopped") {
				t.Errorf("%s: on another machine: %q", tc.reason, text)
			}
		})
	}
}

// A run that could not write the file anew goes on in the old one; what ran before ended with that run.
func TestJournalOfSeveralRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	var lines []byte
	for _, r := range []journalRecord{
		{Open: &openRecord{Boot: "1", Machine: "old", Time: time.Unix(10, 0).UTC()}}, startOf(begun(1001)),
		{Open: &openRecord{Boot: "2", Machine: machineID(), Time: time.Unix(20, 0).UTC()}}, startOf(begun(1002)),
	} {
		lines = appendRecord(lines, r)
	}
	if err := os.WriteFile(path, lines[:len(lines)-2], 0o600); err != nil { // torn
		t.Fatal(err)
	}
	j := openTestJournal(t, path, quick, newTable())
	if len(j.past.processes) != 1 || !j.past.torn {
		t.Fatalf("read %+v", j.past)
	}
	first := j.past.processes[0]
	if first.Exit == nil || first.Exit.Code != -1 || !strings.Contains(first.Exit.Message, "machine stopped") || !first.Exit.EndTime.Equal(time.Unix(20, 0)) || !first.OutputLost {
		t.Errorf("the first run's process is %+v", first)
	}
	j.limits.retry = time.Hour
	j.disk.set(nil, nil)
	open := j.open
	j.open = func(path string, flags int) (journalFile, error) {
		if strings.HasSuffix(path, ".new") {
			return nil, unix.ENOSPC
		}
		return open(path, flags)
	}
	j.start(j.table.kept)
	j.stopAfter(t)
	<-j.Started(begun(1003))
	found := read(t, path)
	if found.skipped != 1 || len(found.processes) != 2 || found.processes[1].ID != 1003 || found.processes[1].Exit != nil {
		t.Errorf("read %+v", found)
	}
	eventually(t, "the trouble is told", func() bool {
		state := j.state()
		return state != nil && strings.Contains(state.Problem, "no space left")
	})
}

// The file stays bounded however many commands run, and holds what is kept.
func TestJournalIsBounded(t *testing.T) {
	limits := quick
	limits.size = 16 << 10
	j := openTestJournal(t, filepath.Join(t.TempDir(), "journal"), limits, newTable(begun(1)))
	j.start(j.table.kept)
	j.stopAfter(t)
	for id := int32(1000); id < 3000; id++ {
		info := begun(id)
		j.table.put(info)
		<-j.Started(info)
		info = over(info)
		j.table.put(info)
		<-j.Ended(info)
		if id >= 1010 {
			j.table.forget(id - 10)
		}
	}
	j.settled(t)
	if info, err := os.Stat(j.path); err != nil || info.Size() > 1<<20 {
		t.Errorf("the file has %v bytes, %v", info.Size(), err)
	}
	j.renewNow(t)
	if n := len(read(t, j.path).processes); n != 11 {
		t.Errorf("%d processes are in the file, want 11", n)
	}
	if names, err := filepath.Glob(j.path + "*"); err != nil || len(names) != 1 {
		t.Errorf("the folder holds %v, %v", names, err)
	}
}

// Whatever is told while the file is written anew, again and again, is in it.
func TestJournalLosesNothingWhileItIsWrittenAnew(t *testing.T) {
	limits := quick
	limits.size, limits.syncEvery = 1, time.Microsecond
	j := openTestJournal(t, filepath.Join(t.TempDir(), "journal"), limits, newTable())
	j.start(j.table.kept)
	j.stopAfter(t)
	var wg sync.WaitGroup
	for worker := range int32(4) {
		wg.Go(func() {
			for i := range int32(50) {
				info := begun(1000 + worker*1000 + i)
				j.table.put(info)
				<-j.Started(info)
				info = over(info)
				j.table.put(info)
				<-j.Ended(info)
				if !slices.ContainsFunc(read(t, j.path).processes, func(p unifiedexec.Info) bool { return p.ID == info.ID && p.Exit != nil }) {
					t.Errorf("the end of %d is not in the file", info.ID)
				}
			}
		})
	}
	wg.Wait()
	found := read(t, j.path)
	if len(found.processes) != 200 || found.skipped != 0 {
		t.Errorf("%d processes, %d lines skipped", len(found.processes), found.skipped)
	}
}

// On a full disk commands go on, what is lost is counted, the file itself says so, and once there is room it is whole again.
func TestJournalOnAFullDisk(t *testing.T) {
	j := openTestJournal(t, filepath.Join(t.TempDir(), "journal"), quick, newTable())
	troubles := make(chan struct{}, 100)
	j.onTrouble = func() { troubles <- struct{}{} }
	j.start(j.table.kept)
	j.stopAfter(t)
	j.settled(t)
	running := begun(1001)
	j.table.put(running)
	<-j.Started(running)

	j.disk.set(unix.ENOSPC, nil)
	ended := over(running)
	j.table.put(ended)
	<-j.Ended(ended)
	<-troubles
	if state := j.state(); state == nil || state.Lost != 1 || !strings.Contains(state.Problem, "no space left") {
		t.Fatalf("state %+v", state)
	}
	found := read(t, j.path)
	if !found.flawed || len(found.processes) != 1 || found.processes[0].Exit != nil || found.torn {
		t.Errorf("the file tells %+v", found)
	}

	j.disk.set(nil, nil)
	j.settled(t)
	<-troubles
	found = read(t, j.path)
	if found.flawed || len(found.processes) != 1 || found.processes[0].Exit == nil {
		t.Errorf("once there is room the file tells %+v", found)
	}
	if state := j.state(); state == nil || state.Lost != 1 || state.Problem != "" {
		t.Errorf("once there is room the state is %+v", state)
	}
}

// A disk that does not answer holds a command up for a moment, and later ones not at all.
func TestJournalOnAHungDisk(t *testing.T) {
	limits := quick
	limits.queue, limits.patience = 4<<10, 50*time.Millisecond
	j := openTestJournal(t, filepath.Join(t.TempDir(), "journal"), limits, newTable())
	j.start(j.table.kept)
	j.settled(t)
	hung := make(chan struct{})
	j.disk.set(nil, hung)
	for id := int32(1001); id < 1200; id++ {
		j.table.put(begun(id))
		<-j.Started(begun(id))
	}
	if state := j.state(); state == nil || state.Lost == 0 || !strings.Contains(state.Problem, "took nothing") {
		t.Errorf("state %+v", state)
	}
	j.disk.set(nil, nil)
	close(hung)
	j.settled(t)
	if n := len(read(t, j.path).processes); n != 199 {
		t.Errorf("once it answers, %d processes are in the file, want 199", n)
	}
	j.end()
}

// A folder that is not there stops nobody, and is told.
func TestJournalWithoutAFolder(t *testing.T) {
	j := newJournal(filepath.Join(t.TempDir(), "no", "journal"), "boot", slog.New(slog.DiscardHandler))
	j.start(func() []unifiedexec.Info { return nil })
	<-j.Started(begun(1001))
	<-j.Ended(over(begun(1001)))
	if state := j.state(); state == nil || state.Lost == 0 || state.Problem == "" {
		t.Errorf("state %+v", state)
	}
	j.close()
	select {
	case <-j.Ended(over(begun(1001))):
	case <-time.After(patience):
		t.Error("after its end the journal lets commands wait")
	}
}

func FuzzReadJournal(f *testing.F) {
	whole := appendRecord(appendRecord(appendRecord(nil, journalRecord{Open: &openRecord{Machine: "m"}}), startOf(begun(1001))), endOf(over(begun(1001))))
	f.Add(whole, 10, byte('x'))
	f.Add([]byte("00000000 {}\n"), 0, byte(0))
	f.Fuzz(func(t *testing.T, data []byte, at int, b byte) {
		damaged := slices.Clone(data)
		if at >= 0 && at < len(damaged) {
			damaged[at] = b
		}
		found, err := readJournal(bytes.NewReader(damaged))
		if err != nil {
			t.Fatal(err)
		}
		if n := uint64(bytes.Count(damaged, []byte("\n"))); found.skipped > n {
			t.Fatalf("%d of %d lines were skipped", found.skipped, n)
		}
		for _, info := range found.processes {
			if info.ID <= 0 || info.StartTime.IsZero() {
				t.Fatalf("a process without a name: %+v", info)
			}
		}
		// What was read can be written and read again.
		var lines []byte
		for _, info := range found.processes {
			lines = appendRecord(lines, startOf(info))
			if info.Exit != nil {
				lines = appendRecord(lines, endOf(info))
			}
			if info.Told {
				lines = appendRecord(lines, journalRecord{Told: info.ID})
			}
		}
		again, err := readJournal(bytes.NewReader(lines))
		if err != nil || again.skipped != 0 {
			t.Fatalf("%v, %d skipped", err, again.skipped)
		}
		if diff := cmp.Diff(found.processes, again.processes); diff != "" {
			t.Fatal(diff)
		}
	})
}
