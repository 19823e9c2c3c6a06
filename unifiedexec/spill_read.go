package unifiedexec

import (
	"cmp"
	"fmt"
	"io"
	"slices"
)

// useLocked is called for each reader. The table's own use began with the spill.
func (s *spill) useLocked() {
	if s != nil {
		s.users++
	}
}

// leaveLocked ends a use and returns what the caller has to close, without the lock: the kernel may have much to free.
func (s *spill) leaveLocked() io.Closer {
	if s == nil {
		return nil
	}
	s.users--
	if f := s.closeLocked(); f != nil {
		return f
	}
	return nil
}

// closeLocked takes the file away once nobody uses it: neither the table, nor a reader, nor the writer.
func (s *spill) closeLocked() spillFile {
	if s.users > 0 {
		return nil
	}
	if !s.sealed || len(s.waiting) > 0 {
		s.failLocked(nil)
	}
	if s.writing {
		return nil
	}
	for _, entry := range s.index {
		s.bytes -= uint64(entry.length)
	}
	s.index = nil
	s.store.used.Add(-s.reserved)
	s.reserved = 0
	f := s.file
	s.file = nil
	return f
}

// nextLocked returns the first offset not before from that index or waiting hold.
func (s *spill) nextLocked(from uint64) (uint64, bool) {
	if s == nil {
		return 0, false
	}
	if i := s.searchLocked(from); i < len(s.index) {
		return max(from, s.index[i].base), true
	}
	for _, b := range s.waiting {
		if b.end() > from {
			return max(from, b.base), true
		}
	}
	return 0, false
}

// searchLocked finds the first block in the file that ends after an offset.
func (s *spill) searchLocked(offset uint64) int {
	i, _ := slices.BinarySearchFunc(s.index, offset+1, func(e spilled, end uint64) int { return cmp.Compare(e.end(), end) })
	return i
}

// waitingLocked copies from blocks that still wait.
func (s *spill) waitingLocked(dst []byte, from uint64, only streamTag) (int, streamTag) {
	if s == nil || len(s.waiting) == 0 || from < s.waiting[0].base || from >= s.waiting[len(s.waiting)-1].end() {
		return 0, only
	}
	return copyBlocks(s.waiting, dst, from, only)
}

// markCache keeps the marks of the block that a reader is in: two streams in turns make chunks of a byte.
type markCache struct {
	base uint64
	runs []run
}

// readLocked copies from the file, within one block and one stream. It lets the lock go meanwhile. What cannot be
// read any more becomes a gap.
func (s *spill) readLocked(dst []byte, from uint64, only streamTag, cache *markCache) (int, streamTag) {
	if s == nil {
		return 0, only
	}
	i := s.searchLocked(from)
	if i == len(s.index) || from < s.index[i].base {
		return 0, only
	}
	entry, file := s.index[i], s.file
	s.log.mu.Unlock()
	n, stream, err := entry.read(file, dst, from, only, cache)
	s.log.mu.Lock()
	if err != nil {
		s.loseLocked(entry, err)
		return 0, only
	}
	return n, stream
}

// read reads without any lock: what is in a file does not change.
func (e spilled) read(file io.ReaderAt, dst []byte, from uint64, only streamTag, cache *markCache) (int, streamTag, error) {
	stream, end := e.stream, uint64(e.length)
	if e.runs > 1 {
		if len(cache.runs) == 0 || cache.base != e.base {
			buf := make([]byte, e.runs*markBytes)
			if _, err := file.ReadAt(buf, e.at+int64(e.length)); err != nil {
				return 0, only, err
			}
			*cache = markCache{base: e.base, runs: decodeRuns(buf)}
		}
		stream, end = e.runAt(cache.runs, from)
	}
	if stream == 0 || end > uint64(e.length) || e.base+end <= from {
		return 0, only, fmt.Errorf("the marks at %d are damaged", e.base)
	}
	if only != 0 && stream != only {
		return 0, only, nil
	}
	dst = dst[:min(uint64(len(dst)), e.base+end-from)]
	n, err := file.ReadAt(dst, e.at+int64(from-e.base))
	if n == len(dst) {
		err = nil
	}
	return n, stream, err
}

// runAt tells the stream at an offset and where in the block its run ends.
func (e spilled) runAt(runs []run, from uint64) (streamTag, uint64) {
	i, _ := slices.BinarySearchFunc(runs, from-e.base+1, func(r run, index uint64) int { return cmp.Compare(uint64(r.at), index) })
	if i == 0 {
		return 0, 0
	}
	if i < len(runs) {
		return runs[i-1].stream, uint64(runs[i].at)
	}
	return runs[i-1].stream, uint64(e.length)
}

// loseLocked takes a block out of the index, unless another reader did so already.
func (s *spill) loseLocked(entry spilled, err error) {
	i := s.searchLocked(entry.base)
	if i == len(s.index) || s.index[i].base != entry.base {
		return
	}
	if s.problem == nil {
		s.problem = err
	}
	s.bytes -= uint64(entry.length)
	s.index = slices.Delete(s.index, i, i+1)
}
