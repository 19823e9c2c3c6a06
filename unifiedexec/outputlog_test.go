package unifiedexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// contents reads what a log keeps, gaps included.
func contents(t *testing.T, l *outputLog, o ReaderOptions) (data []byte, gaps [][2]uint64, chunks []Chunk) {
	t.Helper()
	o.Wait = WaitNone
	r := l.newReader(o)
	defer r.Close()
	for {
		c, err := r.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return data, gaps, chunks
		}
		if err != nil {
			t.Fatal(err)
		}
		if c.GapTo != 0 {
			gaps = append(gaps, [2]uint64{c.Offset, c.GapTo})
			continue
		}
		data = append(data, c.Data...)
		c.Data = bytes.Clone(c.Data)
		chunks = append(chunks, c)
	}
}

// pattern is text in which each stretch tells its offset.
func pattern(n int) []byte {
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, "%07d.", b.Len())
	}
	return b.Bytes()[:n]
}

func TestOutputLogKeepsHeadAndTail(t *testing.T) {
	all := pattern(1 << 20)
	cases := map[string]struct {
		reason       string
		limit, write int
		pieces       int
	}{
		"Fits":       {"nothing is lost", 1000, 1000, 7},
		"OneMore":    {"the oldest byte after the head goes", 1000, 1001, 7},
		"Pieces":     {"fills the head, then the tail over several writes", 1000, 5000, 33},
		"OneWrite":   {"one write larger than both", 1000, 100_000, 100_000},
		"Tiny":       {"many tiny writes", 1000, 5000, 1},
		"Odd":        {"an odd byte belongs to the tail", 1001, 3000, 13},
		"OneByte":    {"a budget of one keeps the last byte", 1, 500, 9},
		"Blocks":     {"over the borders of blocks", 200_000, 1 << 20, 4097},
		"WholeBlock": {"writes as large as blocks", 1 << 18, 1 << 20, 32 << 10},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			l := newOutputLog(tc.limit, 1)
			for at := 0; at < tc.write; at += tc.pieces {
				l.append(StreamStdout, all[at:min(at+tc.pieces, tc.write)])
			}
			want, wantGap := all[:tc.write], 0
			if tc.write > tc.limit {
				head := tc.limit / 2
				tail := tc.limit - head
				want = append(bytes.Clone(all[:head]), all[tc.write-tail:tc.write]...)
				wantGap = tc.write - tc.limit
			}
			got, gaps, _ := contents(t, l, ReaderOptions{})
			if !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, want %d", tc.reason, len(got), len(want))
			}
			dropped := 0
			for _, g := range gaps {
				dropped += int(g[1] - g[0])
			}
			size := l.size()
			if dropped != wantGap || int(size.dropped) != wantGap || int(size.end) != tc.write || size.kept != len(want) {
				t.Errorf("%s: gap %d, size %+v, want a gap of %d", tc.reason, dropped, size, wantGap)
			}
			s := l.span(0, size.end)
			if !bytes.Equal(append(bytes.Clone(s.head), s.tail...), want) || int(s.omitted) != wantGap {
				t.Errorf("%s: span of %d and %d bytes without %d", tc.reason, len(s.head), len(s.tail), s.omitted)
			}
		})
	}
}

func TestOutputLogZeroBudget(t *testing.T) {
	l := newOutputLog(0, 1)
	l.append(StreamStdout, []byte("gone"))
	if got, gaps, _ := contents(t, l, ReaderOptions{}); len(got) != 0 || len(gaps) != 1 || gaps[0] != [2]uint64{0, 4} {
		t.Errorf("%q %v", got, gaps)
	}
}

