package unifiedexec

import (
	"cmp"
	"slices"
	"sync"
)

const (
	firstBlock = 512
	// fullBlock is what a block grows to; only full blocks are used again.
	fullBlock = 32 << 10
	// runBytes is what a stream mark costs in memory.
	runBytes = 8
)

// block is a stretch of output. Its data never moves once written.
type block struct {
	base uint64
	data []byte
	runs []run
}

// run says that from an index of the data on, bytes belong to a stream.
type run struct {
	at     uint32
	stream streamTag
}

// streamTag is a Stream in one byte.
type streamTag uint8

var fullBlocks = sync.Pool{New: func() any { return &block{data: make([]byte, 0, fullBlock)} }}

func newBlock(base uint64, previous, need int) *block {
	size := min(max(firstBlock, 2*previous, need), fullBlock)
	if size == fullBlock {
		b := fullBlocks.Get().(*block)
		b.base = base
		return b
	}
	return &block{base: base, data: make([]byte, 0, size)}
}

// recycle gives a dropped block back; nobody may hold a part of it.
func (b *block) recycle() {
	if cap(b.data) != fullBlock {
		return
	}
	b.data, b.runs = b.data[:0], nil
	fullBlocks.Put(b)
}

func (b *block) end() uint64 { return b.base + uint64(len(b.data)) }

// add takes what fits and returns how much that was, and whether it began a run.
func (b *block) add(s Stream, data []byte) (n, runs int) {
	n = min(len(data), cap(b.data)-len(b.data))
	if n == 0 {
		return 0, 0
	}
	if len(b.runs) == 0 || b.runs[len(b.runs)-1].stream != streamTag(s) {
		b.runs = append(b.runs, run{at: uint32(len(b.data)), stream: streamTag(s)})
		runs = 1
	}
	b.data = append(b.data, data[:n]...)
	return n, runs
}

// appendBlocks adds data at an offset, with new blocks where the last is full.
func appendBlocks(blocks []*block, at uint64, s Stream, data []byte) ([]*block, int) {
	total := 0
	for len(data) > 0 {
		n, runs := 0, 0
		if len(blocks) > 0 {
			n, runs = blocks[len(blocks)-1].add(s, data)
		}
		if n == 0 {
			previous := 0
			if len(blocks) > 0 {
				previous = cap(blocks[len(blocks)-1].data)
			}
			blocks = append(blocks, newBlock(at, previous, len(data)))
			continue
		}
		total += runs
		at += uint64(n)
		data = data[n:]
	}
	return blocks, total
}

// copyBlocks copies from an offset, as far as one stream (0: whichever comes first), the blocks and dst go.
func copyBlocks(blocks []*block, dst []byte, from uint64, only streamTag) (int, streamTag) {
	first, _ := slices.BinarySearchFunc(blocks, from+1, func(b *block, end uint64) int { return cmp.Compare(b.end(), end) })
	n := 0
	for _, b := range blocks[first:] {
		at := int(from + uint64(n) - b.base)
		part, s := b.runAt(at)
		if only != 0 && s != only {
			break
		}
		only = s
		copied := copy(dst[n:], part)
		n += copied
		if n == len(dst) || at+copied < len(b.data) {
			break
		}
	}
	return n, only
}

// runAt returns the data from an index to the end of its run.
func (b *block) runAt(at int) ([]byte, streamTag) {
	i, _ := slices.BinarySearchFunc(b.runs, at+1, func(r run, index int) int { return cmp.Compare(int(r.at), index) })
	end := len(b.data)
	if i < len(b.runs) {
		end = int(b.runs[i].at)
	}
	return b.data[at:end], b.runs[i-1].stream
}
