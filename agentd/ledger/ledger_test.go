package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines keeps every write apart.
type lines struct {
	mu     sync.Mutex
	writes [][]byte
	block  chan struct{} // when not nil, writes wait until it is closed
	err    error
}

func (l *lines) Write(p []byte) (int, error) {
	if l.block != nil {
		<-l.block
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes = append(l.writes, bytes.Clone(p))
	return len(p), l.err
}

func (l *lines) records(t *testing.T) []Record {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var records []Record
	for _, line := range l.writes {
		if bytes.Count(line, []byte("\n")) != 1 || !bytes.HasSuffix(line, []byte("\n")) {
			t.Errorf("one write holds %q, want one line", line)
		}
		record, err := Parse(line)
		if err != nil {
			t.Fatalf("parsing %q: %v", line, err)
		}
		records = append(records, record)
	}
	return records
}

// start runs the writer; the function it returns closes and joins it.
func start(w *Writer) (finish func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(context.Background())
	}()
	return func() {
		w.Close()
		<-done
	}
}

func TestWriterNumbersRecords(t *testing.T) {
	var out lines
	w := NewWriter(&out, "boot-1")
	now := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	w.Now = func() time.Time { return now }
	finish := start(w)
	w.Append(Record{Type: TypeStarted, Started: &Started{ID: 1000, Program: "sh", Digest: "sha256:00"}})
	w.Append(Record{Type: TypeExited, Exited: &Exited{ID: 1000, Reason: "Exited", ExitCode: 7, StartTime: now, EndTime: now}})
	w.Append(Record{Type: TypeStatus, Status: &Status{AgentVersion: "v1", StartTime: now}})
	finish()
	want := []Record{
		{Version: 1, Boot: "boot-1", Seq: 1, Time: now, Type: TypeStarted, Started: &Started{ID: 1000, Program: "sh", Digest: "sha256:00"}},
		{Version: 1, Boot: "boot-1", Seq: 2, Time: now, Type: TypeExited, Exited: &Exited{ID: 1000, Reason: "Exited", ExitCode: 7, StartTime: now, EndTime: now}},
		{Version: 1, Boot: "boot-1", Seq: 3, Time: now, Type: TypeStatus, Status: &Status{AgentVersion: "v1", StartTime: now}},
	}
	if diff := cmp.Diff(want, out.records(t)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

func TestBlockedOutputDropsTheOldest(t *testing.T) {
	out := lines{block: make(chan struct{})}
	w := NewWriter(&out, "boot-1")
	finish := start(w)
	const total = queueRecords + 100
	for i := range total { // would hang here if Append waited
		w.Append(Record{Type: TypeRefused, Refused: &Refused{Reason: fmt.Sprint(i)}})
	}
	w.Append(Record{Type: TypeStatus, Status: &Status{}})
	close(out.block)
	finish()
	records := out.records(t)
	last := records[len(records)-1]
	if last.Seq != total+1 || last.Status == nil {
		t.Fatalf("the last record is %+v, want the status with seq %d", last, total+1)
	}
	missing := uint64(total + 1 - len(records))
	if missing == 0 || last.Status.DroppedRecords != missing || w.Dropped() != missing {
		t.Errorf("%d records are missing, the status counts %d, the writer %d", missing, last.Status.DroppedRecords, w.Dropped())
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	w := NewWriter(&lines{}, "boot-1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.Run(ctx)
	w.Append(Record{Type: TypeStatus, Status: &Status{}})
}

func TestWriteErrorsAreCounted(t *testing.T) {
	out := lines{err: errors.New("broken pipe")}
	w := NewWriter(&out, "boot-1")
	finish := start(w)
	w.Append(Record{Type: TypeStatus, Status: &Status{}})
	finish()
	w.Append(Record{Type: TypeStatus, Status: &Status{}})
	if w.Dropped() != 2 {
		t.Errorf("dropped is %d, want 2: one failed, one came after Close", w.Dropped())
	}
}

func TestEncodeCutsHonestly(t *testing.T) {
	long := strings.Repeat("é\x01\"", 5000)
	many := make([]string, 500)
	for i := range many {
		many[i] = strings.Repeat("x", 300)
	}
	cases := map[string]struct {
		reason string
		record Record
		limit  int
	}{
		"Command":     {"a command line may have 2 MiB", Record{Type: TypeStarted, Started: &Started{Program: "sh", Command: long}}, MaxRecordBytes},
		"NotEnforced": {"a policy may have 1000 paths", Record{Type: TypeStatus, Status: &Status{Sandbox: Sandbox{NotEnforced: many}}}, MaxRecordBytes},
		"Termination": {"the termination message holds half as much", Record{Type: TypeStatus, Status: &Status{Policy: Policy{Message: long}}}, 4096},
		"Refused":     {"a message may quote a path", Record{Type: TypeRefused, Refused: &Refused{Reason: "X", Message: long}}, MaxRecordBytes},
		"Policy":      {"so may this one", Record{Type: TypePolicy, Policy: &Policy{Reason: "X", Message: long}}, MaxRecordBytes},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.record.Version, tc.record.Boot, tc.record.Seq = Version, "b", 1
			line, err := EncodeWithin(tc.record, tc.limit)
			if err != nil {
				t.Fatal(err)
			}
			if len(line) > tc.limit || len(line) < tc.limit/8 {
				t.Errorf("%s: the line has %d bytes, want nearly %d", tc.reason, len(line), tc.limit)
			}
			if _, err := Parse(line); err != nil {
				t.Errorf("the cut line does not parse: %v", err)
			}
			if !bytes.Contains(line, []byte("bytes cut)")) && !bytes.Contains(line, []byte("more)")) {
				t.Errorf("the line does not say that it was cut: %s", line)
			}
		})
	}
	if many[0] != strings.Repeat("x", 300) {
		t.Error("Encode changed the caller's list")
	}
	if _, err := EncodeWithin(Record{Type: TypeExited, Exited: &Exited{}}, 10); err == nil {
		t.Error("a record that cannot fit must be an error")
	}
}

func TestParseRefuses(t *testing.T) {
	cases := map[string]struct {
		reason string
		line   string
	}{
		"Empty":        {"a log has empty lines", ""},
		"Text":         {"a panic's trace lands between records", "panic: runtime error"},
		"Half":         {"limitBytes cuts in the middle", `{"v":1,"boot":"b","seq":1,"ty`},
		"Version":      {"another version is not guessed at", `{"v":2,"boot":"b","seq":1,"type":"status","status":{}}`},
		"NoBoot":       {"somebody else's JSON", `{"v":1,"level":"info"}`},
		"NoBody":       {"a status without a state says nothing", `{"v":1,"boot":"b","seq":1,"type":"status"}`},
		"OtherBody":    {"a body of another type", `{"v":1,"boot":"b","seq":1,"type":"status","exited":{}}`},
		"TwoBodies":    {"two bodies", `{"v":1,"boot":"b","seq":1,"type":"status","status":{},"exited":{}}`},
		"NegativeSeq":  {"a number out of range", `{"v":1,"boot":"b","seq":-1,"type":"status","status":{}}`},
		"LongerThanIs": {"agentd writes none that long", `{"v":1,"boot":"` + strings.Repeat("b", MaxRecordBytes) + `"}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if record, err := Parse([]byte(tc.line)); !errors.Is(err, ErrNotRecord) {
				t.Errorf("%s: got %+v, %v, want ErrNotRecord", tc.reason, record, err)
			}
		})
	}
	record, err := Parse([]byte(`{"v":1,"boot":"b","seq":9,"type":"denied","denied":{"path":"/x"},"new":1}` + "\n"))
	if err != nil || record.Type != "denied" || record.Seq != 9 {
		t.Errorf("a type from the future: got %+v, %v", record, err)
	}
}

func FuzzParse(f *testing.F) {
	line, err := Encode(Record{Version: Version, Boot: "b", Seq: 1, Type: TypeStatus, Status: &Status{}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Fuzz(func(t *testing.T, line []byte) {
		record, err := Parse(line)
		if err != nil {
			return
		}
		if _, err := Encode(record); err != nil {
			t.Fatalf("a parsed record cannot be written: %v", err)
		}
	})
}