func TestOutputLogTellsStreams(t *testing.T) {
	l := newOutputLog(1<<20, 2)
	l.append(StreamStdout, []byte("one "))
	l.append(StreamStdout, []byte("two "))
	l.append(StreamStderr, []byte("three "))
	l.append(StreamStdout, []byte("four"))
	_, _, chunks := contents(t, l, ReaderOptions{From: 2})
	var got []string
	for _, c := range chunks {
		got = append(got, fmt.Sprintf("%d:%d:%s", c.Offset, c.Stream, c.Data))
	}
	if want := "2:1:e two |8:2:three |14:1:four"; strings.Join(got, "|") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Two streams in turns, a byte each, cost no more than a few times the limit.
func TestOutputLogBoundsItsMarks(t *testing.T) {
	const limit = 64 << 10
	l := newOutputLog(limit, 2)
	for i := range 1 << 20 {
		l.append(Stream(1+i%2), []byte{'x'})
	}
	if marks := l.tailRuns * runBytes; marks > limit {
		t.Errorf("%d bytes of marks in the tail", marks)
	}
	if size := l.size(); size.end != 1<<20 || size.kept == 0 {
		t.Errorf("size %+v", size)
	}
}

func TestReaderWaitsAndEnds(t *testing.T) {
	l := newOutputLog(1000, 1)
	r := l.newReader(ReaderOptions{})
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("empty: %v", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		time.Sleep(20 * time.Millisecond)
		l.append(StreamStdout, []byte("x"))
		l.flush()
	})
	c, err := r.Next(testContext(t))
	wg.Wait()
	if err != nil || string(c.Data) != "x" {
		t.Fatalf("%+v %v", c, err)
	}
	l.settle()
	if _, err := r.Next(testContext(t)); !errors.Is(err, io.EOF) {
		t.Fatalf("settled: %v", err)
	}
	late := l.newReader(ReaderOptions{Wait: WaitClosed, From: 1})
	defer late.Close()
	l.append(StreamStdout, []byte("y"))
	if c, err = late.Next(testContext(t)); err != nil || string(c.Data) != "y" || c.Offset != 1 {
		t.Fatalf("late: %+v %v", c, err)
	}
	l.closeStream()
	if _, err := late.Next(testContext(t)); !errors.Is(err, io.EOF) {
		t.Fatalf("closed: %v", err)
	}
}

func TestTextReaderKeepsCharactersWhole(t *testing.T) {
	cases := map[string]struct {
		reason string
		writes []string
		max    int
		want   []string
	}{
		"Split":      {"a character that comes in two writes is one chunk's", []string{"a\xe2\x82", "\xacb"}, 0, []string{"a", "€b"}},
		"Bound":      {"a chunk's bound does not split one", []string{"€€€"}, 4, []string{"€", "€", "€"}},
		"Invalid":    {"bytes that are no beginning pass through", []string{"\xff\xfe", "x"}, 0, []string{"\xff\xfe", "x"}},
		"Unfinished": {"the end flushes what never became one", []string{"x\xf0\x9f"}, 0, []string{"x", "\xf0\x9f"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			l := newOutputLog(1000, 1)
			r := l.newReader(ReaderOptions{Text: true, MaxBytes: tc.max})
			defer r.Close()
			var got []string
			read := func(until int) {
				for len(got) < until {
					c, err := r.Next(testContext(t))
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, string(c.Data))
				}
			}
			for i, w := range tc.writes {
				l.append(StreamStdout, []byte(w))
				if len(tc.writes) > 1 && i == 0 {
					read(1)
				}
			}
			l.settle()
			read(len(tc.want))
			if strings.Join(got, "|") != strings.Join(tc.want, "|") {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// A lossless reader that keeps reading loses nothing, however slow it is.
func TestLosslessReaderSlowsTheProcess(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{OutputBytes: 64 << 10}}})
	p := start(t, e, Command{Script: "head -c 20000000 /dev/zero | tr '\\0' x"})
	r := p.NewReader(ReaderOptions{Lossless: true})
	defer r.Close()
	var n, slept int
	for {
		c, err := r.Next(testContext(t))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || c.GapTo != 0 {
			t.Fatalf("%+v %v", c, err)
		}
		n += len(c.Data)
		if slept < 20 && n > (slept+1)*500_000 {
			slept++
			time.Sleep(100 * time.Millisecond)
		}
	}
	if n != 20_000_000 {
		t.Errorf("%d bytes", n)
	}
}

// A reader of StartReading is there before the process writes, and is not let go before its first Next, however late that comes.
func TestStartReadingMissesNothing(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{OutputBytes: 64 << 10}}})
	const size = 2_000_000
	p, r, err := e.StartReading(testContext(t), Command{Argv: []string{"head", "-c", itoa(size), "/dev/zero"}}, ReaderOptions{Lossless: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	select {
	case <-p.Done():
		t.Error("the process did not wait for its reader")
	case <-time.After(followPatience + time.Second):
	}
	n := 0
	for {
		c, err := r.Next(testContext(t))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || c.GapTo != 0 || c.Offset != uint64(n) {
			t.Fatalf("%+v %v at %d", c, err, n)
		}
		n += len(c.Data)
	}
	if n != size {
		t.Errorf("%d bytes, want %d", n, size)
	}
}

// Nor does a reader that never reads keep a process from its end once it is closed, or the engine from closing.
func TestStartReadingAndNotReading(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{OutputBytes: 64 << 10}}})
	c := Command{Argv: []string{"head", "-c", "2000000", "/dev/zero"}}
	p, r, err := e.StartReading(testContext(t), c, ReaderOptions{Lossless: true})
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	waitExit(t, p)
	if _, _, err := e.StartReading(testContext(t), c, ReaderOptions{Lossless: true}); err != nil {
		t.Fatal(err) // the engine is closed with the test, while this one waits
	}
	if _, r, err := e.StartReading(testContext(t), Command{}, ReaderOptions{}); err == nil || r != nil {
		t.Errorf("a bad command gave a reader %v and %v", r, err)
	}
}

