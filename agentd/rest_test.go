package agentd

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// resident reads how much of the mapping that begins at an address is in memory, in KiB.
func resident(t *testing.T, start uintptr) (kib int) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		found = found || strings.HasPrefix(lines.Text(), fmt.Sprintf("%x-", start)) || strings.HasPrefix(lines.Text(), fmt.Sprintf("%08x-", start))
		if _, err := fmt.Sscanf(lines.Text(), "Rss: %d kB", &kib); found && err == nil {
			return kib
		}
	}
	t.Fatalf("there is no mapping at %x", start)
	return 0
}

func TestGiveBackUnmapsCode(t *testing.T) {
	text, err := programText()
	if err != nil {
		t.Fatal(err)
	}
	// Whatever ran before, all of it is there first; what runs beside this test maps a part of it again.
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, text.start, text.end-text.start, unix.MADV_POPULATE_READ); errno != 0 {
		t.Fatal(errno)
	}
	whole := int(text.end-text.start) >> 10
	if before := resident(t, text.start); before < whole {
		t.Fatalf("%d KiB of %d are resident", before, whole)
	}
	new(giver).giveBack()
	if after := resident(t, text.start); after > whole/2 {
		t.Errorf("%d KiB of %d are still resident", after, whole)
	}
}

// collected is a giver after a collection, and what the heap holds then.
func collected() (*giver, uint64) {
	g := &giver{}
	debug.FreeOSMemory()
	g.kept, _ = heap()
	return g, g.kept
}

// use fills 64 MiB, and calls f while they live.
func use(f func()) {
	busy := make([]byte, 64<<20)
	for i := range busy {
		busy[i] = 1
	}
	f()
	runtime.KeepAlive(busy)
}

func TestGiveBackReturnsTheHeap(t *testing.T) {
	g, before := collected()
	use(func() {
		if held, _ := heap(); held < 64<<20 {
			t.Fatalf("the heap holds %d bytes, and 64 MiB are in use", held)
		}
	})
	g.giveBack()
	if held, _ := heap(); held >= before+32<<20 {
		t.Errorf("the heap holds %d bytes, and %d before", held, before)
	}
}

// What lived at one collection and is garbage at the next goes back too, though the heap never grew.
func TestGiveBackReturnsWhatWasForgotten(t *testing.T) {
	g, before := collected()
	use(g.giveBack)
	if g.kept < 64<<20 {
		t.Fatalf("%d bytes were kept, and 64 MiB are in use", g.kept)
	}
	runtime.GC()
	g.giveBack()
	if held, _ := heap(); held >= before+32<<20 {
		t.Errorf("the heap holds %d bytes, and %d before", held, before)
	}
}

func TestGiveBackCollectsOnlyWhatIsWorthIt(t *testing.T) {
	g, _ := collected()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	g.giveBack()
	runtime.ReadMemStats(&after)
	if after.NumForcedGC != before.NumForcedGC {
		t.Errorf("%d collections for a heap that holds what it held", after.NumForcedGC-before.NumForcedGC)
	}
}
