package sandbox

import (
	"math/rand/v2"
	"sync"

	"golang.org/x/sys/unix"
)

// startMarks sees to it that the processes of one start have a hard RLIMIT_LOCKS that no other process has. The kernel makes
// nothing of that limit, every descendant inherits it, and the filter lets nobody change it: so a supervisor knows by it
// whose a process is. An engine that marks what it starts (docs/design/orphans.md) has done so when it calls; for who
// does not, it is done here. Values only go down, because this process may not be able to raise them again.
type startMarks struct {
	// mu is held from the mark until the process has it.
	mu sync.Mutex
	// lowest is the lowest value that was ever seen here: a lower one is new.
	lowest uint64
	// drawn says that a value was picked at random, as the first is, so that two programs of one user do not meet.
	drawn bool
}

// marks is one for the whole process, as the limit is. What the process begins with is no mark of its starts.
var marks = newStartMarks()

func newStartMarks() *startMarks {
	limit, err := lockLimit(0)
	if err != nil {
		limit = 0 // nothing is below, so that no start is taken for marked
	}
	return &startMarks{lowest: limit}
}

// start calls f, which starts a process, and returns the mark that it has.
func (m *startMarks) start(f func() started) (uint64, started) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mark, err := lockLimit(0)
	given := err == nil && mark < m.lowest
	if !given && err == nil {
		mark, err = m.lowerLocked()
	}
	if err != nil {
		return 0, started{listener: -1, err: &SetupError{Stage: StageMark, Err: err}}
	}
	m.lowest = mark
	end := f()
	if !given {
		// What this process starts otherwise must not have the same. Where it cannot be lowered the next start fails.
		_, _ = m.lowerLocked()
	}
	return mark, end
}

// highestMark leaves out the value for "no limit".
const highestMark = 1 << 62

func (m *startMarks) lowerLocked() (uint64, error) {
	value := min(m.lowest, highestMark)
	if !m.drawn && value > 1<<32 {
		value -= rand.Uint64N(value / 4) //nolint:gosec // it has to be another's by chance only, it is no secret
	}
	if value == 0 {
		return 0, unix.ERANGE
	}
	value--
	if err := unix.Prlimit(0, unix.RLIMIT_LOCKS, &unix.Rlimit{Cur: value, Max: value}, nil); err != nil {
		return 0, err
	}
	m.lowest, m.drawn = value, true
	return value, nil
}

// lockLimit is a process's hard RLIMIT_LOCKS; 0 is this process.
func lockLimit(pid int) (uint64, error) {
	var limit unix.Rlimit
	err := unix.Prlimit(pid, unix.RLIMIT_LOCKS, nil, &limit)
	return limit.Max, err
}