// A lossless reader that reads nothing holds the process up for followPatience, not longer, and is told its
// gap exactly; another reader is not harmed.
func TestStalledReaderIsLetGo(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{OutputBytes: 64 << 10}}})
	p := start(t, e, Command{Script: "read go; head -c 20000000 /dev/zero | tr '\\0' x", Stdin: StdinOpen})
	stalled, other := p.NewReader(ReaderOptions{Lossless: true}), p.NewReader(ReaderOptions{Lossless: true})
	defer stalled.Close()
	defer other.Close()
	began := time.Now()
	if _, err := p.Write(testContext(t), []byte("go\n")); err != nil {
		t.Fatal(err)
	}
	n := 0
	for {
		c, err := other.Next(testContext(t))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || c.GapTo != 0 {
			t.Fatalf("%+v %v", c, err)
		}
		n += len(c.Data)
	}
	if n != 20_000_000 {
		t.Errorf("the other reader got %d bytes", n)
	}
	if took := time.Since(began); took < followPatience {
		t.Errorf("nobody waited for the stalled reader: %s", took)
	}
	var got, gap uint64
	for {
		c, err := stalled.Next(testContext(t))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || c.Offset != got+gap {
			t.Fatalf("%+v %v at %d", c, err, got+gap)
		}
		if c.GapTo != 0 {
			gap += c.GapTo - c.Offset
		}
		got += uint64(len(c.Data))
	}
	if got+gap != 20_000_000 || got != 64<<10 {
		t.Errorf("got %d, gap %d", got, gap)
	}
}

// Nobody follows, so the process never waits.
func TestNobodyFollows(t *testing.T) {
	e := newEngine(t, Config{})
	p := start(t, e, Command{Script: "head -c 50000000 /dev/zero"})
	lazy := p.NewReader(ReaderOptions{})
	defer lazy.Close()
	waitExit(t, p)
	if info := p.Info(); info.OutputBytes != 50_000_000 || info.DroppedBytes != 50_000_000-1<<20 {
		t.Errorf("info %+v", info)
	}
}

