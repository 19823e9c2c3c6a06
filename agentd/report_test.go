package agentd

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"execsession.dev/agentd/ledger"
	"execsession.dev/unifiedexec"
)

// statuses keeps the status records.
type statuses struct {
	mu   sync.Mutex
	kept []ledger.Status
}

func (s *statuses) Append(r ledger.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Status != nil {
		s.kept = append(s.kept, *r.Status)
	}
}

func (s *statuses) all() []ledger.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.kept)
}

func runReporter(t *testing.T, r *reporter) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func TestReporterKeepsTheLastChange(t *testing.T) {
	var out statuses
	r := newReporter("b", &out, time.Now)
	r.cadence = cadence{least: 50 * time.Millisecond, busy: time.Hour, rest: time.Hour}
	runReporter(t, r)
	const changes = 200
	for i := range changes {
		r.processStarted(unifiedexec.Info{ID: int32(i)})
		time.Sleep(time.Millisecond)
	}
	eventually(t, "the last change is told", func() bool {
		all := out.all()
		return len(all) > 0 && all[len(all)-1].Processes.Running == changes
	})
	if n := len(out.all()); n > changes/2 {
		t.Errorf("%d changes gave %d status records, want far fewer", changes, n)
	}
}

func TestReporterBeatsWithoutChanges(t *testing.T) {
	for name, running := range map[string]int{"Busy": 1, "Rest": 0} {
		t.Run(name, func(t *testing.T) {
			var out statuses
			r := newReporter("b", &out, time.Now)
			r.running = running
			r.cadence = cadence{least: time.Millisecond, busy: time.Hour, rest: time.Hour}
			if running > 0 {
				r.cadence.busy = 10 * time.Millisecond
			} else {
				r.cadence.rest = 10 * time.Millisecond
			}
			runReporter(t, r)
			eventually(t, "three heartbeats", func() bool { return len(out.all()) > 3 })
		})
	}
}

func TestReporterActivityAsksForNoRecord(t *testing.T) {
	var out statuses
	r := newReporter("b", &out, time.Now)
	r.active()
	select {
	case <-r.dirty:
		t.Error("polling a command would fill the log")
	default:
	}
	if r.snapshot().LastActivity.IsZero() {
		t.Error("the activity is not told with the next record")
	}
}

func TestHeartbeatIsSpread(t *testing.T) {
	r := newReporter("b", &statuses{}, time.Now)
	first := r.heartbeat()
	same := true
	for range 20 {
		next := r.heartbeat()
		same = same && next == first
		if next > defaultCadence.rest || next < defaultCadence.rest*7/8-time.Nanosecond {
			t.Errorf("a heartbeat of %s, want nearly %s", next, defaultCadence.rest)
		}
	}
	if same {
		t.Errorf("twenty heartbeats of exactly %s", first)
	}
}
