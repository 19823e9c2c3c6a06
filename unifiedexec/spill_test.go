package unifiedexec

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// memoryFile is a file that fails when it is told to.
type memoryFile struct {
	mu   sync.Mutex
	data []byte
	// writes and reads count down; the one that reaches zero fails, and so do all later ones. Negative never fails.
	writes, reads int
	// hold, when it is not nil, keeps every write until it is closed.
	hold   chan struct{}
	closed int
}

func (f *memoryFile) WriteAt(p []byte, at int64) (int, error) {
	if f.hold != nil {
		<-f.hold
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writes == 0 {
		return len(p) / 2, unix.ENOSPC
	}
	f.writes--
	if need := int(at) + len(p); need > len(f.data) {
		f.data = append(f.data, make([]byte, need-len(f.data))...)
	}
	return copy(f.data[at:], p), nil
}

func (f *memoryFile) ReadAt(p []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reads == 0 {
		return 0, unix.EIO
	}
	f.reads--
	if at > int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.data[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memoryFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed++
	return nil
}

func (f *memoryFile) closes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// spilling makes a log with a spill into a file, and waits at the end of the test for who writes it.
func spilling(t *testing.T, limit int, each int64, file *memoryFile) (*outputLog, *spillStore) {
	t.Helper()
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	store := &spillStore{each: each, all: spillTotal * each, spawn: wg.Go, open: func() (spillFile, error) { return file, nil }}
	l := newOutputLog(limit, 2)
	l.spill = newSpill(store, l)
	return l, store
}

// quiet waits until nothing is on its way to the file.
func quiet(t *testing.T, l *outputLog) {
	t.Helper()
	eventually(t, "the file took everything", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.spill == nil || !l.spill.writing
	})
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not happen within %s: %s", patience, what)
		}
	}
}

// model is what was written, which every reader is held against.
type model struct {
	data    []byte
	streams []Stream
}

func (m *model) write(l *outputLog, s Stream, piece []byte) {
	m.data = append(m.data, piece...)
	m.streams = append(m.streams, slices.Repeat([]Stream{s}, len(piece))...)
	l.append(s, piece)
}

// check holds one chunk against the model and returns where the next has to begin.
func (m *model) check(t *testing.T, c Chunk, at uint64) uint64 {
	t.Helper()
	if c.Offset != at {
		t.Fatalf("a chunk at %d, want %d", c.Offset, at)
	}
	if c.GapTo != 0 {
		if c.GapTo <= at || c.GapTo > uint64(len(m.data)) {
			t.Fatalf("a gap from %d to %d of %d", at, c.GapTo, len(m.data))
		}
		return c.GapTo
	}
	if len(c.Data) == 0 {
		t.Fatalf("an empty chunk at %d", at)
	}
	end := at + uint64(len(c.Data))
	if !bytes.Equal(c.Data, m.data[at:end]) || slices.ContainsFunc(m.streams[at:end], func(s Stream) bool { return s != c.Stream }) {
		t.Fatalf("from %d to %d came %.80q of stream %d, want %.80q of %v", at, end, c.Data, c.Stream, m.data[at:end], m.streams[at:min(end, at+9)])
	}
	return end
}

// readAll reads what there is from the start and returns how much of it were gaps.
func (m *model) readAll(t *testing.T, l *outputLog, o ReaderOptions) (gaps uint64) {
	t.Helper()
	o.Wait = WaitNone
	r := l.newReader(o)
	defer r.Close()
	for at := o.From; ; {
		c, err := r.Next(context.Background())
		if err != nil {
			if !errors.Is(err, io.EOF) || int(at) != len(m.data) && int(o.From) < len(m.data) {
				t.Fatalf("ended at %d of %d with %v", at, len(m.data), err)
			}
			return gaps
		}
		if c.GapTo != 0 {
			gaps += c.GapTo - c.Offset
		}
		at = m.check(t, c, at)
	}
}

