package unifiedexec

import (
	"context"
	"io"
	"slices"
	"time"
	"unicode/utf8"
)

// ReadWait says how long a Reader waits for more.
type ReadWait int

// The waits.
const (
	// WaitExit ends with io.EOF once the exit record is there and everything up to it was read.
	WaitExit ReadWait = iota
	// WaitNone ends with io.EOF at the newest byte.
	WaitNone
	// WaitClosed ends with io.EOF once nobody, descendants included, holds the output any more.
	WaitClosed
)

const defaultChunk = 32 << 10

// ReaderOptions say what a Reader reads.
type ReaderOptions struct {
	// From is the first offset to read.
	From uint64
	Wait ReadWait
	// Lossless slows the process down rather than lose a byte, while the reader keeps reading.
	Lossless bool
	// Text ends every chunk at the border of a UTF-8 character where the bytes are UTF-8.
	Text bool
	// MaxBytes bounds a chunk; 0 means 32 KiB, and less than 4 means 4.
	MaxBytes int
}

// Chunk is a piece of output or, when GapTo is not 0, a hole in it: the bytes from Offset to
// GapTo are not kept any more.
type Chunk struct {
	Offset uint64
	Stream Stream
	// Data is valid until the next call of Next.
	Data  []byte
	GapTo uint64
}

// Reader is a cursor into a process's output. It is for one goroutine.
type Reader struct {
	log  *outputLog
	opts ReaderOptions
	wake chan struct{}
	buf  []byte
	// marks are of the block in the file that was read last.
	marks markCache

	// Guarded by log.mu.
	cursor   uint64
	lossless bool
	// inside is set while Next runs: such a reader reads as soon as the machine lets it, so it is never let go.
	inside bool
	// moved is when it last read while an append waited.
	moved time.Time
}

// newWaitingReader makes a reader that counts as waiting in Next already, so that it is not let go before its first.
func (l *outputLog) newWaitingReader(o ReaderOptions) *Reader {
	r := l.newReader(o)
	l.mu.Lock()
	defer l.mu.Unlock()
	r.inside = true
	return r
}

func (l *outputLog) newReader(o ReaderOptions) *Reader {
	r := &Reader{log: l, opts: o, wake: make(chan struct{}, 1), cursor: o.From, lossless: o.Lossless}
	r.Limit(o.MaxBytes)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers = append(l.readers, r)
	l.spill.useLocked()
	return r
}

// Limit bounds the chunks from now on, as ReaderOptions.MaxBytes does from the first.
func (r *Reader) Limit(bytes int) {
	if bytes <= 0 {
		bytes = defaultChunk
	}
	r.opts.MaxBytes = max(bytes, utf8.UTFMax)
}

// Next waits for the next chunk. io.EOF is the end as ReaderOptions.Wait says.
func (r *Reader) Next(ctx context.Context) (Chunk, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Chunk{}, err
		}
		chunk, ok, final := r.take()
		if ok {
			return chunk, nil
		}
		if final {
			return Chunk{}, io.EOF
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			r.outside()
		}
	}
}

func (r *Reader) outside() {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	r.inside = false
}

// Close lets the process go.
func (r *Reader) Close() {
	if file := r.leave(); file != nil {
		_ = file.Close() // What it held is nobody's any more.
	}
}

// leave returns the file when this was the last that could read it.
func (r *Reader) leave() io.Closer {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.readers, r)
	if i < 0 {
		return nil
	}
	l.readers = slices.Delete(l.readers, i, i+1)
	r.lossless = false
	l.movedLocked()
	return l.spill.leaveLocked()
}

// take returns the next chunk if there is one, and whether there will never be another.
func (r *Reader) take() (chunk Chunk, ok, final bool) {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	r.inside = true
	defer func() { r.inside = !ok && !final }()
	for {
		if r.finalLocked(r.cursor) {
			return Chunk{}, false, true
		}
		if kept := l.nextKeptLocked(r.cursor); kept > r.cursor {
			chunk = Chunk{Offset: r.cursor, GapTo: kept}
			r.moveLocked(kept)
			return chunk, true, false
		}
		if r.cursor >= l.end {
			return Chunk{}, false, false
		}
		r.growLocked()
		n, s := r.fillLocked()
		if n == 0 {
			continue // It was lost while the file was read.
		}
		if r.opts.Text {
			if n = r.cutLocked(n); n == 0 {
				return Chunk{}, false, false
			}
		}
		chunk = Chunk{Offset: r.cursor, Stream: Stream(s), Data: r.buf[:n]}
		r.moveLocked(r.cursor + uint64(n))
		return chunk, true, false
	}
}

// fillLocked reads into the buffer from the cursor on, as far as one stream goes. It lets the lock go while it reads the file.
func (r *Reader) fillLocked() (n int, only streamTag) {
	l := r.log
	for n < len(r.buf) {
		at := r.cursor + uint64(n)
		more, stream := l.copyLocked(r.buf[n:], at, only)
		if more == 0 && l.spill != nil {
			if more, stream = l.spill.waitingLocked(r.buf[n:], at, only); more == 0 {
				more, stream = l.spill.readLocked(r.buf[n:], at, only, &r.marks)
			}
		}
		if more == 0 {
			break
		}
		n, only = n+more, stream
	}
	return n, only
}

func (r *Reader) finalLocked(at uint64) bool {
	l := r.log
	switch r.opts.Wait {
	case WaitNone:
		return at >= l.end
	case WaitClosed:
		return l.open == 0 && l.settled && at >= l.end
	default:
		return l.settled && at >= l.settledAt
	}
}

// moveLocked advances the cursor. A reader that was let go and caught up is waited for again.
func (r *Reader) moveLocked(to uint64) {
	r.cursor = to
	if r.log.waiting > 0 {
		r.moved = time.Now()
	}
	if r.opts.Lossless && to >= r.log.end {
		r.lossless = true
	}
	r.log.movedLocked()
}

// growLocked makes the buffer as large as what there is to read, so that a reader of little costs little.
func (r *Reader) growLocked() {
	want := int(min(uint64(r.opts.MaxBytes), r.log.end-r.cursor))
	if cap(r.buf) < want {
		r.buf = make([]byte, max(want, min(2*cap(r.buf), r.opts.MaxBytes)))
	}
	r.buf = r.buf[:min(cap(r.buf), r.opts.MaxBytes)]
}

// cutLocked moves the end of the n bytes in the buffer to the border of a character; 0 means
// that the rest of the only character has to come first.
func (r *Reader) cutLocked(n int) int {
	whole := wholeRunes(r.buf[:n])
	if whole > 0 {
		return whole
	}
	after := r.cursor + uint64(n)
	if after < r.log.end || r.finalLocked(after) {
		// Another stream's bytes follow, or nothing ever will: these are not a character.
		return n
	}
	return 0
}
