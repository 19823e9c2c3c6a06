package unifiedexec

import (
	"slices"
	"sync"
	"time"
)

// Stream says where a byte was written.
type Stream int

// The streams.
const (
	StreamStdout Stream = iota + 1
	StreamStderr
	// StreamTTY is a terminal's one stream.
	StreamTTY
)

// followPatience is how long a process waits for a lossless reader that reads nothing.
const followPatience = time.Second

// outputLog is everything a process wrote, at absolute offsets: the first half of the limit for
// good, and a sliding window of the newest half. What lies between is gone and counted.
//
// Blocks grow with what was written, so a quiet process costs little. Bytes are copied in
// and out under the lock; that makes dropped blocks reusable at once.
type outputLog struct {
	mu        sync.Mutex
	headLimit uint64
	tailLimit uint64

	head    []*block
	headEnd uint64
	// sealed is set once the head is full; from then on everything goes to the tail.
	sealed   bool
	tail     []*block
	tailFrom uint64
	tailRuns int
	end      uint64

	// open counts the streams that somebody may still write to.
	open int
	// settled is set with the exit record; settledAt is where the process's own output ends.
	settled   bool
	settledAt uint64

	readers []*Reader
	// untold counts bytes that readers were not woken for.
	untold int
	// space is closed, and made anew, when lossless readers made room while an append waits.
	space   chan struct{}
	waiting int
}

func newOutputLog(limit, streams int) *outputLog {
	head := limit / 2
	return &outputLog{
		headLimit: uint64(head),
		tailLimit: uint64(limit - head),
		open:      streams,
		space:     make(chan struct{}),
	}
}

// wakeBytes is how much an append may leave untold; flush tells the rest. A stream that delivers
// without a pause then costs one turn of the scheduler for many reads.
const wakeBytes = 128 << 10

// append adds what a stream delivered. It waits for lossless readers that keep reading. The caller
// calls flush when the stream pauses.
func (l *outputLog) append(s Stream, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.untold += len(data)
	for len(data) > 0 {
		n := len(data)
		if l.sealed {
			// At most half a window at once, so that a reader inside the window can make room.
			n = min(n, max(int(l.tailLimit/2), 1))
		} else {
			n = min(n, int(l.headLimit-l.headEnd))
		}
		if n > 0 {
			l.makeRoomLocked(uint64(n))
			l.storeLocked(s, data[:n])
			data = data[n:]
		}
		if !l.sealed && l.headEnd == l.headLimit {
			l.sealed = true
			l.tailFrom = l.end
		}
	}
	if l.untold >= wakeBytes {
		l.wakeLocked()
	}
}

// flush wakes readers for what was appended since they were woken.
func (l *outputLog) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.untold > 0 {
		l.wakeLocked()
	}
}

func (l *outputLog) storeLocked(s Stream, data []byte) {
	if !l.sealed {
		l.head, _ = appendBlocks(l.head, l.end, s, data)
		l.end += uint64(len(data))
		l.headEnd = l.end
		return
	}
	var runs int
	l.tail, runs = appendBlocks(l.tail, l.end, s, data)
	l.tailRuns += runs
	l.end += uint64(len(data))
	l.trimLocked()
}

// trimLocked slides the window. Marks of stream changes count as bytes, so that two streams in
// turns, a byte each, do not cost many times the limit.
func (l *outputLog) trimLocked() {
	if l.end-l.tailFrom > l.tailLimit {
		l.tailFrom = l.end - l.tailLimit
	}
	drop := 0
	for i, b := range l.tail {
		tooMany := uint64(l.tailRuns*runBytes) > l.tailLimit && i < len(l.tail)-1
		if b.end() > l.tailFrom && !tooMany {
			break
		}
		l.tailFrom = max(l.tailFrom, b.end())
		l.tailRuns -= len(b.runs)
		b.recycle()
		drop = i + 1
	}
	if drop > 0 {
		l.tail = slices.Delete(l.tail, 0, drop)
	}
}

// makeRoomLocked waits until n more bytes drop nothing that a lossless reader has yet to read. A
// reader that reads nothing for followPatience is let go.
func (l *outputLog) makeRoomLocked(n uint64) {
	var timer *time.Timer
	var stalled map[*Reader]uint64
	for {
		slow := l.slowLocked(n)
		if len(slow) == 0 {
			break
		}
		if timer == nil {
			timer = time.NewTimer(followPatience)
			defer timer.Stop()
			stalled = positions(slow)
		}
		// A reader may be asleep, with what the pieces before this one brought still unread.
		l.wakeLocked()
		l.waiting++
		space := l.space
		l.mu.Unlock()
		expired := false
		select {
		case <-space:
		case <-timer.C:
			expired = true
		}
		l.mu.Lock()
		l.waiting--
		if !expired {
			continue
		}
		for r, at := range stalled {
			if r.cursor == at && !r.inside {
				r.lossless = false
			}
		}
		timer.Reset(followPatience)
		stalled = positions(l.slowLocked(n))
	}
}