func TestSpillKeepsWhatLeavesMemory(t *testing.T) {
	cases := map[string]struct {
		reason string
		limit  int
		each   int64
		pieces []int
		turns  int
		// writes and reads are how many of each the disk lets pass.
		writes, reads int
		gaps          func(n uint64) bool
		left          string
	}{
		"All":        {"everything can be read", 1000, 1 << 20, []int{7, 4096, 1, 300}, 500, -1, -1, func(n uint64) bool { return n == 0 }, ""},
		"Blocks":     {"also over many whole blocks", 256 << 10, 8 << 20, []int{65536, 33000}, 30, -1, -1, func(n uint64) bool { return n == 0 }, ""},
		"Marks":      {"and where streams change with each byte", 4000, 1 << 20, []int{1}, 20_000, -1, -1, func(n uint64) bool { return n == 0 }, ""},
		"NoWindow":   {"and when memory holds nothing", 0, 1 << 20, []int{100, 1, 17}, 300, -1, -1, func(n uint64) bool { return n == 0 }, ""},
		"Cap":        {"beyond the limit bytes are dropped and counted", 1000, 5000, []int{100}, 300, -1, -1, func(n uint64) bool { return n >= 25_000 && n < 29_000 }, ""},
		"TinyCap":    {"a limit below one block keeps nothing", 1000, 10, []int{100}, 300, -1, -1, func(n uint64) bool { return n == 29_000 }, ""},
		"Full":       {"a disk that is full from the start", 1000, 1 << 20, []int{100}, 300, 0, -1, func(n uint64) bool { return n > 0 }, "no space left"},
		"FullLater":  {"a disk that becomes full", 1000, 1 << 20, []int{100}, 3000, 3, -1, func(n uint64) bool { return n > 0 }, "no space left"},
		"Unreadable": {"what cannot be read back is a gap", 1000, 1 << 20, []int{100}, 3000, -1, 2, func(n uint64) bool { return n > 0 }, "input/output error"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			file := &memoryFile{writes: tc.writes, reads: tc.reads}
			l, store := spilling(t, tc.limit, tc.each, file)
			var m model
			text := pattern(64 << 10)
			for i := range tc.turns {
				m.write(l, Stream(1+i%2), text[:tc.pieces[i%len(tc.pieces)]])
			}
			quiet(t, l)
			gaps := m.readAll(t, l, ReaderOptions{})
			size := l.size()
			if file.reads == 0 {
				// The part of a block that was read before it was lost counts too.
				gaps = m.readAll(t, l, ReaderOptions{})
			}
			if !tc.gaps(gaps) || size.dropped != gaps {
				t.Errorf("%s: %d bytes are gaps, %d dropped, %d in the file", tc.reason, gaps, size.dropped, size.spilled)
			}
			if got := uint64(size.kept) + size.spilled + size.dropped; got != size.end {
				t.Errorf("%s: size %+v adds up to %d", tc.reason, size, got)
			}
			if !strings.Contains(size.problem, tc.left) || (tc.left == "") != (size.problem == "") {
				t.Errorf("%s: the problem is %q, want %q", tc.reason, size.problem, tc.left)
			}
			if again := m.readAll(t, l, ReaderOptions{Text: true, MaxBytes: 11}); tc.left == "" && again != gaps {
				t.Errorf("%s: another reader missed %d bytes, want %d", tc.reason, again, gaps)
			}
			l.forgotten()
			if used := store.used.Load(); used != 0 {
				t.Errorf("%d bytes stay counted", used)
			}
			if opened := len(file.data) > 0 || file.writes == 0; opened && file.closes() != 1 {
				t.Errorf("the file was closed %d times", file.closes())
			}
		})
	}
}

// Characters stay whole over the borders of blocks and of the file.
func TestSpillKeepsCharactersWhole(t *testing.T) {
	l, _ := spilling(t, 3001, 1<<20, &memoryFile{writes: -1, reads: -1})
	text := strings.Repeat("a€ö😀", 5000)
	for rest := text; rest != ""; {
		n := min(len(rest), 61)
		l.append(StreamStdout, []byte(rest[:n]))
		rest = rest[n:]
	}
	l.settle()
	quiet(t, l)
	r := l.newReader(ReaderOptions{Text: true, MaxBytes: 100})
	defer r.Close()
	var got strings.Builder
	for {
		c, err := r.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || c.GapTo != 0 {
			t.Fatalf("%+v %v", c, err)
		}
		if wholeRunes(c.Data) != len(c.Data) {
			t.Fatalf("the chunk at %d ends within a character: %q", c.Offset, c.Data)
		}
		got.Write(c.Data)
	}
	if got.String() != text {
		t.Errorf("%d bytes, want %d", got.Len(), len(text))
	}
}

