package sandbox

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// start is one process to start; exactly one answer is sent to result.
type start struct {
	argv0  string
	argv   []string
	attr   *syscall.ProcAttr
	result chan started
	// limited says that it goes through a limiter.
	limited bool
}

// started is what a start ended with.
type started struct {
	pid int
	// listener is the supervisor's, or -1.
	listener int
	err      error
}

// confine restricts the calling thread for good and returns the supervisor's listener, or -1.
type confine func(supervised bool) (listener int, err error)

// keptThread is a confined thread that waits for the next start.
type keptThread struct {
	supervised bool
	next       chan start
}

// threads start the processes of one launcher. Each thread confines itself, starts one process and ends, so that no two
// processes share what confines them. Once what a start made has ended, or a moment after it, the next thread of
// its kind confines itself, and waits: sooner, it would take a processor that the process needs.
// A thread whose start failed because no task could be made waits as well: at that limit Go could not make
// another thread, and would end the program. See docs/design/task-limit.md.
type threads struct {
	// again says that nothing confines a thread that two processes could share, so that it serves one start after the other.
	again bool
	// none says that nothing would change on a thread at all, so that any will do.
	none bool

	mu   sync.Mutex
	kept []keptThread
	// coming counts threads that were made to be kept and are not yet, for the supervised and the others, and awaited are
	// the starts that wait for one of them.
	coming  map[bool]int
	awaited map[bool][]chan chan start
	// later prepare threads.
	later  map[bool]*time.Timer
	closed bool
	// alive counts every thread.
	alive sync.WaitGroup
}

// startsAtOnce is how many starts go on at the same time; Go makes one process at a time anyway. It bounds how many
// threads they can want at once, which the reserve has to have.
const startsAtOnce = 4

var slots = make(chan struct{}, startsAtOnce)

func (t *threads) start(s start, supervised bool, c confine) started {
	slots <- struct{}{}
	defer func() { <-slots }()
	if t.none {
		pid, err := syscall.ForkExec(s.argv0, s.argv, s.attr)
		return started{pid: pid, listener: -1, err: err}
	}
	switch next := t.take(supervised); {
	case next != nil:
		next <- s
	case reserve.has():
		t.spawn(&s, supervised, c)
	default:
		// Go is not to be asked for a thread.
		return started{listener: -1, err: syscall.EAGAIN}
	}
	end := <-s.result
	if !t.again {
		t.prepareLater(supervised, c)
	}
	return end
}

// spawn makes a thread for a start or, if first is nil, for whichever comes next.
func (t *threads) spawn(first *start, supervised bool, c confine) {
	t.alive.Add(1)
	go onSpareThread(func() {
		defer t.alive.Done()
		t.run(first, supervised, c)
	})
}

// take returns a thread that waits, or will in a moment, or nil.
func (t *threads) take(supervised bool) chan start {
	t.mu.Lock()
	if i := t.waitingLocked(supervised); i >= 0 {
		defer t.mu.Unlock()
		next := t.kept[i].next
		t.kept = slices.Delete(t.kept, i, i+1)
		return next
	}
	var comes chan chan start
	if len(t.awaited[supervised]) < t.coming[supervised] {
		comes = make(chan chan start, 1)
		t.awaited[supervised] = append(t.awaited[supervised], comes)
	}
	t.mu.Unlock()
	if comes == nil {
		return nil
	}
	return <-comes // It takes as long as confining another would.
}

// cameLocked notes that a thread that was coming is there, and gives it to the start that waits for it, if one does; nil
// when it failed.
func (t *threads) cameLocked(supervised bool, next chan start) (given bool) {
	t.coming[supervised]--
	waiting := t.awaited[supervised]
	if len(waiting) == 0 || next == nil && len(waiting) <= t.coming[supervised] {
		return false
	}
	waiting[0] <- next
	t.awaited[supervised] = slices.Delete(waiting, 0, 1)
	return true
}

func (t *threads) waitingLocked(supervised bool) int {
	return slices.IndexFunc(t.kept, func(k keptThread) bool { return k.supervised == supervised })
}

// prepareDelay is how long a short command has, to end before the next start's thread takes a processor.
const prepareDelay = 5 * time.Millisecond

// endDelay is how long who waits for the end of a command has, to learn of it before that.
const endDelay = 300 * time.Microsecond

// prepareLater calls prepare after a moment.
func (t *threads) prepareLater(supervised bool, c confine) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch timer := t.later[supervised]; {
	case t.closed:
	case timer != nil:
		timer.Reset(prepareDelay)
	default:
		if t.later == nil {
			t.later = make(map[bool]*time.Timer)
		}
		t.later[supervised] = time.AfterFunc(prepareDelay, func() { t.prepare(supervised, c) })
	}
}

// prepare makes a thread that waits for the next start, unless one does or is about to.
func (t *threads) prepare(supervised bool, c confine) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.none || t.coming[supervised] > 0 || t.waitingLocked(supervised) >= 0 || !reserve.has() {
		return
	}
	if t.coming == nil {
		t.coming, t.awaited = make(map[bool]int), make(map[bool][]chan chan start)
	}
	t.coming[supervised]++
	t.spawn(nil, supervised, c)
}

