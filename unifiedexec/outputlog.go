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

// followPatience is how long a process waits for a lossless reader that reads nothing: with the time that it takes to
// notice and to go on, less than a second.
const followPatience = 800 * time.Millisecond

// followLook is how often who waits for a reader looks at the clock. How late it comes to that is time in which nothing here ran, as
// when the machine or the pod's share of it pauses, and is not counted against the reader.
const followLook = 50 * time.Millisecond

// outputLog is everything a process wrote, at absolute offsets: the first half of the limit for
// good, and a sliding window of the newest half. What lies between is gone and counted, unless
// there is a spill that takes what leaves the window.
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
	// spill is nil when nothing goes to a file.
	spill *spill

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

// trimLocked slides the window and hands what leaves it to the spill.
func (l *outputLog) trimLocked() {
	from, drop := l.windowLocked(0, 0)
	for _, b := range l.tail[:drop] {
		l.tailRuns -= len(b.runs)
		if !l.spill.offerLocked(b) {
			b.recycle()
		}
	}
	if drop > 0 {
		l.tail = slices.Delete(l.tail, 0, drop)
	}
	l.tailFrom = from
	if l.spill.takingLocked() {
		// Everything up to the first block is in the file, so all of that block has to be kept.
		l.tailFrom = l.end
		if len(l.tail) > 0 {
			l.tailFrom = l.tail[0].base
		}
	}
}

// windowLocked tells where the window begins once n more bytes with so many runs are there, and how many blocks
// have left it by then. Marks of stream changes count as bytes, so that two streams in turns, a byte each, do not
// cost many times the limit.
func (l *outputLog) windowLocked(n uint64, runs int) (from uint64, blocks int) {
	from = l.tailFrom
	if l.end+n > from+l.tailLimit {
		from = l.end + n - l.tailLimit
	}
	runs += l.tailRuns
	for i, b := range l.tail {
		tooMany := uint64(runs*runBytes) > l.tailLimit && i < len(l.tail)-1
		if b.end() > from && !tooMany {
			return from, i
		}
		from = max(from, b.end())
		runs -= len(b.runs)
	}
	return from, len(l.tail)
}

// makeRoomLocked waits until n more bytes drop nothing that a lossless reader has yet to read, and the spill has
// room for what they push out of memory. A reader that reads nothing for followPatience is let go, and so is a disk
// that takes nothing.
func (l *outputLog) makeRoomLocked(n uint64) {
	l.spill.awaitRoomLocked()
	slow := l.slowLocked(n)
	if len(slow) == 0 {
		return
	}
	wait := followWait{began: time.Now()}
	timer := time.NewTimer(followLook)
	defer timer.Stop()
	for len(slow) > 0 {
		looked := time.Now()
		timer.Reset(followLook)
		// A reader may be asleep, with what the pieces before this one brought still unread.
		l.wakeLocked()
		l.waiting++
		space := l.space
		l.mu.Unlock()
		select {
		case <-space:
		case <-timer.C:
			wait.late += time.Since(looked) - followLook
		}
		l.mu.Lock()
		l.waiting--
		slow = slices.DeleteFunc(l.slowLocked(n), func(r *Reader) bool {
			r.lossless = r.inside || wait.patientLocked(r)
			return !r.lossless
		})
	}
}

// followWait is the time that an append waits for readers.
type followWait struct {
	began time.Time
	// late is for how much of it the machine had no processor for this one.
	late time.Duration
}

// patientLocked is whether a reader that reads nothing is still waited for.
func (w followWait) patientLocked(r *Reader) bool {
	since := w.began
	if r.moved.After(since) {
		since = r.moved
	}
	return time.Since(since)-w.late < followPatience
}

// slowLocked finds the lossless readers that would lose something by n more bytes.
func (l *outputLog) slowLocked(n uint64) []*Reader {
	if !l.sealed || len(l.readers) == 0 {
		return nil
	}
	// A piece is of one stream, so it begins a run at most in each block that it comes to lie in.
	newFrom, blocks := l.windowLocked(n, 2+int(n/fullBlock))
	if newFrom <= l.tailFrom || l.spill.reserveLocked(l.tail[:blocks], n) {
		return nil
	}
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

// release lets every lossless reader go, and makes nobody wait for a disk, so that an append that waits ends.
func (l *outputLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.readers {
		r.lossless = false
	}
	l.spaceLocked()
	l.spill.hurryLocked()
}

// forgotten says that the table knows the process no more; whoever reads still can.
func (l *outputLog) forgotten() {
	l.mu.Lock()
	file := l.spill.leaveLocked()
	l.mu.Unlock()
	if file != nil {
		_ = file.Close() // What it held is nobody's any more.
	}
}

// logSize is a log's state in numbers.
type logSize struct {
	end, dropped, settledAt uint64
	// kept is what memory holds, spilled what the file does; problem is why it takes no more, if that was not its limit.
	kept    int
	spilled uint64
	problem string
	open    bool
}

func (l *outputLog) size() logSize {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := logSize{end: l.end, settledAt: l.end, open: l.open > 0, kept: int(l.headEnd)}
	if l.settled {
		s.settledAt = l.settledAt
	}
	if l.sealed {
		s.spilled, s.problem = l.spill.stateLocked()
		s.dropped = l.tailFrom - l.headEnd - s.spilled
		s.kept += int(l.end - l.tailFrom)
	}
	return s
}

// copyLocked copies what memory holds from an offset on, as far as one stream (0: whichever comes first) and dst go.
func (l *outputLog) copyLocked(dst []byte, from uint64, only streamTag) (int, streamTag) {
	n := 0
	if from < l.headEnd {
		n, only = copyBlocks(l.head, dst, from, only)
		if n == 0 || from+uint64(n) < l.headEnd {
			return n, only
		}
	}
	if at := from + uint64(n); n < len(dst) && at >= l.tailFrom && at < l.end {
		var more int
		more, only = copyBlocks(l.tail, dst[n:], at, only)
		n += more
	}
	return n, only
}

// nextInMemoryLocked returns the first offset not before from that memory holds.
func (l *outputLog) nextInMemoryLocked(from uint64) uint64 {
	if l.sealed && from >= l.headEnd && from < l.tailFrom {
		return l.tailFrom
	}
	return from
}

// nextKeptLocked returns the first offset not before from that can be read.
func (l *outputLog) nextKeptLocked(from uint64) uint64 {
	held := l.nextInMemoryLocked(from)
	if held == from {
		return from
	}
	if spilled, ok := l.spill.nextLocked(from); ok {
		return spilled
	}
	return held
}

// span is a piece of output without regard to streams: what memory holds of [from, to).
type span struct {
	head, tail []byte
	// omitted counts the bytes between head and tail that memory does not hold.
	omitted uint64
	to      uint64
}

// span copies what memory holds of the output from an offset up to another, both streams in the order of arrival.
// What is in the file is left out: a result is cut to less than what memory holds, and a reader can have it.
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
	start := min(l.nextInMemoryLocked(from), to)
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
		n, _ := l.copyLocked(buf[at:], from+uint64(at), 0)
		at += n
	}
	return buf
}
