package unifiedexec

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	firstID, lastID = 1000, 99_999
	// rememberedIDs is how many ids stay unused after their process was forgotten, for those who ask late.
	rememberedIDs = 8192
)

// entry is what the table knows about a process.
type entry struct {
	// tool is set for processes of ExecCommand, which may be ended to make room.
	tool bool
	// hidden is set for the engine's own processes, which nobody else may see.
	hidden bool
	// delivered is set once a result told the end.
	delivered bool
	// evicted is set for one that had to make room. It counts no more, and once it ended it is kept like any other.
	evicted bool
	// used orders processes by their last use.
	used uint64
	// ended is when the record was written; zero while the process runs.
	ended time.Time
	// heldUntil is set when the process ended and left descendants: it stays, whatever the limits, until they are looked for again.
	heldUntil time.Time
}

// settledDown is whether nobody waits for the end any more: the entry is only history.
func (e entry) settledDown() bool { return !e.ended.IsZero() && (e.delivered || e.evicted || !e.tool) }

// table finds processes by id and decides who has to go.
type table struct {
	mu    sync.Mutex
	procs map[int32]*Process
	// active are those that count against the limit: a start does not look at all that is history.
	active   map[*Process]bool
	reserved map[int32]bool
	// recent is a ring of ids that were forgotten lately.
	recent   [rememberedIDs]int32
	recentAt int
	blocked  map[int32]bool
	clock    uint64
	closed   bool
	// starts counts the starts on their way; none begins once the table is closed.
	starts *sync.WaitGroup
}

func newTable(starts *sync.WaitGroup) *table {
	return &table{
		procs: map[int32]*Process{}, active: map[*Process]bool{}, reserved: map[int32]bool{}, blocked: map[int32]bool{}, starts: starts,
	}
}

// crowded is whether reserve would have to make room.
func (t *table) crowded(l Limits) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.active)+len(t.reserved) >= l.MaxProcesses
}

// reserve takes an id, and names a process that must end before another starts in its place. The caller
// calls starts.Done once the start is over.
func (t *table) reserve(l Limits) (id int32, evicted *Process, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, nil, ErrClosed
	}
	if len(t.active)+len(t.reserved) >= l.MaxProcesses {
		var full bool
		if evicted, full = prune(slices.Collect(maps.Keys(t.active)), l.ProtectedProcesses); full {
			return 0, nil, ErrTableFull
		}
	}
	if evicted != nil {
		evicted.entry.evicted = true
		delete(t.active, evicted)
	}
	for {
		id = firstID + rand.Int32N(lastID-firstID+1) //nolint:gosec // an id is a name, not a secret
		if t.procs[id] == nil && !t.reserved[id] && !t.blocked[id] {
			t.reserved[id] = true
			t.starts.Add(1)
			return id, evicted, nil
		}
	}
}

func (t *table) release(id int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.reserved, id)
}

// insert tells whether the table closed meanwhile, so that nobody else ends the process.
func (t *table) insert(p *Process) (closed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.reserved, p.id)
	t.addLocked(p)
	return t.closed
}

func (t *table) addLocked(p *Process) {
	t.clock++
	p.entry.used = t.clock
	t.procs[p.id] = p
	if !p.entry.settledDown() && !p.entry.hidden {
		t.active[p] = true
	}
}

func (t *table) get(id int32) (*Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.procs[id]; p != nil && !p.entry.hidden {
		return p, nil
	}
	return nil, &UnknownProcessError{ID: id}
}

// use finds a process for WriteStdin, which does not know one whose end a result told.
func (t *table) use(id int32) (*Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.procs[id]
	if p == nil || p.entry.hidden || p.entry.delivered {
		return nil, &UnknownProcessError{ID: id}
	}
	t.clock++
	p.entry.used = t.clock
	return p, nil
}

func (t *table) all() []*Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	procs := make([]*Process, 0, len(t.procs))
	for _, p := range t.procs {
		procs = append(procs, p)
	}
	slices.SortFunc(procs, func(a, b *Process) int { return cmp.Compare(a.id, b.id) })
	return procs
}

// prune picks the process that has to go: outside the most recently used, the least recently
// used that ended, else the least recently used. One that a call is busy with is left alone,
// and while such a one has ended, no running one goes for it: the table may exceed its limit
// for that moment. full says that none of them may ever go.
func prune(active []*Process, protected int) (victim *Process, full bool) {
	slices.SortFunc(active, func(a, b *Process) int { return cmp.Compare(b.entry.used, a.entry.used) })
	candidates := slices.DeleteFunc(active, func(p *Process) bool { return !p.entry.tool })
	if len(candidates) == 0 {
		return nil, true
	}
	busyEnded := false
	for len(candidates) > protected {
		i := lastOf(candidates, protected, func(p *Process) bool { return !p.entry.ended.IsZero() })
		if i < 0 {
			if busyEnded {
				return nil, false
			}
			i = len(candidates) - 1
		}
		p := candidates[i]
		select {
		case p.turn <- struct{}{}:
			<-p.turn
			return p, false
		default:
		}
		busyEnded = busyEnded || !p.entry.ended.IsZero()
		candidates = slices.Delete(candidates, i, i+1)
	}
	return nil, !busyEnded
}

// lastOf finds the last element from an index on that a condition holds for, or -1.
func lastOf(procs []*Process, from int, which func(*Process) bool) int {
	for i := len(procs) - 1; i >= from; i-- {
		if which(procs[i]) {
			return i
		}
	}
	return -1
}

// makeRoom ends a process that has to go and waits for that, so that no more run than may. One that no kill ends is not
// waited for.
func (e *Engine) makeRoom(ctx context.Context, p *Process) error {
	if _, ended := p.Exit(); ended {
		e.settled(p, time.Now())
		return nil
	}
	p.beginStop(-1, ReasonStopped, "ended to make room for another command")
	timer := time.NewTimer(e.stopGrace + killPatience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// ended notes the time of the record, and tells whether it is all that anybody waits for.
func (t *table) ended(p *Process, now time.Time) (over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.entry.ended = now
	if p.entry.hidden {
		delete(t.procs, p.id)
	}
	t.settleLocked(p)
	return p.entry.settledDown()
}

// delivered notes that a result told the end.
func (t *table) delivered(p *Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.entry.delivered = true
	t.settleLocked(p)
}

func (t *table) settleLocked(p *Process) {
	if p.entry.settledDown() {
		delete(t.active, p)
	}
}

// forgetLocked drops a process; its id stays unused for long.
func (t *table) forgetLocked(p *Process) {
	delete(t.procs, p.id)
	delete(t.active, p)
	delete(t.blocked, t.recent[t.recentAt])
	t.recent[t.recentAt] = p.id
	t.blocked[p.id] = true
	t.recentAt = (t.recentAt + 1) % rememberedIDs
}
