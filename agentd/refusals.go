package agentd

import (
	"log/slog"
	"sync"
	"time"
)

// refusalPeriod is the least time between two lines of the log about refused connections.
const refusalPeriod = time.Second

// refusalLog logs refused connections: the first one at once, and those that follow as one line a period with their number. A
// command could fill a disk otherwise.
type refusalLog struct {
	log    *slog.Logger
	period time.Duration

	mu      sync.Mutex
	pending int    // not logged yet
	reason  string // of the newest of them
	timer   *time.Timer
	waiting bool // the timer runs
}

func newRefusalLog(log *slog.Logger, period time.Duration) *refusalLog {
	return &refusalLog{log: log, period: period}
}

func (r *refusalLog) add(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending++
	r.reason = reason
	if !r.waiting {
		r.writeLocked()
	}
}

// writeLocked logs what is pending and lets a period pass until it does so again.
func (r *refusalLog) writeLocked() {
	r.log.Warn("refused connections", "count", r.pending, "last", r.reason)
	r.pending, r.waiting = 0, true
	r.timer = time.AfterFunc(r.period, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.waiting = false; r.pending > 0 {
			r.writeLocked()
		}
	})
}

// close logs what is left. Nothing may be added any more.
func (r *refusalLog) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer == nil {
		return
	}
	r.timer.Stop()
	if r.pending > 0 {
		r.log.Warn("refused connections", "count", r.pending, "last", r.reason)
	}
	r.pending = 0
}
