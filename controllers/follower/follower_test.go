package follower

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"execsession.dev/agentd/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// script answers each opening of a log with the next of its answers; the last one stays.
type script struct {
	mu      sync.Mutex
	answers []answer
	opened  []LogOptions
}

type answer struct {
	text string
	// open keeps the stream open after the text.
	open bool
	err  error
}

func (s *script) Open(ctx context.Context, _ types.NamespacedName, opts LogOptions) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	s.opened = append(s.opened, opts)
	if next.err != nil {
		return nil, next.err
	}
	text := io.Reader(strings.NewReader(next.text))
	if next.open {
		text = io.MultiReader(text, ended{ctx.Done()})
	}
	return io.NopCloser(text), nil
}

func (s *script) opens() []LogOptions {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]LogOptions(nil), s.opened...)
}

// ended reads nothing until its channel closes.
type ended struct{ done <-chan struct{} }

func (e ended) Read([]byte) (int, error) {
	<-e.done
	return 0, io.EOF
}

func status(t *testing.T, boot string, seq uint64, change func(*ledger.Status)) string {
	t.Helper()
	s := &ledger.Status{AgentVersion: "v1", StartTime: time.Unix(100, 0).UTC()}
	if change != nil {
		change(s)
	}
	line, err := ledger.Encode(ledger.Record{
		Version: ledger.Version, Boot: boot, Seq: seq, Time: time.Unix(int64(100+seq), 0), Type: ledger.TypeStatus, Status: s,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(line)
}

func start(t *testing.T, f *Follower) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("the follower did not end")
		}
	})
}

func change(t *testing.T, f *Follower) {
	t.Helper()
	select {
	case <-f.Changes():
	case <-time.After(patience):
		t.Fatal("no change was announced")
	}
}

var target = Target{
	Session: types.NamespacedName{Namespace: "ns", Name: "s"},
	Pod:     types.NamespacedName{Namespace: "ns", Name: "p"},
	UID:     "uid",
}

func TestNewestStatusCounts(t *testing.T) {
	noise := "panic: no record\n" + strings.Repeat("x", 3*ledger.MaxRecordBytes) + "\n" + `{"v":1,"half`
	logs := &script{answers: []answer{{
		text: status(t, "b", 1, nil) + noise + "\n" + status(t, "b", 2, func(s *ledger.Status) { s.Processes.Running = 3 }),
		open: true,
	}}}
	f := &Follower{Logs: logs, Clock: clock.RealClock{}, Log: logr.Discard()}
	f.Watch(target) // before the start
	start(t, f)
	change(t, f)
	change(t, f)
	report, silent := f.Newest("uid")
	if report == nil || silent || report.Status.Processes.Running != 3 {
		t.Errorf("newest report is %+v (silent %v), want the one with 3 processes", report, silent)
	}
	if first := logs.opens()[0]; !first.Follow || first.TailLines == 0 {
		t.Errorf("the log was opened with %+v, want a follow from near its end", first)
	}
	f.Forget(target.Session, "")
	if report, _ := f.Newest("uid"); report != nil {
		t.Errorf("a forgotten pod still has the report %+v", report)
	}
}

func TestHeartbeatsAreNoNews(t *testing.T) {
	logs := &script{answers: []answer{{
		text: status(t, "b", 1, func(s *ledger.Status) { s.LastActivity = time.Unix(600, 0) }) +
			status(t, "b", 2, func(s *ledger.Status) { s.LastActivity = time.Unix(630, 0) }) +
			status(t, "b", 3, func(s *ledger.Status) { s.LastActivity = time.Unix(660, 0) }),
		open: true,
	}}}
	f := &Follower{Logs: logs, Clock: clock.RealClock{}, Log: logr.Discard()}
	start(t, f)
	f.Watch(target)
	change(t, f) // the first
	change(t, f) // another minute
	select {
	case <-f.Changes():
		t.Error("a heartbeat was announced")
	case <-time.After(200 * time.Millisecond):
	}
}

func TestFollowThatEndsAtOnceIsPolledEverMoreSlowly(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Unix(1000, 0))
	logs := &script{answers: []answer{{text: status(t, "b", 1, nil)}, {}, {err: errors.New("refused")}, {}}}
	f := &Follower{Logs: logs, Clock: fake, Log: logr.Discard()}
	start(t, f)
	f.Watch(target)
	change(t, f)
	for i, pause := range []time.Duration{minPause, 2 * minPause, 4 * minPause} {
		waiting(t, fake)
		if got := len(logs.opens()); got != i+1 {
			t.Fatalf("the log was opened %d times, want %d", got, i+1)
		}
		fake.Step(pause - time.Millisecond)
		if got := len(logs.opens()); got != i+1 {
			t.Fatalf("the log was opened again before its pause of %s", pause)
		}
		fake.Step(time.Millisecond)
		reach(t, func() bool { return len(logs.opens()) == i+2 })
	}
}

func TestSilenceIsTold(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Unix(1000, 0))
	logs := &script{answers: []answer{{text: status(t, "b", 1, nil), open: true}}}
	f := &Follower{Logs: logs, Clock: fake, Log: logr.Discard()}
	start(t, f)
	f.Watch(target)
	change(t, f)
	waiting(t, fake)
	fake.Step(silence)
	change(t, f)
	if report, silent := f.Newest("uid"); report == nil || !silent {
		t.Errorf("newest report is %+v, silent is %v; want the last one, and silence", report, silent)
	}
}

func TestFollowsAreBounded(t *testing.T) {
	logs := &script{answers: []answer{{open: true}}}
	f := &Follower{Logs: logs, Clock: clock.RealClock{}, Log: logr.Discard(), MaxStreams: 1}
	start(t, f)
	f.Watch(target)
	second := target
	second.UID = "another"
	reach(t, func() bool { return len(logs.opens()) == 1 })
	f.Watch(second)
	reach(t, func() bool { return len(logs.opens()) == 2 })
	if opens := logs.opens(); !opens[0].Follow || opens[1].Follow {
		t.Errorf("the logs were opened with %+v, want one follow and one tail", opens)
	}
}

// waiting waits until somebody waits for the clock.
func waiting(t *testing.T, fake *clocktesting.FakeClock) {
	t.Helper()
	reach(t, fake.HasWaiters)
}

func reach(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("it did not come to that")
		}
		time.Sleep(5 * time.Millisecond)
	}
}
