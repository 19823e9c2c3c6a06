package agentd

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// giveBack gives the memory of busy times back to the node: the heap that is free, which nothing else returns, and the
// mapped pages of the program's code, half of what an agent at rest would hold. The kernel has those at hand, and maps
// anew what is called again.
func giveBack() {
	debug.FreeOSMemory()
	text, err := programText()
	if err != nil {
		return // /proc is hidden from us, and the pages stay.
	}
	// Code is mapped from the file and never written, so that dropping it loses nothing.
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, text.start, text.end-text.start, unix.MADV_DONTNEED)
	_ = errno // As above, the pages stay.
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
