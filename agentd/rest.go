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

// worthACollection is how much more than last time the heap has to hold: a collection takes 8 to 11 ms of a processor, most
// of what an agent without work takes in a minute.
const worthACollection = 3 << 20

// giver gives the memory of busy times back to the node.
type giver struct {
	// kept is what the heap held when it was last looked at, in bytes.
	kept uint64
}

// giveBack gives back the heap that is free, which nothing else returns before long, and the mapped pages of the program's
// code, half of what an agent at rest would hold. The kernel has those at hand, and maps anew what is called again.
func (g *giver) giveBack() {
	if heapHeld() >= g.kept+worthACollection {
		debug.FreeOSMemory()
		g.kept = heapHeld()
	}
	text, err := programText()
	if err != nil {
		return // /proc is hidden from us, and the pages stay.
	}
	// Code is mapped from the file and never written, so that dropping it loses nothing.
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, text.start, text.end-text.start, unix.MADV_DONTNEED)
	_ = errno // As above, the pages stay.
}

// heapHeld is how much memory the heap has, in use or not, in bytes.
func heapHeld() (bytes uint64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	for _, s := range samples {
		bytes += s.Value.Uint64()
	}
	return bytes
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
