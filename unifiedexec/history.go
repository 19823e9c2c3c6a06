package unifiedexec

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// history decides how long ended processes are kept. It has a timer while there are any, and nothing otherwise.
type history struct {
	mu     sync.Mutex
	timer  *time.Timer
	closed bool
	// sweeping is set while somebody walks; another walk at the same time would find the same.
	sweeping bool
	// unseen counts the processes that settled down since all were looked at, unseenBytes what they keep.
	unseen, unseenBytes int
}

// settled counts a process, and says whether it is time to look: all says at whom, else only whether they hold too many bytes.
func (h *history) settled(bytes int) (look, all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unseen++
	h.unseenBytes += bytes
	all = h.unseen >= sweepSlack
	if all {
		h.unseen = 0
	}
	look = all || h.unseenBytes >= sweepBytes
	if look {
		h.unseenBytes = 0
	}
	return look, all
}

func (h *history) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sweeping {
		return false
	}
	h.sweeping = true
	return true
}

func (h *history) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sweeping = false
}

// arm makes sure that somebody looks again after a while.
func (h *history) arm(after time.Duration, sweep func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timer == nil && !h.closed {
		h.timer = time.AfterFunc(after, func() {
			h.mu.Lock()
			h.timer = nil
			h.mu.Unlock()
			sweep()
		})
	}
}

func (h *history) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
}

// sweepSlack is how many processes may be kept beyond the limit before somebody looks which have to go and walks /proc
// to see what they left behind: both are for all of them at once. A quarter of the limit on their bytes is not waited
// for: that is looked at whenever sweepBytes came together.
const (
	sweepSlack = 32
	sweepBytes = 64 << 10
)

// settled notes that nobody waits for a process's end any more.
func (e *Engine) settled(p *Process, now time.Time) {
	if look, all := e.history.settled(p.log.size().kept); look {
		e.sweep(now, all)
		return
	}
	e.armSweep()
}

func (e *Engine) armSweep() {
	e.history.arm(e.settings.Load().Limits.EndedTime, func() { e.sweep(time.Now(), true) })
}

// sweep forgets ended processes beyond the limits, unless all is false and they do not hold far too many bytes. One
// whose descendants live is kept, since it is through it that they can be seen and stopped; of such there are at most
// MaxProcesses, and the oldest beyond are stopped.
func (e *Engine) sweep(now time.Time, all bool) {
	limits := e.settings.Load().Limits
	surplus, heavy, left := e.table.surplus(limits, now, all)
	if left {
		e.armSweep()
	}
	if len(surplus) == 0 || !all && !heavy || !e.history.begin() {
		return
	}
	defer e.history.end()
	used := marksInUse()
	gone, tooMany := e.table.forget(surplus, limits, now.Add(limits.EndedTime), func(p *Process) bool {
		return p.mark != 0 && used[p.mark] || p.log.size().open
	})
	for _, p := range gone {
		p.log.forgotten()
	}
	for _, p := range tooMany {
		p.beginStop(-1, ReasonStopped, "")
	}
}

// surplus picks ended processes beyond the limits, and tells whether any are kept at all and, unless all have to go
// anyhow, whether they hold far more bytes than they may.
func (t *table) surplus(l Limits, now time.Time, all bool) (surplus []*Process, heavy, left bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ended []*Process
	for _, p := range t.procs {
		left = left || p.entry.settledDown()
		if p.entry.settledDown() && !p.entry.heldUntil.After(now) {
			ended = append(ended, p)
		}
	}
	slices.SortFunc(ended, func(a, b *Process) int { return b.entry.ended.Compare(a.entry.ended) })
	kept := 0
	for i, p := range ended {
		kept += p.log.size().kept
		if surplus == nil && (i >= l.EndedProcesses || kept > l.EndedBytes || now.Sub(p.entry.ended) >= l.EndedTime) {
			surplus = ended[i:]
			if all {
				break
			}
		}
	}
	return surplus, kept > l.EndedBytes+l.EndedBytes/4, left
}

// forget drops what nothing is left of and keeps the rest until then. It returns what is gone, and those that are too many.
func (t *table) forget(surplus []*Process, l Limits, until time.Time, left func(*Process) bool) (gone, tooMany []*Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range surplus {
		switch {
		case t.procs[p.id] != p:
		case left(p):
			p.entry.heldUntil = until
		default:
			t.forgetLocked(p)
			gone = append(gone, p)
		}
	}
	var held []*Process
	for _, p := range t.procs {
		if !p.entry.heldUntil.IsZero() {
			held = append(held, p)
		}
	}
	if len(held) <= l.MaxProcesses {
		return gone, nil
	}
	slices.SortFunc(held, func(a, b *Process) int { return cmp.Compare(a.entry.used, b.entry.used) })
	return gone, held[:len(held)-l.MaxProcesses]
}
