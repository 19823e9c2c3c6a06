package sandbox

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// maxProgramBytes is how much of a program's path is kept of a refused call: its end.
const maxProgramBytes = 256

// Refusals counts what one start's processes are refused, for whoever asks. Unlike what Watch.OnDenial is told,
// which comes a while later when a call repeats, it is complete at every moment: a call is in it before anybody can
// know its answer, and so before anybody can know that its process ended. The zero value is empty, and so is nil.
//
// Of each list, 16 kinds of calls are told apart, the first ones; calls of more kinds are counted by their rule.
type Refusals struct {
	mu    sync.Mutex
	all   refusalList
	fresh refusalList
	total uint64
}

// Total is how many calls were refused.
func (r *Refusals) Total() uint64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// All is what was refused so far, a Denial for each kind, the one that came first at the front.
func (r *Refusals) All() []Denial {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all.kinds)
}

// Take is what was refused since the last Take.
func (r *Refusals) Take() []Denial {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.fresh.kinds
	r.fresh = refusalList{}
	return taken
}

// full says that only the rule of a further kind will be kept.
func (r *Refusals) full() bool {
	if r == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fresh.full()
}

// count lets a call be answered, and counts it if that was a refusal. Both happen under the lock, so that nobody who
// learns of the answer finds it missing.
func (r *Refusals) count(d Denial, refuse func() bool) bool {
	if r == nil {
		return refuse()
	}
	d.Program = ending(d.Program, maxProgramBytes)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !refuse() {
		return false
	}
	now := time.Now()
	r.total++
	r.all.add(d, now)
	r.fresh.add(d, now)
	return true
}

// refusalList holds denials of different kinds, in the order of their first calls.
type refusalList struct {
	kinds []Denial
	// apart is how many of them are told apart by more than their rule.
	apart int
}

func (l *refusalList) full() bool { return l.apart >= maxKinds }

func (l *refusalList) add(d Denial, now time.Time) {
	kind := d.kind()
	at := slices.IndexFunc(l.kinds, func(known Denial) bool { return !known.Omitted && known.kind() == kind })
	if at < 0 && l.full() {
		d = Denial{Rule: d.Rule, Errno: d.Errno, Omitted: true}
		at = slices.IndexFunc(l.kinds, func(known Denial) bool { return known.Omitted && known.Rule == d.Rule })
	}
	if at < 0 {
		d.Count = 0
		l.kinds = append(l.kinds, d)
		at = len(l.kinds) - 1
		if !d.Omitted {
			l.apart++
		}
	}
	l.kinds[at].count(now)
}

// ending is the end of a text, with a mark where something is missing.
func ending(text string, limit int) string {
	const mark = "…"
	if len(text) <= limit {
		return text
	}
	return mark + strings.ToValidUTF8(text[len(text)-limit+len(mark):], "")
}
