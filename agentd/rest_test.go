package agentd

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
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
	before := resident(t, text.start)
	giveBack()
	if after := resident(t, text.start); after >= before || after > int(text.end-text.start)>>10/2 {
		t.Errorf("%d KiB of %d were resident, now %d", before, int(text.end-text.start)>>10, after)
	}
}
