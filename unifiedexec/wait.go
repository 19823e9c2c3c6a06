package unifiedexec

import (
	"context"
	"sync"
	"time"
)

// waits lets somebody end or pause all waits of an engine at once.
type waits struct {
	mu sync.Mutex
	// interrupted is closed, and made anew, by Interrupt.
	interrupted chan struct{}
	// active counts the waits that the next Interrupt ends.
	active int
	// pauses counts who holds the clock; changed is closed, and made anew, when it stops or goes on.
	pauses  int
	since   time.Time
	paused  time.Duration
	changed chan struct{}
}

func newWaits() *waits {
	return &waits{interrupted: make(chan struct{}), changed: make(chan struct{})}
}

// Interrupt ends the waits of all calls of ExecCommand and WriteStdin, as the end of a turn does, and returns how many
// there were, with those that still wait for a call before them. They answer with what there is so far; the processes go
// on. The commands of ExecOneShot and Run, which nobody could come back to, are stopped.
func (e *Engine) Interrupt() int {
	w := e.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.interrupted)
	w.interrupted = make(chan struct{})
	ended := w.active
	w.active = 0
	return ended
}

// Pause stops the clock of the waits of all calls and of the lives of commands that have a timeout, for a human who is
// being asked, until resume is called. Processes go on, and a wait still ends with its process. Pauses may overlap.
func (e *Engine) Pause() (resume func()) {
	w := e.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pauses++
	if w.pauses == 1 {
		w.since = time.Now()
		w.changedLocked()
	}
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.pauses--
		if w.pauses == 0 {
			w.paused += time.Since(w.since)
			w.changedLocked()
		}
	})
}

func (w *waits) changedLocked() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// clock tells the time that was spent paused, whether the clock stands, and what is closed when that changes.
func (w *waits) clock() (paused time.Duration, stands bool, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	paused = w.paused
	if w.pauses > 0 {
		paused += time.Since(w.since)
	}
	return paused, w.pauses > 0, w.changed
}

// wait is the wait of one call, with one clock for everything that it waits for.
type wait struct {
	waits  *waits
	began  time.Time
	before time.Duration
	// interrupt is nil for a wait that no interrupt ends.
	interrupt <-chan struct{}
}

// begin starts the clock of a call; end ends its wait.
func (w *waits) begin() *wait {
	t := w.life()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active++
	t.interrupt = w.interrupted
	return t
}

func (t *wait) end() {
	t.waits.mu.Lock()
	defer t.waits.mu.Unlock()
	if !t.interrupted() {
		t.waits.active--
	}
}

// life starts the clock of a command's life: it is no call's, and only pauses concern it.
func (w *waits) life() *wait {
	t := &wait{waits: w}
	t.restart()
	return t
}

// restart starts the clock anew.
func (t *wait) restart() {
	t.before, _, _ = t.waits.clock()
	t.began = time.Now()
}

// interrupted is whether an interrupt ended the wait, also where nothing waited for it at that moment.
func (t *wait) interrupted() bool {
	select {
	case <-t.interrupt:
		return true
	default:
		return false
	}
}

// until waits for done, at most until a time after the beginning in which pauses do not count. An interrupt ends it
// early and is told.
func (t *wait) until(ctx context.Context, done <-chan struct{}, most time.Duration) (interrupted bool, err error) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	for {
		paused, stands, changed := t.waits.clock()
		expired := timer.C
		if stands {
			expired = nil
		} else {
			timer.Reset(most - time.Since(t.began) + paused - t.before)
		}
		select {
		case <-done:
			return false, nil
		case <-expired:
			return false, nil
		case <-changed:
		case <-t.interrupt:
			return true, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}
