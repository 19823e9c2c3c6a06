package ledger

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// queueRecords bounds what waits while standard output is blocked: about 1 MiB at
// most, some minutes of an ordinary session.
const queueRecords = 512

// gatherTime is how long a record may wait for others to be written with, each with a write of its own but all with one
// awakening of the goroutine.
const gatherTime = 5 * time.Millisecond

// Writer writes records without ever making its callers wait: a log collector that
// stalls must not stall commands. Append queues, Run writes.
type Writer struct {
	out  io.Writer
	boot string
	// Now is the clock; NewWriter sets time.Now.
	Now func() time.Time

	mu      sync.Mutex
	seq     uint64
	queue   []Record
	dropped uint64
	wake    chan struct{} // holds one token when the queue changed
	closed  bool
	ended   chan struct{} // closed with closed
}

// NewWriter returns a Writer whose records carry the boot id. Run must be called
// for anything to be written.
func NewWriter(out io.Writer, boot string) *Writer {
	return &Writer{out: out, boot: boot, Now: time.Now, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// Append numbers a record and queues it. When the queue is full, the oldest record
// makes room: it is counted as dropped and its sequence number is missing.
func (w *Writer) Append(record Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	record.Version, record.Boot, record.Seq = Version, w.boot, w.seq
	if record.Time.IsZero() {
		record.Time = w.Now().UTC()
	}
	if w.closed {
		w.dropped++
		return
	}
	if len(w.queue) == queueRecords {
		w.queue = append(w.queue[:0], w.queue[1:]...)
		w.dropped++
	}
	w.queue = append(w.queue, record)
	w.signal()
}

// LastSeq is the number of the newest record.
func (w *Writer) LastSeq() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seq
}

// Dropped counts the records that could not be written.
func (w *Writer) Dropped() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped
}

// Close ends Run once what is queued has been written; later records are dropped.
func (w *Writer) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		close(w.ended)
	}
	w.signal()
}

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run writes records until Close was called and the queue is empty, or ctx ends. A
// write that blocks holds Run but nobody else.
func (w *Writer) Run(ctx context.Context) {
	for {
		record, ok, closed := w.next()
		switch {
		case ok:
			w.write(record)
			continue
		case closed:
			return
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return
		}
		w.gather(ctx)
	}
}

// gather lets more records come, unless there will be none.
func (w *Writer) gather(ctx context.Context) {
	timer := time.NewTimer(gatherTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.ended:
	case <-ctx.Done():
	}
}

func (w *Writer) next() (record Record, ok, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return Record{}, false, w.closed
	}
	record = w.queue[0]
	w.queue = append(w.queue[:0], w.queue[1:]...)
	return record, true, false
}

// write makes one write of one line. An error is counted and not retried: half a
// record may be out, and the next status says all that matters again.
func (w *Writer) write(record Record) {
	if record.Status != nil {
		status := *record.Status
		status.DroppedRecords = w.Dropped()
		record.Status = &status
	}
	line, err := Encode(record)
	if err == nil {
		_, err = w.out.Write(line)
	}
	if err != nil {
		w.mu.Lock()
		w.dropped++
		w.mu.Unlock()
	}
}

// Encode writes a record as one line of at most MaxRecordBytes; texts that are too
// long are cut and say so.
func Encode(record Record) ([]byte, error) {
	return EncodeWithin(record, MaxRecordBytes)
}

// EncodeWithin is Encode with another bound, as for the termination message.
func EncodeWithin(record Record, limit int) ([]byte, error) {
	line, err := encode(record)
	if err != nil {
		return nil, fmt.Errorf("encoding a %s record: %w", record.Type, err)
	}
	if len(line) < limit {
		return append(line, '\n'), nil
	}
	return encodeCut(record, limit)
}