// Bytes after the exit of the shell are not lost, and invalid UTF-8 stays as it is.
func TestExactBytes(t *testing.T) {
	e := newEngine(t, Config{})
	p := start(t, e, Command{Script: `printf '\377\376\200ok\303'`})
	if got := readAll(t, p, ReaderOptions{}, 0); got != "\xff\xfe\x80ok\xc3" {
		t.Errorf("%q", got)
	}
	for range 20 {
		p = start(t, e, Command{Script: "head -c 60000 /dev/zero; exit 3"})
		waitExit(t, p)
		if n := len(readAll(t, p, ReaderOptions{Wait: WaitNone}, 0)); n != 60_000 {
			t.Fatalf("%d bytes are there at the exit", n)
		}
	}
}

func TestConcurrentReaders(t *testing.T) {
	var want strings.Builder
	for i := 1; i <= 300_000; i++ {
		want.WriteString(itoa(i) + "\n")
	}
	e := newEngine(t, Config{Settings: Settings{Limits: Limits{OutputBytes: 256 << 10}}})
	p := start(t, e, Command{Script: "read go; seq 1 300000", Stdin: StdinOpen})
	var ready, wg sync.WaitGroup
	for range 4 {
		ready.Add(1)
		wg.Go(func() {
			r := p.NewReader(ReaderOptions{Lossless: true, MaxBytes: 1 + rand.IntN(8192)})
			defer r.Close()
			ready.Done()
			var got strings.Builder
			for {
				c, err := r.Next(testContext(t))
				if err != nil || c.GapTo != 0 {
					if !errors.Is(err, io.EOF) || got.String() != want.String() {
						t.Errorf("%d bytes, want %d: %+v %v", got.Len(), want.Len(), c, err)
					}
					return
				}
				got.Write(c.Data)
			}
		})
	}
	ready.Wait()
	if _, err := p.Write(testContext(t), []byte("go\n")); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func FuzzOutputLog(f *testing.F) {
	f.Add(uint16(100), []byte("hello\x01world\x00again"), uint16(3))
	f.Fuzz(func(t *testing.T, limit uint16, ops []byte, from uint16) {
		l := newOutputLog(int(limit), 2)
		var all []byte
		var streams []Stream
		for i, b := range ops {
			s := Stream(1 + b%2)
			piece := bytes.Repeat([]byte{b}, int(b)*(1+i%40))
			all = append(all, piece...)
			for range piece {
				streams = append(streams, s)
			}
			l.append(s, piece)
		}
		size := l.size()
		if int(size.end) != len(all) || size.kept+int(size.dropped) != len(all) || size.kept < min(len(all), int(limit)/2) {
			t.Fatalf("size %+v of %d", size, len(all))
		}
		r := l.newReader(ReaderOptions{From: uint64(from), Wait: WaitNone, Text: from%2 == 1})
		defer r.Close()
		at := uint64(from)
		for {
			c, err := r.Next(context.Background())
			if err != nil {
				break
			}
			if c.Offset != at {
				t.Fatalf("offset %d, want %d", c.Offset, at)
			}
			if c.GapTo != 0 {
				at = c.GapTo
				continue
			}
			for i, b := range c.Data {
				if all[at+uint64(i)] != b || streams[at+uint64(i)] != c.Stream {
					t.Fatalf("byte %d differs", at+uint64(i))
				}
			}
			at += uint64(len(c.Data))
		}
		if int(at) < len(all) {
			t.Fatalf("ended at %d of %d", at, len(all))
		}
	})
}

// A reader's chunks are bounded by what was said last.
func TestReaderLimit(t *testing.T) {
	l := newOutputLog(1<<20, 1)
	r := l.newReader(ReaderOptions{MaxBytes: 10})
	defer r.Close()
	l.append(StreamStdout, make([]byte, 200))
	for _, tc := range []struct{ limit, want int }{{10, 10}, {50, 50}, {1, utf8.UTFMax}, {0, 136}} {
		r.Limit(tc.limit)
		if chunk, err := r.Next(testContext(t)); err != nil || len(chunk.Data) != tc.want {
			t.Errorf("limit %d: %d bytes, %v, want %d", tc.limit, len(chunk.Data), err, tc.want)
		}
	}
}
