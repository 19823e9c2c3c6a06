package agentd

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// knownFor is how long a process id is taken for the process that had it. In this time the kernel does not come to give
	// the number to another one: it gives all the others first, 32,768 unless an administrator wants fewer, and each takes
	// a fork. Somebody would be refused by mistake then, and nobody let in.
	knownFor = 100 * time.Millisecond
	// maxKnown bounds the processes that are remembered; more of them are looked at again.
	maxKnown = 4096
	// maxTold is how often a process is told why within knownFor. Whoever connects more often does not read it.
	maxTold = 8
	// maxLineage bounds the ancestors of a peer that are looked at.
	maxLineage = 1000
)

// errToldAlready is the reason for a peer that was told it before and connects on and on.
var errToldAlready = errors.New("it was told already")

// descendants tells who descends from an ancestor. Those that it found it knows again for a short time, so that one that connects
// as fast as it can costs next to nothing.
type descendants struct {
	ancestor int
	now      func() time.Time
	known    map[int]*knownProcess
}

type knownProcess struct {
	until time.Time
	told  int
}

// again refuses a process that was found a short time ago.
func (d *descendants) again(pid int) error {
	k := d.fresh(pid)
	if k == nil {
		return nil
	}
	k.told++
	if k.told > maxTold {
		return fmt.Errorf("process %d is a command of this agent: %w", pid, errToldAlready)
	}
	return d.refusal(pid)
}

func (d *descendants) fresh(pid int) *knownProcess {
	if k := d.known[pid]; k != nil && d.now().Before(k.until) {
		return k
	}
	return nil
}

func (d *descendants) refusal(pid int) error {
	return fmt.Errorf("process %d is a command of this agent: commands do not control agentd", pid)
}

// check refuses descendants. A parent that ends during the walk hands its children on, so a walk that does not
// lead to the ancestor counts only when a second one finds the same.
func (d *descendants) check(p *peer) error {
	const attempts = 8
	for range attempts {
		line, descends, err := d.lineage(p.pid)
		if descends {
			return d.refusal(p.pid)
		}
		if err != nil {
			continue
		}
		again, descends, err := d.lineage(p.pid)
		if descends {
			return d.refusal(p.pid)
		}
		if err == nil && slices.Equal(line, again) {
			return p.alive()
		}
	}
	return fmt.Errorf("the descent of process %d could not be told", p.pid)
}

// lineage is a process and its ancestors, up to the one that matters.
func (d *descendants) lineage(pid int) (line []process, descends bool, err error) {
	for pid > 0 {
		if pid == d.ancestor || d.fresh(pid) != nil {
			d.remember(line)
			return line, true, nil
		}
		found, err := readProcess(pid)
		if err != nil {
			return nil, false, err
		}
		line = append(line, found)
		if len(line) > maxLineage {
			return nil, false, fmt.Errorf("process %d has more than %d ancestors", line[0].pid, maxLineage)
		}
		pid = found.parent
	}
	return line, false, nil
}

func (d *descendants) remember(line []process) {
	if len(d.known)+len(line) > maxKnown || d.known == nil {
		d.known = map[int]*knownProcess{}
	}
	until := d.now().Add(knownFor)
	for _, found := range line {
		d.known[found.pid] = &knownProcess{until: until}
	}
}
