package agentd

import (
	"os"
	"strconv"
	"strings"
)

const (
	// oomRaise makes the kernel's out-of-memory killer prefer any command to agentd.
	oomRaise = 200
	maxOOM   = 1000
)

// commandOOMScore is what commands get as oom_score_adj: more than agentd's own, which the kubelet chose.
// Raising needs no right, lowering would.
func commandOOMScore() int {
	own := 0
	if data, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		// What is not a number counts as the kernel's default.
		own, _ = strconv.Atoi(strings.TrimSpace(string(data)))
	}
	if own == -oomRaise {
		return 1 // to the engine, 0 means to leave commands as they are
	}
	return min(own+oomRaise, maxOOM)
}
