package sandbox

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
)

// Where the parts of the limiter lie in its file, and so in memory from imageBase on. The assembly knows
// imageBase + imageTable.
const (
	imageBase  = 0x400000
	imageCode  = 0x100
	imageTable = 0x800
)

// elfHeader and elfSegment are those of a 64-bit executable.
type elfHeader struct {
	Magic                                                                   [16]byte
	Type, Machine                                                           uint16
	Version                                                                 uint32
	Entry, SegmentsOffset, SectionsOffset                                   uint64
	Flags                                                                   uint32
	HeaderSize, SegmentSize, Segments, SectionSize, Sections, SectionsNames uint16
}

type elfSegment struct {
	Type, Flags                                                   uint32
	Offset, Address, PhysicalAddress, FileSize, MemorySize, Align uint64
}

// limiterEntry is one limit in the table; the last one has no number.
type limiterEntry struct{ Number, Soft, Hard uint64 }

var elfMachines = map[string]uint16{"amd64": 62, "arm64": 183}

// limiterImage is the executable file of a limiter: headers, code, and the limits.
func limiterImage(settings []limitSetting) ([]byte, error) {
	code, err := limiterInstructions()
	if err != nil {
		return nil, err
	}
	var table []byte
	for _, s := range settings {
		table = appendBinary(table, limiterEntry{uint64(s.number), s.soft, s.hard})
	}
	table = appendBinary(table, limiterEntry{Number: math.MaxUint64})
	const (
		headerSize, segmentSize = 64, 56
		executable, version     = 2, 1
		load, stack             = 1, 0x6474e551
		execute, write, read    = 1, 2, 4
		// largestPage is more than any architecture's.
		largestPage = 0x10000
	)
	size := uint64(imageTable + len(table))
	image := appendBinary(nil, elfHeader{
		Magic: [16]byte{0x7f, 'E', 'L', 'F', 2 /* 64 bits */, 1 /* little-endian */, version},
		Type:  executable, Machine: elfMachines[runtime.GOARCH], Version: version,
		Entry: imageBase + imageCode, SegmentsOffset: headerSize, HeaderSize: headerSize, SegmentSize: segmentSize, Segments: 2,
	})
	image = appendBinary(image, elfSegment{
		Type: load, Flags: read | execute, Address: imageBase, PhysicalAddress: imageBase, FileSize: size, MemorySize: size, Align: largestPage,
	})
	image = appendBinary(image, elfSegment{Type: stack, Flags: read | write})
	if len(image) > imageCode || imageCode+len(code) > imageTable {
		return nil, fmt.Errorf("the limiter's parts overlap: %d and %d bytes", len(image), len(code))
	}
	file := make([]byte, imageTable, size)
	copy(file, image)
	copy(file[imageCode:], code)
	return append(file, table...), nil
}

// appendBinary appends values of fixed size as both architectures have them in memory.
func appendBinary(to []byte, value any) []byte {
	to, err := binary.Append(to, binary.LittleEndian, value)
	if err != nil {
		panic(err) // only for a type without a fixed size
	}
	return to
}