// A disk that takes nothing holds up neither readers nor, for longer than its patience, the process.
func TestSpillIntoAStuckDisk(t *testing.T) {
	file := &memoryFile{writes: -1, reads: -1, hold: make(chan struct{})}
	l, store := spilling(t, 64<<10, 64<<20, file)
	free := sync.OnceFunc(func() { close(file.hold) })
	t.Cleanup(free) // before the writer is waited for
	r := l.newReader(ReaderOptions{})
	defer r.Close()
	piece := pattern(32 << 10)
	var m model
	var written sync.WaitGroup
	written.Go(func() {
		for range 100 {
			m.write(l, StreamStdout, piece)
		}
	})
	for range 8 {
		if _, err := r.Next(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	written.Wait()
	size := l.size()
	if size.problem == "" || size.spilled != 0 || size.dropped != size.end-64<<10 {
		t.Errorf("size %+v", size)
	}
	if gaps := m.readAll(t, l, ReaderOptions{}); gaps != size.dropped {
		t.Errorf("%d bytes are gaps, %d dropped", gaps, size.dropped)
	}
	l.forgotten()
	r.Close()
	if file.closes() != 0 {
		t.Error("the file was closed under a write")
	}
	free()
	quiet(t, l)
	if file.closes() != 1 || store.used.Load() != 0 {
		t.Errorf("closed %d times, %d bytes stay counted", file.closes(), store.used.Load())
	}
}

// The limit of all processes together holds, and what one gives back another may take.
func TestSpillTotal(t *testing.T) {
	file := &memoryFile{writes: -1, reads: -1}
	first, store := spilling(t, 1000, 100_000, file)
	store.all = 120_000
	second := newOutputLog(1000, 1)
	second.spill = newSpill(store, second)
	for range 100 {
		first.append(StreamStdout, pattern(1000))
	}
	for range 100 {
		second.append(StreamStdout, pattern(1000))
	}
	quiet(t, first)
	quiet(t, second)
	if a, b := first.size(), second.size(); a.dropped != 0 || b.dropped < 70_000 || b.spilled == 0 || a.spilled+b.spilled > 120_000 {
		t.Errorf("sizes %+v and %+v", a, b)
	}
	first.forgotten()
	second.forgotten()
	third := newOutputLog(1000, 1)
	third.spill = newSpill(store, third)
	for range 90 {
		third.append(StreamStdout, pattern(1000))
	}
	quiet(t, third)
	if c := third.size(); c.dropped != 0 {
		t.Errorf("size %+v", c)
	}
	third.forgotten()
}

// Whoever reads keeps the file, also when the process is forgotten.
func TestSpillOutlivesTheTable(t *testing.T) {
	file := &memoryFile{writes: -1, reads: -1}
	l, _ := spilling(t, 1000, 1<<20, file)
	var m model
	for range 100 {
		m.write(l, StreamStdout, pattern(1000))
	}
	quiet(t, l)
	r := l.newReader(ReaderOptions{Wait: WaitNone})
	l.forgotten()
	var at uint64
	for {
		c, err := r.Next(t.Context())
		if err != nil {
			break
		}
		at = m.check(t, c, at)
	}
	if at != 100_000 || file.closes() != 0 {
		t.Errorf("read up to %d, closed %d times", at, file.closes())
	}
	r.Close()
	r.Close()
	if file.closes() != 1 {
		t.Errorf("closed %d times", file.closes())
	}
	if gaps := m.readAll(t, l, ReaderOptions{}); gaps != l.size().dropped || gaps < 90_000 {
		t.Errorf("afterwards %d bytes are gaps", gaps)
	}
}

func spillDescriptors(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, entry := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil && strings.HasPrefix(target, dir) {
			n++
		}
	}
	return n
}

// Real processes: a lossless reader that comes late finds everything, nobody waited for it, and the file goes with
// the process.
func TestSpillOfProcesses(t *testing.T) {
	dir := t.TempDir()
	e := newEngine(t, Config{
		Spill:    SpillConfig{Dir: dir, Bytes: 16 << 20},
		Settings: Settings{Limits: Limits{OutputBytes: 64 << 10, EndedProcesses: 1}},
	})
	var want strings.Builder
	for i := 1; i <= 500_000; i++ {
		want.WriteString(itoa(i) + "\n")
	}
	p, r, err := e.StartReading(testContext(t), Command{Argv: []string{"seq", "500000"}}, ReaderOptions{Lossless: true})
	if err != nil {
		t.Fatal(err)
	}
	waitExit(t, p)
	var got strings.Builder
	for {
		c, err := r.Next(testContext(t))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || c.GapTo != 0 {
			t.Fatalf("%+v %v", c, err)
		}
		got.Write(c.Data)
	}
	r.Close()
	info := p.Info()
	if got.String() != want.String() || info.DroppedBytes != 0 || info.SpilledBytes == 0 || info.SpillProblem != "" {
		t.Errorf("%d bytes, want %d; info %+v", got.Len(), want.Len(), info)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("the folder shows %v, %v", names, err)
	}
	if n := spillDescriptors(t, dir); n != 1 {
		t.Errorf("%d files are open", n)
	}
	for range 2 + sweepSlack {
		waitExit(t, start(t, e, Command{Argv: []string{"true"}}))
	}
	if n := spillDescriptors(t, dir); n != 0 {
		t.Errorf("%d files are open when the process is forgotten", n)
	}
}

// A full disk costs output and nothing else.
func TestSpillIntoAFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small filesystem")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	e := newEngine(t, Config{
		Spill:    SpillConfig{Dir: dir, Bytes: 16 << 20},
		Settings: Settings{Limits: Limits{OutputBytes: 64 << 10}},
	})
	p := start(t, e, Command{Script: "head -c 5000000 /dev/zero; exit 7"})
	if rec := waitExit(t, p); rec.Code != 7 {
		t.Errorf("record %+v", rec)
	}
	quiet(t, p.log)
	info := p.Info()
	if info.SpillProblem == "" || info.SpilledBytes == 0 || info.SpilledBytes > 1<<20 || info.DroppedBytes == 0 || info.OutputBytes != 5_000_000 {
		t.Errorf("info %+v", info)
	}
	if gaps := (&model{data: make([]byte, 5_000_000), streams: slices.Repeat([]Stream{StreamStdout}, 5_000_000)}).readAll(t, p.log, ReaderOptions{}); gaps != info.DroppedBytes {
		t.Errorf("%d bytes are gaps, %d dropped", gaps, info.DroppedBytes)
	}
}

