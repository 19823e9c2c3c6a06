package unifiedexec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// spillWaiting is how much of a log waits in memory for its file before the process waits too.
	spillWaiting = 256 << 10
	// spillPatience is how long a process waits for a disk that takes nothing.
	spillPatience = time.Second
	// spillTotal is how many times the limit of one process all of them may take, unless the configuration says.
	spillTotal = 8
	// markBytes is what a mark of a stream costs in a file.
	markBytes = 4
)

// SpillConfig says where output goes that leaves memory.
type SpillConfig struct {
	// Dir is a folder that no command can read or write. Its files have no names and go with their descriptors.
	Dir string
	// Bytes is how much of each process's output may be there; 0 means that nothing goes to a file.
	Bytes int64
	// TotalBytes bounds what all processes have there together; 0 means eight times Bytes.
	TotalBytes int64
}

// spillStore makes the files of an engine's logs and counts what they take.
type spillStore struct {
	each, all int64
	used      atomic.Int64
	open      func() (spillFile, error)
	// spawn runs a goroutine that the engine joins.
	spawn func(func())
}

// spillFile is what a log needs of a file.
type spillFile interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// newSpillStore returns nil when nothing goes to a file.
func newSpillStore(c SpillConfig, spawn func(func())) (*spillStore, error) {
	switch {
	case c.Bytes < 0 || c.TotalBytes < 0:
		return nil, &FieldError{Field: "spill", Problem: "a limit is negative"}
	case c.Bytes == 0:
		return nil, nil
	}
	info, err := os.Stat(c.Dir)
	if err != nil || !info.IsDir() {
		return nil, &FieldError{Field: "spill.dir", Value: shorten(c.Dir), Problem: "is no folder"}
	}
	s := &spillStore{each: c.Bytes, all: c.TotalBytes, open: func() (spillFile, error) { return openSpill(c.Dir) }, spawn: spawn}
	if s.all == 0 {
		s.all = spillTotal * s.each
	}
	return s, nil
}

// openSpill makes a file that nobody else can open. Where the filesystem has no files without names, it has one for a moment.
func openSpill(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "output"), nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "output-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// take counts n more bytes, or says that they are too many.
func (s *spillStore) take(n int64) bool {
	if s.used.Add(n) > s.all {
		s.used.Add(-n)
		return false
	}
	return true
}

// spill is the part of a log between head and tail, in a file. It takes blocks, each where the one before ended,
// until its limit or a failure seals it; from then on the log drops what leaves memory, and counts it.
//
// Blocks are written by a goroutine that is there while some wait, without the log's lock, so that a slow disk
// holds up neither readers nor, beyond spillWaiting, anything but the process whose output it is. All methods may
// be called on nil, and those that end in Locked want the log's lock.
type spill struct {
	store *spillStore
	log   *outputLog

	// index tells the blocks in the file, in order; one that could not be read any more is missing.
	index []spilled
	// waiting are the blocks on their way there, in order; all of them can be read in memory.
	waiting      []*block
	waitingBytes int
	// bytes is how much output index and waiting hold.
	bytes uint64
	// reserved is what of the store's limit belongs to this log, taken what its blocks need of it.
	reserved, taken int64
	sealed          bool
	// problem is why it was sealed, if not by its limit.
	problem error

	// writing is set while the goroutine lives, whose the file is to make; puts counts what it has put there.
	writing bool
	puts    int
	file    spillFile
	// room is closed, and made anew, when a block was put.
	room    chan struct{}
	hurried bool

	// readers count, and so does the table, until it forgets the process; the last one closes the file.
	users int
}

// spilled is a block in a file: its data, and after it the marks if there is more than one.
type spilled struct {
	base   uint64
	at     int64
	length uint32
	runs   uint32
	stream streamTag
}

func (s spilled) end() uint64 { return s.base + uint64(s.length) }

// newSpill makes the spill of a log; nil when there is no store.
func newSpill(store *spillStore, l *outputLog) *spill {
	if store == nil {
		return nil
	}
	return &spill{store: store, log: l, room: make(chan struct{}), users: 1}
}

// fileBytes is what a block takes in a file.
func (b *block) fileBytes() int64 {
	n := int64(len(b.data))
	if len(b.runs) > 1 {
		n += int64(len(b.runs) * markBytes)
	}
	return n
}

// memoryBytes is what a block takes while it waits.
func (b *block) memoryBytes() int { return cap(b.data) + len(b.runs)*runBytes }

// takingLocked is whether the next block would be taken, as far as anybody knows.
func (s *spill) takingLocked() bool { return s != nil && !s.sealed }

// reserveLocked is whether all of some blocks will be taken, when another n bytes of the log push them out.
func (s *spill) reserveLocked(blocks []*block, n uint64) bool {
	if !s.takingLocked() {
		return false
	}
	// A window that holds nothing pushes out the new bytes themselves.
	need := int64(n) + markBytes*(2+int64(n/fullBlock))
	for _, b := range blocks {
		need += b.fileBytes()
	}
	return s.growLocked(s.taken + need)
}

// growLocked makes sure that so much is reserved.
func (s *spill) growLocked(total int64) bool {
	more := total - s.reserved
	if more <= 0 {
		return true
	}
	if total > s.store.each || !s.store.take(more) {
		return false
	}
	s.reserved = total
	return true
}

