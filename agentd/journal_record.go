package agentd

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"time"

	"execsession.dev/agentd/ledger/jsonline"
	"execsession.dev/unifiedexec"
)

// journalVersion is the version of the records that are written and read.
const journalVersion = 1

const (
	// maxJournalLine is more than any record takes, however its texts are escaped.
	maxJournalLine = 128 << 10
	// maxJournalMessage bounds the text of an exit record.
	maxJournalMessage = 1024
	// maxJournalRead bounds what is read of a file, which only damage could make so large.
	maxJournalRead = 64 << 20
)

// journalRecord is one line. Exactly one field beside the version is set.
type journalRecord struct {
	Version int           `json:"v"`
	Open    *openRecord   `json:"open,omitempty"`
	Start   *startRecord  `json:"start,omitempty"`
	Exit    *endRecord    `json:"exit,omitempty"`
	Told    int32         `json:"told,omitempty"`
	Closed  *closedRecord `json:"closed,omitempty"`
}

// openRecord begins a file, and each run of agentd.
type openRecord struct {
	Boot string `json:"boot"`
	// Machine is the kernel's own boot id: what a file system had not yet put on its disk is gone when it changes.
	Machine string    `json:"machine"`
	Time    time.Time `json:"time"`
	// Marks is what unifiedexec.Marks told.
	Marks uint64 `json:"marks,omitempty"`
	// Flawed is 1 when a record of this file could not be written. It is a digit, so that it can be changed in place
	// when the disk has no room for a line more.
	Flawed int `json:"flawed"`
}

type startRecord struct {
	ID      int32     `json:"id"`
	PID     int       `json:"pid"`
	Ticks   uint64    `json:"ticks,omitempty"`
	Mark    uint64    `json:"mark,omitempty"`
	Time    time.Time `json:"time"`
	Command string    `json:"command"`
	Program string    `json:"program"`
	Workdir string    `json:"workdir"`
	TTY     bool      `json:"tty,omitempty"`
}

// endRecord is a whole exit record. Started tells an id's processes apart.
type endRecord struct {
	ID         int32                  `json:"id"`
	Started    time.Time              `json:"started"`
	Time       time.Time              `json:"time"`
	Reason     unifiedexec.ExitReason `json:"reason"`
	Code       int                    `json:"code"`
	Signal     string                 `json:"signal,omitempty"`
	Message    string                 `json:"message,omitempty"`
	User       time.Duration          `json:"user,omitempty"`
	System     time.Duration          `json:"system,omitempty"`
	MaxRSS     int64                  `json:"maxRSS,omitempty"`
	Bytes      uint64                 `json:"bytes,omitempty"`
	OutputLost bool                   `json:"outputLost,omitempty"`
}

// closedRecord is the last word of an agentd that ended by itself.
type closedRecord struct {
	Time time.Time `json:"time"`
}

func startOf(info unifiedexec.Info) journalRecord {
	return journalRecord{Start: &startRecord{
		ID: info.ID, PID: info.PID, Ticks: info.PIDStart, Mark: info.Mark, Time: info.StartTime.UTC(),
		Command: shown(info.Command), Program: valid(info.Program), Workdir: valid(info.Workdir), TTY: info.TTY,
	}}
}

func endOf(info unifiedexec.Info) journalRecord {
	rec := info.Exit
	return journalRecord{Exit: &endRecord{
		ID: info.ID, Started: info.StartTime.UTC(), Time: rec.EndTime.UTC(),
		Reason: rec.Reason, Code: rec.Code, Signal: rec.Signal, Message: valid(rec.Message[:min(len(rec.Message), maxJournalMessage)]),
		User: rec.UserTime, System: rec.SystemTime, MaxRSS: rec.MaxRSS,
		Bytes: info.OutputBytes, OutputLost: info.OutputLost,
	}}
}

// castagnoli is what storage uses against single damaged bits.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const sumDigits = 8

