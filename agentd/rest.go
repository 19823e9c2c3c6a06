package agentd

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"runtime/metrics"

	"golang.org/x/sys/unix"
)

// worthACollection is how much a collection has to give back, in bytes: it takes 8 to 11 ms of a processor, most of what an
// agent without work takes in a minute.
const worthACollection = 3 << 20

// giver gives the memory of busy times back to the node.
type giver struct {
	// kept is what the heap held after the last collection, in bytes.
	kept uint64
}

// giveBack gives back the heap that is free, which nothing else returns before long, and the mapped pages of the program's
// code, half of what an agent at rest would hold. The kernel has those at hand, and maps anew what is called again.
func (g *giver) giveBack() {
	// What was kept may have been forgotten meanwhile, and what lived at Go's own last collection as well: the less counts.
	if held, live := heap(); held >= min(g.kept, live)+worthACollection {
		debug.FreeOSMemory()
		g.kept, _ = heap()
	}
	text, err := programText()
	if err != nil {
		return // /proc is hidden from us, and the pages stay.
	}
	// Code is mapped from the file and never written, so that dropping it loses nothing.
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, text.start, text.end-text.start, unix.MADV_DONTNEED)
	_ = errno // As above, the pages stay.
}

// heap is how many bytes the heap holds in objects and free memory, and how many lived at its last collection.
func heap() (held, live uint64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"}, {Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(samples)
	return samples[0].Value.Uint64() + samples[1].Value.Uint64(), samples[2].Value.Uint64()
}

// mapping is a range of addresses.
type mapping struct{ start, end uintptr }

// programText finds the mapping of this program's code.
func programText() (mapping, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return mapping{}, fmt.Errorf("looking for the program's code: %w", err)
	}
	here := reflect.ValueOf(programText).Pointer()
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		var m mapping
		var mode string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &m.start, &m.end, &mode); err != nil {
			return mapping{}, fmt.Errorf("looking for the program's code: line %q: %w", lines.Text(), err)
		}
		if m.start <= here && here < m.end && mode == "r-xp" {
			return m, nil
		}
	}
	return mapping{}, fmt.Errorf("looking for the program's code: no mapping that is read and executed holds %#x", here)
}