func TestSpillConfigIsChecked(t *testing.T) {
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]SpillConfig{
		"Negative": {Dir: t.TempDir(), Bytes: -1}, "Total": {Dir: t.TempDir(), Bytes: 1, TotalBytes: -1},
		"NoDir": {Bytes: 1}, "Missing": {Dir: "/no/such", Bytes: 1}, "File": {Dir: file, Bytes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(Config{Spill: c})
			if _, ok := errors.AsType[*FieldError](err); !ok {
				t.Errorf("error %v", err)
			}
		})
	}
}

// FuzzSpill lets writes and reads take any turns, with any limits and a file that fails at any time, and holds every
// byte that a reader gets against what was written.
func FuzzSpill(f *testing.F) {
	f.Add(uint16(100), uint16(5000), int8(-1), int8(-1), []byte("hello\x01world\x80\x81again\x90"))
	f.Add(uint16(0), uint16(0), int8(2), int8(-1), []byte("\x01\x02\x83\x7f\x7f\x91"))
	f.Add(uint16(1000), uint16(60000), int8(3), int8(2), bytes.Repeat([]byte("\x7f\x10\x82"), 30))
	f.Fuzz(func(t *testing.T, limit, each uint16, writes, reads int8, ops []byte) {
		file := &memoryFile{writes: int(writes), reads: int(reads)}
		l, store := spilling(t, int(limit), int64(each)+1, file)
		var m model
		var readers []*Reader
		var cursors []uint64
		for i, op := range ops {
			if op < 0x80 {
				m.write(l, Stream(1+op%2), bytes.Repeat([]byte{op}, int(op)*(1+i%40)))
				continue
			}
			which := int(op & 0x0f)
			if which >= len(readers) {
				o := ReaderOptions{Wait: WaitNone, From: uint64(len(m.data)) / 2, Text: op&0x10 != 0, MaxBytes: 1 + int(op)*i%5000}
				readers, cursors = append(readers, l.newReader(o)), append(cursors, o.From)
				continue
			}
			if op&0x20 != 0 {
				quiet(t, l)
			}
			if c, err := readers[which].Next(context.Background()); err == nil {
				cursors[which] = m.check(t, c, cursors[which])
			}
		}
		quiet(t, l)
		gaps := m.readAll(t, l, ReaderOptions{})
		if file.reads == 0 {
			gaps = m.readAll(t, l, ReaderOptions{}) // The part of a block that was read before it was lost counts too.
		}
		size := l.size()
		if size.dropped != gaps || uint64(size.kept)+size.spilled+size.dropped != size.end || int(size.end) != len(m.data) {
			t.Fatalf("gaps of %d, size %+v of %d", gaps, size, len(m.data))
		}
		if writes < 0 && reads < 0 && len(m.data) < int(each)/4 && gaps > 0 {
			t.Fatalf("%d bytes are lost although there is room", gaps)
		}
		l.forgotten()
		for _, r := range readers {
			r.Close()
		}
		if used := store.used.Load(); used != 0 {
			t.Fatalf("%d bytes stay counted", used)
		}
	})
}