// appendRecord adds a line: eight digits of a checksum, a space, the record.
func appendRecord(lines []byte, r journalRecord) []byte {
	r.Version = journalVersion
	at := len(lines)
	lines = append(lines, "00000000 "...)
	o := jsonline.Into(lines)
	o.Open("")
	o.Int("v", int64(r.Version))
	r.write(o)
	o.Close()
	lines, _ = o.End() // Nothing in a record can fail to be encoded: times are years of four digits.
	sum := binary.BigEndian.AppendUint32(make([]byte, 0, sumDigits/2), crc32.Checksum(lines[at+sumDigits+1:], castagnoli))
	hex.Encode(lines[at:], sum)
	return append(lines, '\n')
}

// write writes the body as encoding/json would.
func (r journalRecord) write(o *jsonline.Object) {
	if r.Open != nil {
		o.Open("open")
		o.Text("boot", r.Open.Boot)
		o.Text("machine", r.Open.Machine)
		o.Time("time", r.Open.Time)
		o.SomeUint("marks", r.Open.Marks)
		o.Int("flawed", int64(r.Open.Flawed))
		o.Close()
	}
	if r.Start != nil {
		r.Start.write(o)
	}
	if r.Exit != nil {
		r.Exit.write(o)
	}
	o.SomeInt("told", int64(r.Told))
	if r.Closed != nil {
		o.Open("closed")
		o.Time("time", r.Closed.Time)
		o.Close()
	}
}

func (s *startRecord) write(o *jsonline.Object) {
	o.Open("start")
	o.Int("id", int64(s.ID))
	o.Int("pid", int64(s.PID))
	o.SomeUint("ticks", s.Ticks)
	o.SomeUint("mark", s.Mark)
	o.Time("time", s.Time)
	o.Text("command", s.Command)
	o.Text("program", s.Program)
	o.Text("workdir", s.Workdir)
	o.SomeTrue("tty", s.TTY)
	o.Close()
}

func (e *endRecord) write(o *jsonline.Object) {
	o.Open("exit")
	o.Int("id", int64(e.ID))
	o.Time("started", e.Started)
	o.Time("time", e.Time)
	o.Text("reason", string(e.Reason))
	o.Int("code", int64(e.Code))
	o.SomeText("signal", e.Signal)
	o.SomeText("message", e.Message)
	o.SomeInt("user", int64(e.User))
	o.SomeInt("system", int64(e.System))
	o.SomeInt("maxRSS", e.MaxRSS)
	o.SomeUint("bytes", e.Bytes)
	o.SomeTrue("outputLost", e.OutputLost)
	o.Close()
}