func positions(readers []*Reader) map[*Reader]uint64 {
	at := make(map[*Reader]uint64, len(readers))
	for _, r := range readers {
		at[r] = r.cursor
	}
	return at
}

// slowLocked finds the lossless readers that would lose something by n more bytes.
func (l *outputLog) slowLocked(n uint64) []*Reader {
	if !l.sealed || l.end+n <= l.headEnd+l.tailLimit {
		return nil
	}
	newFrom := l.end + n - l.tailLimit
	var slow []*Reader
	for _, r := range l.readers {
		if r.lossless && max(r.cursor, l.headEnd) < newFrom {
			slow = append(slow, r)
		}
	}
	return slow
}

// movedLocked tells a waiting append that a reader moved on, once half the window is free: an append
// for every chunk would be a turn of the scheduler for every chunk.
func (l *outputLog) movedLocked() {
	if l.waiting > 0 && len(l.slowLocked(max(l.tailLimit/2, 1))) == 0 {
		l.spaceLocked()
	}
}

func (l *outputLog) spaceLocked() {
	close(l.space)
	l.space = make(chan struct{})
}

func (l *outputLog) wakeLocked() {
	l.untold = 0
	for _, r := range l.readers {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// closeStream says that nobody can write to one of the streams any more.
func (l *outputLog) closeStream() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	l.wakeLocked()
}

// settle says that the process ended and everything it wrote is here.
func (l *outputLog) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settled = true
	l.settledAt = l.end
	l.wakeLocked()
}

// release lets every lossless reader go, so that an append that waits for one ends.
func (l *outputLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.readers {
		r.lossless = false
	}
	l.spaceLocked()
}

// logSize is a log's state in numbers.
type logSize struct {
	end, dropped, settledAt uint64
	kept                    int
	open                    bool
}

func (l *outputLog) size() logSize {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := logSize{end: l.end, settledAt: l.end, open: l.open > 0, kept: int(l.headEnd)}
	if l.settled {
		s.settledAt = l.settledAt
	}
	if l.sealed {
		s.dropped = l.tailFrom - l.headEnd
		s.kept += int(l.end - l.tailFrom)
	}
	return s
}

// copyLocked copies from an offset that is kept, as far as one stream and dst go.
func (l *outputLog) copyLocked(dst []byte, from uint64) (int, Stream) {
	blocks := l.tail
	if from < l.headEnd {
		blocks = l.head
	}
	n, s := copyBlocks(blocks, dst, from)
	if n < len(dst) && from+uint64(n) == l.headEnd && l.tailFrom == l.headEnd && len(l.tail) > 0 {
		if more, next := copyBlocks(l.tail, dst[n:], l.headEnd); next == s {
			n += more
		}
	}
	return n, s
}

// nextKeptLocked returns the first kept offset that is not before from.
func (l *outputLog) nextKeptLocked(from uint64) uint64 {
	if l.sealed && from >= l.headEnd && from < l.tailFrom {
		return l.tailFrom
	}
	return from
}

// span is a piece of output without regard to streams: what is kept of [from, to).
type span struct {
	head, tail []byte
	// omitted counts the bytes between head and tail that are not kept.
	omitted uint64
	to      uint64
}

// span copies what is kept of the output from an offset up to another, both streams in the order of arrival.
func (l *outputLog) span(from, to uint64) span {
	l.mu.Lock()
	defer l.mu.Unlock()
	to = min(to, l.end)
	out := span{to: to}
	if from >= to {
		return out
	}
	if from < l.headEnd {
		out.head = l.rangeLocked(from, min(to, l.headEnd))
		from = min(to, l.headEnd)
	}
	start := min(l.nextKeptLocked(from), to)
	out.omitted = start - from
	rest := l.rangeLocked(start, to)
	if out.omitted == 0 {
		out.head = append(out.head, rest...)
		return out
	}
	out.tail = rest
	return out
}

func (l *outputLog) rangeLocked(from, to uint64) []byte {
	buf := make([]byte, to-from)
	for at := 0; at < len(buf); {
		n, _ := l.copyLocked(buf[at:], from+uint64(at))
		at += n
	}
	return buf
}
