package unifiedexec

import (
	"crypto/rand"
	"encoding/binary"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// marker gives every process a hard RLIMIT_LOCKS of its own. The kernel enforces nothing by that
// limit, every descendant inherits it, neither setsid, nor a double fork, nor an empty environment
// loses it, and nobody without privileges can raise it: so it says whose an orphan is. See
// docs/design/orphans.md for what else was tried.
//
// A limit belongs to the whole process, so the engine lowers its own around each start, and
// because it may not be allowed to raise it again, values only ever go down.
type marker struct {
	mu   sync.Mutex
	once sync.Once
	// first bounds the values from above; next is what this process has now.
	first, next uint64
}

// marks is one for the whole process, as the limit is.
var marks marker

const highestMark = 1 << 62

// prepare picks where the values begin: somewhere below the present limit, at random, so that two
// engines of one user, or one inside the other, do not take each other's processes for their own.
func (m *marker) prepare() {
	var limit unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_LOCKS, nil, &limit); err != nil {
		return
	}
	top := min(limit.Max, highestMark)
	if top < 1<<32 {
		return
	}
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return
	}
	m.first = top - binary.LittleEndian.Uint64(random[:])%(top/4) - 1
	m.next = m.first
}

// start runs f, which starts a process, under a new mark; 0 means that it has none.
func (m *marker) start(f func() (int, error)) (mark uint64, pid int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.once.Do(m.prepare)
	mark = m.lowerLocked()
	pid, err = f()
	// The engine must not be its own process's descendant.
	m.lowerLocked()
	return mark, pid, err
}

func (m *marker) lowerLocked() uint64 {
	if m.next < 2 {
		return 0
	}
	value := m.next - 1
	if err := unix.Prlimit(0, unix.RLIMIT_LOCKS, &unix.Rlimit{Cur: value, Max: value}, nil); err != nil {
		return 0
	}
	m.next = value
	return value
}

// issued is whether a mark was given here. Lower values are those of other engines of this user, inside
// or beside this one, so a process that lowered its own limit cannot be told by it.
func (m *marker) issued(mark uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Every second value is the engine's own, which others that it starts may have too.
	return mark >= m.next && mark < m.first && (m.first-mark)%2 == 1
}

// Marks is the value below which the marks of this program's processes lie, for a successor's Restore; 0 where there are none.
func Marks() uint64 {
	marks.mu.Lock()
	defer marks.mu.Unlock()
	marks.once.Do(marks.prepare)
	return marks.first
}

// issuedBelow tells the marks of an earlier engine by what its Marks gave. How many it issued nobody knows: a small share of
// all values, in which no other engine of this user has its own but by a chance of one to millions.
func issuedBelow(first uint64) func(mark uint64) bool {
	const share = 1 << 24
	return func(mark uint64) bool {
		return mark < first && first-mark < first/share && (first-mark)%2 == 1
	}
}

// claims says which process every living descendant belongs to: by its mark, else, when it
// lowered its own limit, by its parent or its session.
func claims(procs []*Process, live []procEntry) map[*Process][]procEntry {
	byMark := make(map[uint64]*Process, len(procs))
	byPID := make(map[int]*Process, len(procs))
	for _, p := range procs {
		if p.mark != 0 {
			byMark[p.mark] = p
		}
		if p.holdsID() {
			// The number of one that ended may be another's here.
			byPID[p.pid] = p
		}
	}
	owner := make(map[int]*Process)
	var rest []procEntry
	self := os.Getpid()
	for _, entry := range live {
		if entry.pid == self {
			continue
		}
		p := byMark[entry.mark]
		if p == nil {
			if leader := byPID[entry.pid]; leader != nil && leader.holdsID() {
				p = leader
			}
		}
		if p == nil {
			rest = append(rest, entry)
			continue
		}
		owner[entry.pid] = p
	}
	inherit(owner, byPID, rest)
	out := make(map[*Process][]procEntry)
	for _, entry := range live {
		if p := owner[entry.pid]; p != nil {
			out[p] = append(out[p], entry)
		}
	}
	return out
}

// inherit gives the rest to whom their parents belong, as often as that finds more.
func inherit(owner map[int]*Process, byPID map[int]*Process, rest []procEntry) {
	for found := true; found; {
		found = false
		for _, entry := range rest {
			if owner[entry.pid] != nil {
				continue
			}
			p := owner[entry.ppid]
			if leader := byPID[entry.session]; p == nil && leader != nil && leader.holdsID() {
				p = leader
			}
			if p != nil {
				owner[entry.pid] = p
				found = true
			}
		}
	}
}

// holdsID is whether the process's number is still its own; later it may be a stranger's.
func (p *Process) holdsID() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.reaped
}

// members finds the living processes that belong to p, itself included.
func (p *Process) members() []procEntry {
	return leaderFirst(claims([]*Process{p}, liveProcesses())[p], p.pid)
}

// leaderFirst moves the leader to the front. Signalled after its child it might see the child's end, and end by itself
// with a code that the child gave it. Numbers do not order them: they begin anew after the largest.
func leaderFirst(members []procEntry, leader int) []procEntry {
	if i := slices.IndexFunc(members, func(entry procEntry) bool { return entry.pid == leader }); i > 0 {
		members[0], members[i] = members[i], members[0]
	}
	return members
}
