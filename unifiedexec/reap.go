package unifiedexec

import (
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// orphans collects the exits of children that the engine did not start: descendants whose parents
// ended first. It wakes with SIGCHLD and after each exit of the engine's own, a moment later: commands
// that end one after the other are one look, and none of them waits for it.
//
// To be told of a signal wakes a thread, in just the moment in which a command's end has to be told. So nobody is for a
// moment after each start: a short command goes without, and what ended meanwhile is found by the look at its end, or
// when that moment is over.
type orphans struct {
	enabled bool
	signals chan os.Signal
	kicks   chan struct{}
	stop    chan struct{}

	// watchMu guards these. Nobody watches for signals while there were starts lately; timer ends that.
	watchMu  sync.Mutex
	watching bool
	stopped  bool
	timer    *time.Timer
	// lastStart is when the last child of the engine was started.
	lastStart time.Time

	// starting is held for reading while a process is started and not yet known by its number.
	starting sync.RWMutex
	mu       sync.Mutex
	own      map[int]bool
}

// orphanDelay is how long an ended orphan may stay for others, and unwatched how long signals are not watched for after a start.
const (
	orphanDelay = 5 * time.Millisecond
	unwatched   = 50 * time.Millisecond
)

func newOrphans(enabled bool) *orphans {
	return &orphans{
		enabled: enabled,
		signals: make(chan os.Signal, 1),
		kicks:   make(chan struct{}, 1),
		stop:    make(chan struct{}),
		own:     map[int]bool{},
	}
}

// kick looks again: the kernel shows ended children one by one, and one of the engine's own hides those behind it.
func (o *orphans) kick() {
	select {
	case o.kicks <- struct{}{}:
	default:
	}
}

// started notes a child of the engine; f starts it.
func (o *orphans) started(f func() (int, error)) (int, error) {
	if !o.enabled {
		return f()
	}
	o.starting.RLock()
	defer o.starting.RUnlock()
	pid, err := f()
	if err == nil {
		o.mu.Lock()
		o.own[pid] = true
		o.mu.Unlock()
		o.lookAway()
	}
	return pid, err
}

// lookAway ends the watching for a moment.
func (o *orphans) lookAway() {
	o.watchMu.Lock()
	defer o.watchMu.Unlock()
	o.lastStart = time.Now()
	if o.watching {
		o.watching = false
		signal.Stop(o.signals)
		o.timer.Reset(unwatched)
	}
}

// watch is told of signals again, unless there was another start meanwhile, and looks for what came before.
func (o *orphans) watch() {
	o.watchMu.Lock()
	defer o.watchMu.Unlock()
	rest := unwatched - time.Since(o.lastStart)
	switch {
	case o.stopped:
	case rest > 0:
		o.timer.Reset(rest)
	default:
		o.watching = true
		signal.Notify(o.signals, unix.SIGCHLD)
		o.kick()
	}
}

func (o *orphans) stopWatching() {
	o.watchMu.Lock()
	defer o.watchMu.Unlock()
	o.stopped = true
	o.timer.Stop()
	signal.Stop(o.signals)
}

// reaped forgets a child of the engine; to be called before its number can come round again, that is
// together with the reaping.
func (o *orphans) reaped(pid int) {
	if !o.enabled {
		return
	}
	o.mu.Lock()
	delete(o.own, pid)
	o.mu.Unlock()
}

func (o *orphans) ours(pid int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.own[pid]
}

func (o *orphans) run() {
	o.watchMu.Lock()
	o.timer = time.AfterFunc(0, o.watch)
	o.watchMu.Unlock()
	defer o.stopWatching()
	for {
		for o.reapOne() {
		}
		select {
		case <-o.signals:
		case <-o.kicks:
		case <-o.stop:
			return
		}
		time.Sleep(orphanDelay)
		o.forget()
	}
}

// forget takes the wakes that came until now: one look is for all of them.
func (o *orphans) forget() {
	for {
		select {
		case <-o.signals:
		case <-o.kicks:
		default:
			return
		}
	}
}

// reapOne collects one orphan; false when there is none to be seen.
func (o *orphans) reapOne() bool {
	peek, err := waitid(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	if err != nil || peek.pid == 0 || o.ours(int(peek.pid)) {
		return false
	}
	// It may be a child that was started this moment: whoever starts one has it noted by the time that this lock is free.
	o.starting.Lock()
	defer o.starting.Unlock()
	if o.ours(int(peek.pid)) {
		return false
	}
	_, err = waitid(unix.P_PID, int(peek.pid), unix.WEXITED|unix.WNOHANG, nil)
	return err == nil
}
