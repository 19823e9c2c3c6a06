package follower

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"execsession.dev/agentd/ledger"
	"execsession.dev/api/v1alpha1"
)

const (
	// opensPerSecond paces the reopening of all streams after a change of leader.
	opensPerSecond = 50
	// changeBuffer is how many changes wait for the reconciler before readers do.
	changeBuffer = 256
	// silence is more than two of the heartbeats that agentd writes at rest.
	silence = 10 * time.Minute

	defaultMaxStreams = 500
)

// Target is a pod whose agent is listened to.
type Target struct {
	Session types.NamespacedName
	Pod     types.NamespacedName
	UID     types.UID
}

// Report is the newest that an agent said.
type Report struct {
	Boot   string
	Time   time.Time
	Status ledger.Status
}

// Follower listens to the agents of many pods. Fill in the exported fields, then Start it.
type Follower struct {
	// Logs opens the logs of containers.
	Logs LogSource
	// Clock is the real one outside of tests.
	Clock clock.WithDelayedExecution
	// MaxStreams bounds the follows that are open at once; 0 is a default.
	MaxStreams int
	Log        logr.Logger

	changes chan event.GenericEvent
	opens   *rate.Limiter
	slots   chan struct{}
	once    sync.Once

	mu      sync.Mutex
	readers map[types.UID]*reader
	// run starts a reader; it is nil while the follower does not run.
	run func(*reader)
}

// reader is what is known of one target. Its fields but target are guarded by Follower.mu.
type reader struct {
	target Target
	cancel context.CancelFunc
	report *Report
	silent bool
}

func (f *Follower) init() {
	f.once.Do(func() {
		if f.MaxStreams == 0 {
			f.MaxStreams = defaultMaxStreams
		}
		f.changes = make(chan event.GenericEvent, changeBuffer)
		f.opens = rate.NewLimiter(opensPerSecond, opensPerSecond)
		f.slots = make(chan struct{}, f.MaxStreams)
		f.readers = map[types.UID]*reader{}
	})
}

// NeedLeaderElection makes the manager start the follower with the reconcilers.
func (f *Follower) NeedLeaderElection() bool { return true }

// Changes delivers an event for a session whenever its agent says something new.
func (f *Follower) Changes() <-chan event.GenericEvent {
	f.init()
	return f.changes
}

// Start listens until the context ends and returns once every reader has.
func (f *Follower) Start(ctx context.Context) error {
	f.init()
	var readers sync.WaitGroup
	f.mu.Lock()
	// Called with mu held; the reader's goroutine is joined below.
	f.run = func(r *reader) {
		readerCtx, cancel := context.WithCancel(ctx)
		r.cancel = cancel
		readers.Go(func() {
			defer cancel()
			f.listen(readerCtx, r)
		})
	}
	for _, r := range f.readers {
		f.run(r)
	}
	f.mu.Unlock()

	<-ctx.Done()
	f.mu.Lock()
	f.run = nil
	f.mu.Unlock()
	readers.Wait()
	return nil
}

// Watch starts to listen to a pod, if that has not begun.
func (f *Follower) Watch(target Target) {
	f.init()
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.readers[target.UID]; known {
		return
	}
	r := &reader{target: target}
	f.readers[target.UID] = r
	if f.run != nil {
		f.run(r)
	}
}

// Forget stops listening to every pod of a session but the one that is given.
func (f *Follower) Forget(session types.NamespacedName, except types.UID) {
	f.init()
	f.mu.Lock()
	defer f.mu.Unlock()
	for uid, r := range f.readers {
		if r.target.Session != session || uid == except {
			continue
		}
		if r.cancel != nil {
			r.cancel()
		}
		delete(f.readers, uid)
	}
}

// Newest is the newest report of a pod's agent, or nil; silent says that the agent
// should have said something for long and did not.
func (f *Follower) Newest(pod types.UID) (report *Report, silent bool) {
	f.init()
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.readers[pod]
	if !ok {
		return nil, false
	}
	return r.report, r.silent
}

// take keeps a record and tells whether it says something new.
func (f *Follower) take(r *reader, record ledger.Record) (changed bool) {
	if record.Status == nil {
		return false
	}
	report := &Report{Boot: record.Boot, Time: record.Time, Status: *record.Status}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed = r.silent || r.report == nil || !same(r.report, report)
	r.report, r.silent = report, false
	return changed
}

// fallSilent notes that nothing was heard for long.
func (f *Follower) fallSilent(r *reader) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.silent = true
}

// announce tells the reconciler; it waits for room, but never longer than the reader lives.
func (f *Follower) announce(ctx context.Context, r *reader) {
	session := &v1alpha1.ExecSession{}
	session.Namespace, session.Name = r.target.Session.Namespace, r.target.Session.Name
	select {
	case f.changes <- event.GenericEvent{Object: session}:
	case <-ctx.Done():
	}
}