// offerLocked takes a block that leaves memory. When it says no, the block is the caller's, and so is every later one.
func (s *spill) offerLocked(b *block) bool {
	if !s.takingLocked() {
		return false
	}
	if s.hurried && s.waitingBytes >= spillWaiting || !s.growLocked(s.taken+b.fileBytes()) {
		s.sealed = true
		return false
	}
	s.taken += b.fileBytes()
	s.bytes += uint64(len(b.data))
	s.waiting = append(s.waiting, b)
	s.waitingBytes += b.memoryBytes()
	if !s.writing {
		s.writing = true
		s.store.spawn(s.write)
	}
	return true
}

// awaitRoomLocked lets the lock go until the file has taken enough of what waits, as a process waits that writes a
// file of its own. A disk that takes nothing for spillPatience seals the spill.
func (s *spill) awaitRoomLocked() {
	if s == nil {
		return
	}
	var timer *time.Timer
	puts := s.puts
	for s.waitingBytes >= spillWaiting && !s.sealed && !s.hurried {
		if timer == nil {
			timer = time.NewTimer(spillPatience)
			defer timer.Stop()
		}
		room, expired := s.room, false
		s.log.mu.Unlock()
		select {
		case <-room:
		case <-timer.C:
			expired = true
		}
		s.log.mu.Lock()
		if !expired {
			continue
		}
		if s.puts == puts {
			s.failLocked(fmt.Errorf("the disk took nothing for %s", spillPatience))
		}
		puts = s.puts
		timer.Reset(spillPatience)
	}
}

// hurryLocked makes nobody wait for the disk any more.
func (s *spill) hurryLocked() {
	if s == nil {
		return
	}
	s.hurried = true
	s.roomLocked()
}

func (s *spill) roomLocked() {
	close(s.room)
	s.room = make(chan struct{})
}

// failLocked seals the spill and drops what waits. The writer may be busy with the first of them, so they are left to
// the garbage collector.
func (s *spill) failLocked(err error) {
	if s.problem == nil {
		s.problem = err
	}
	s.sealed = true
	for _, b := range s.waiting {
		s.bytes -= uint64(len(b.data))
	}
	s.waiting, s.waitingBytes = nil, 0
	s.roomLocked()
}

// write puts what waits into the file until nothing does.
func (s *spill) write() {
	for {
		b, at, closing := s.nextWaiting()
		if closing != nil {
			_ = closing.Close() // Nobody can read it any more.
		}
		if b == nil {
			return
		}
		err := s.put(b, at)
		s.wrote(b, at, err)
	}
}

// nextWaiting returns the next block and where it goes; without one the goroutine's time is over, and the file is
// its to close when nobody uses it any more.
func (s *spill) nextWaiting() (b *block, at int64, closing spillFile) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if len(s.waiting) == 0 {
		s.writing = false
		return nil, 0, s.closeLocked()
	}
	if last := len(s.index) - 1; last >= 0 {
		at = s.index[last].at + s.index[last].fileBytes()
	}
	return s.waiting[0], at, nil
}

func (s spilled) fileBytes() int64 {
	if s.runs > 1 {
		return int64(s.length) + int64(s.runs)*markBytes
	}
	return int64(s.length)
}

// put writes a block, which nobody changes any more, without any lock.
func (s *spill) put(b *block, at int64) error {
	if s.file == nil {
		f, err := s.store.open()
		if err != nil {
			return err
		}
		// Readers look at it only for what is in the index, and that comes later, under the lock.
		s.file = f
	}
	if _, err := s.file.WriteAt(b.data, at); err != nil {
		return err
	}
	if len(b.runs) < 2 {
		return nil
	}
	_, err := s.file.WriteAt(encodeRuns(b.runs), at+int64(len(b.data)))
	return err
}

// wrote moves a block from memory to the index.
func (s *spill) wrote(b *block, at int64, err error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if len(s.waiting) == 0 || s.waiting[0] != b {
		return // It was given up meanwhile.
	}
	if err != nil {
		s.failLocked(err)
		return
	}
	s.puts++
	s.index = append(s.index, spilled{
		base: b.base, at: at, length: uint32(len(b.data)), runs: uint32(len(b.runs)), stream: b.runs[0].stream,
	})
	s.waiting = slices.Delete(s.waiting, 0, 1)
	s.waitingBytes -= b.memoryBytes()
	b.recycle()
	if s.waitingBytes < spillWaiting {
		s.roomLocked()
	}
}

// encodeRuns writes each mark in four bytes: an index into a block leaves room for the stream.
func encodeRuns(runs []run) []byte {
	buf := make([]byte, 0, len(runs)*markBytes)
	for _, r := range runs {
		buf = binary.LittleEndian.AppendUint32(buf, r.at<<2|uint32(r.stream))
	}
	return buf
}

func decodeRuns(buf []byte) []run {
	runs := make([]run, 0, len(buf)/markBytes)
	for ; len(buf) >= markBytes; buf = buf[markBytes:] {
		mark := binary.LittleEndian.Uint32(buf)
		runs = append(runs, run{at: mark >> 2, stream: streamTag(mark & 3)})
	}
	return runs
}

// stateLocked tells how much can be read, and what went wrong.
func (s *spill) stateLocked() (bytes uint64, problem string) {
	if s == nil {
		return 0, ""
	}
	if s.problem != nil {
		problem = s.problem.Error()
	}
	return s.bytes, problem
}