// parseRecord reads a line without its newline; false when it is no record of this version.
func parseRecord(line []byte) (journalRecord, bool) {
	var r journalRecord
	if len(line) < sumDigits+1 || line[sumDigits] != ' ' {
		return r, false
	}
	var sum [sumDigits / 2]byte
	if _, err := hex.Decode(sum[:], line[:sumDigits]); err != nil {
		return r, false
	}
	data := line[sumDigits+1:]
	if want := crc32.Checksum(data, castagnoli); want != uint32(sum[0])<<24|uint32(sum[1])<<16|uint32(sum[2])<<8|uint32(sum[3]) {
		return r, false
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil || decoder.InputOffset() != int64(len(data)) {
		return r, false
	}
	return r, r.sound()
}

// sound is whether a record is one that this package writes.
func (r journalRecord) sound() bool {
	bodies := 0
	for _, set := range []bool{r.Open != nil, r.Start != nil, r.Exit != nil, r.Told != 0, r.Closed != nil} {
		if set {
			bodies++
		}
	}
	switch {
	case r.Version != journalVersion || bodies != 1:
		return false
	case r.Start != nil:
		return r.Start.ID > 0 && !r.Start.Time.IsZero()
	case r.Exit != nil:
		_, known := exitReasons[r.Exit.Reason]
		return known && r.Exit.ID > 0 && !r.Exit.Started.IsZero() && !r.Exit.Time.IsZero()
	}
	return true
}

// journalled is what a journal tells of an earlier run.
type journalled struct {
	// processes are those that started, sorted by id; without an Exit, the journal does not tell their end.
	processes []unifiedexec.Info
	// machine is the kernel's boot id of the last run.
	machine string
	// marks is what bounds the marks of the last run.
	marks uint64
	// closed says that the last run ended by itself, flawed that records could not be written.
	closed, flawed bool
	// skipped counts lines that are no records. The last one may lack its end: open says that it has no newline, and torn
	// that it is no record either, as after a fall of the machine.
	skipped    uint64
	open, torn bool
}

// readJournal reads what it can. The error is one of reading; what was read until then is told with it.
func readJournal(from io.Reader) (journalled, error) {
	found := journalled{}
	byID := map[int32]*unifiedexec.Info{}
	lines := bufio.NewReaderSize(io.LimitReader(from, maxJournalRead), maxJournalLine)
	var failed error
	for failed == nil {
		line, err := lines.ReadSlice('\n')
		switch {
		case err == nil:
		case errors.Is(err, bufio.ErrBufferFull):
			failed = skipLine(lines)
			line = nil
		case errors.Is(err, io.EOF) && len(line) > 0:
			failed = err
			record, ok := parseRecord(line)
			found.open, found.torn = true, !ok
			if ok {
				found.take(record, byID)
			}
			continue
		default:
			failed = err
			continue
		}
		record, ok := parseRecord(bytes.TrimSuffix(line, []byte{'\n'}))
		if !ok {
			found.skipped++
			continue
		}
		found.take(record, byID)
	}
	for _, info := range byID {
		found.processes = append(found.processes, *info)
	}
	slices.SortFunc(found.processes, func(a, b unifiedexec.Info) int { return int(a.ID - b.ID) })
	if errors.Is(failed, io.EOF) {
		failed = nil
	}
	return found, failed
}

// skipLine reads on to the end of a line that is too long.
func skipLine(lines *bufio.Reader) error {
	for {
		if _, err := lines.ReadSlice('\n'); !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// take adds a record. Records may come twice: a file that was written anew holds what was on its way to the old one.
func (f *journalled) take(r journalRecord, byID map[int32]*unifiedexec.Info) {
	switch {
	case r.Open != nil:
		f.reopen(r.Open, byID)
	case r.Closed != nil:
		f.closed = true
	case r.Start != nil:
		s := r.Start
		if known := byID[s.ID]; known != nil && known.StartTime.Equal(s.Time) {
			return
		}
		byID[s.ID] = &unifiedexec.Info{
			ID: s.ID, PID: s.PID, PIDStart: s.Ticks, Mark: s.Mark, StartTime: s.Time,
			Command: s.Command, Program: s.Program, Workdir: s.Workdir, TTY: s.TTY,
		}
	case r.Exit != nil:
		known := byID[r.Exit.ID]
		if known == nil || !known.StartTime.Equal(r.Exit.Started) {
			return // It was forgotten before it ended.
		}
		known.OutputBytes, known.OutputLost = r.Exit.Bytes, r.Exit.OutputLost
		known.Exit = r.Exit.record()
	case r.Told != 0:
		if known := byID[r.Told]; known != nil {
			known.Told = true
		}
	}
}

// reopen begins a later run in the same file: whatever ran until then ended before it.
func (f *journalled) reopen(r *openRecord, byID map[int32]*unifiedexec.Info) {
	f.flawed = f.flawed || r.Flawed != 0
	for _, info := range byID {
		if info.Exit == nil {
			info.Exit = &unifiedexec.ExitRecord{
				Reason: unifiedexec.ReasonEngineStopped, Code: -1, Message: f.lost(r.Machine),
				StartTime: info.StartTime, EndTime: r.Time,
			}
			info.OutputLost = true
		}
	}
	f.machine, f.marks, f.closed = r.Machine, r.Marks, false
}

// lost says what is known of a process whose end is not in the journal, by an agentd that runs on a machine.
func (f *journalled) lost(machine string) string {
	switch {
	case f.machine != machine:
		// What was written in the last moment was not yet on the disk.
		return "the machine stopped while the command ran, or in the moment after its end"
	case f.closed:
		return "agentd ended before the command did"
	case f.flawed || f.skipped > 0 || f.torn:
		return "agentd was killed while the command ran or after it ended: its journal has gaps"
	}
	return "agentd was killed while the command ran"
}

func (e *endRecord) record() *unifiedexec.ExitRecord {
	return &unifiedexec.ExitRecord{
		Reason: e.Reason, Code: e.Code, Signal: e.Signal, Message: e.Message, StartTime: e.Started, EndTime: e.Time,
		UserTime: e.User, SystemTime: e.System, MaxRSS: e.MaxRSS,
	}
}
