package agentd

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	// oomRaise makes the kernel's out-of-memory killer prefer any command to agentd.
	oomRaise = 200
	maxOOM   = 1000
)

// oomRaiser raises the score of commands. Raising needs no right, lowering would.
type oomRaiser struct{ score string }

// newOOMRaiser reads agentd's own score, which the kubelet chose.
func newOOMRaiser() oomRaiser {
	own := 0
	if data, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		// What is not a number counts as the kernel's default.
		own, _ = strconv.Atoi(strings.TrimSpace(string(data)))
	}
	return oomRaiser{score: strconv.Itoa(min(own+oomRaise, maxOOM))}
}

// raise is best effort: the command may have ended, and runs the same without.
func (o oomRaiser) raise(pid int) {
	file, err := os.OpenFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), os.O_WRONLY, 0)
	if err != nil {
		return
	}
	_, _ = file.WriteString(o.score)
	_ = file.Close()
}