// keep offers a thread to the next start; nil when there will be none.
func (t *threads) keep(supervised, wasComing bool) chan start {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := make(chan start, 1)
	switch {
	case wasComing && t.cameLocked(supervised, next):
		return next
	case t.closed:
		return nil
	}
	t.kept = append(t.kept, keptThread{supervised, next})
	return next
}

// close ends the threads that wait. No start is going on.
func (t *threads) close() {
	t.mu.Lock()
	for _, k := range t.kept {
		close(k.next)
	}
	for _, timer := range t.later {
		timer.Stop()
	}
	t.kept, t.closed = nil, true
	t.mu.Unlock()
	t.alive.Wait()
}

// run is a thread's life.
func (t *threads) run(first *start, supervised bool, c confine) {
	defer reserve.used()
	listener, err := c(supervised)
	if err != nil {
		t.fail(first, supervised, err)
		return
	}
	var next chan start
	if first == nil {
		next = t.keep(supervised, true)
	}
	for s := first; ; s = nil {
		if s == nil {
			if s = nextStart(next); s == nil {
				break
			}
		}
		if !t.again {
			s.after(unix.Gettid())
		}
		pid, err := syscall.ForkExec(s.argv0, s.argv, s.attr)
		waits := err == syscall.EAGAIN || err == nil && t.again // ForkExec returns the kernel's bare answer
		if waits {
			// Before the answer, so that whoever gets it finds this thread and makes no other.
			next = t.keep(supervised, false)
		}
		if err == nil {
			s.result <- started{pid: pid, listener: listener}
		} else {
			s.result <- started{listener: -1, err: err}
		}
		if err == nil && !waits {
			return
		}
		if !waits {
			break
		}
	}
	if listener >= 0 {
		_ = unix.Close(listener) // Nobody has the filter but this thread, which ends.
	}
}

// fail tells that a thread could not be confined. Where nobody waits for one, the next start will learn it by itself.
func (t *threads) fail(first *start, supervised bool, err error) {
	if first != nil {
		first.result <- started{listener: -1, err: err}
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cameLocked(supervised, nil)
}

// nextStart returns the next start, or nil when there will be none.
func nextStart(next chan start) *start {
	if next == nil {
		return nil
	}
	if s, open := <-next; open {
		return &s
	}
	return nil
}

// onSpareThread runs fn on a thread that ends with it: the goroutine never unlocks, so Go destroys the thread
// instead of giving it to other goroutines. The one thread that Go cannot destroy is the main one: whoever lands there
// holds it until another goroutine, which then cannot land there, has done the work.
func onSpareThread(fn func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		fn()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onSpareThread(fn)
	}()
	<-done
	runtime.UnlockOSThread()
}

// threadReserve keeps idle threads in Go's own store, because each start uses one up.
type threadReserve struct {
	mu   sync.Mutex
	size int
	left atomic.Int64
	// held keep room for the threads that a filling makes until the moment in which Go makes each.
	held heldTasks
}

const (
	// marginTasks is how much room beyond its own a filling wants to see.
	marginTasks = 8
	// longFilling leaves what is held enough time to make room for Go when a command has taken the rest.
	longFilling = firstEnd - 5*time.Millisecond
)

// reserve is one for the whole process, as the store is.
var reserve threadReserve

// ReserveThreads makes Go have that many idle threads, and keeps the reserve from running out: starts that work
// use one each. Go ends the program when it needs a thread and the kernel refuses one, as it does when commands have
// used up the tasks of their control group; with a reserve it need not ask. Call it once, before the first start.
func ReserveThreads(n int) {
	reserve.mu.Lock()
	defer reserve.mu.Unlock()
	reserve.size = n
	reserve.left.Store(int64(reserve.makeLocked(n, func() bool { return true })))
}

// low is when the reserve is filled again, and least what starts leave to the program itself.
func (r *threadReserve) low() int64   { return int64(r.size) / 2 }
func (r *threadReserve) least() int64 { return int64(r.size) / 4 }

// has says that a start may use a thread.
func (r *threadReserve) has() bool {
	return r.size == 0 || r.left.Load() > r.least() || r.fill()
}

// used notes that a thread ends. Its own task is just about to be free, and a start has just worked: if ever there is
// room for new threads, it is now.
func (r *threadReserve) used() {
	if r.left.Add(-1) <= r.low() {
		r.fill()
	}
}

// fill says that the reserve is not low, or is no longer. Where no task is to be had it stays low.
func (r *threadReserve) fill() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := int(max(r.left.Load(), 0))
	if r.left.Load() > r.low() || r.size == 0 {
		return true
	}
	if !r.held.hold(r.size - left + marginTasks) {
		return false
	}
	defer r.held.release()
	begun, made := time.Now(), 0
	r.left.Store(int64(r.makeLocked(r.size, func() bool {
		if made++; made <= left {
			return true // Go has that one
		}
		r.held.releaseOne()
		return time.Since(begun) < longFilling
	})))
	return r.left.Load() > r.least()
}

// makeLocked makes goroutines hold a thread each at the same moment, one after the other as long as more says so, and
// returns how many; what they give back stays idle.
func (r *threadReserve) makeLocked(n int, more func() bool) (made int) {
	var done sync.WaitGroup
	release, holding := make(chan struct{}), make(chan struct{})
	for made < n && more() {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			holding <- struct{}{}
			<-release
		})
		<-holding
		made++
	}
	close(release)
	done.Wait()
	return made
}
