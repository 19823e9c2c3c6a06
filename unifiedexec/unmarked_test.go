package unifiedexec

import (
	"sync"
	"testing"
	"time"
)

// Where there are no marks, as for an engine inside a sandbox, Stop still finds what a shell started in the moment in
// which it was asked to end.
func TestStopWithoutMarks(t *testing.T) {
	e := newEngine(t, Config{StopGrace: 500 * time.Millisecond})
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 15 {
				c := Command{TTY: worker%2 == 0, Script: "echo hello; sleep NAP & sleep NAP"}
				p, err := e.start(testContext(t), c.named(), false, func(p *Process) { p.mark = 0 })
				if err != nil {
					t.Error(err)
					return
				}
				// Some have started their children by now, some are about to.
				time.Sleep(time.Duration(i) * time.Millisecond)
				if rec, was, err := p.Stop(testContext(t), -1); err != nil || !was || rec.Reason != ReasonStopped {
					t.Errorf("%+v %v %v", rec, was, err)
				}
			}
		})
	}
	wg.Wait()
	if left := running(t, "sleep NAP"); len(left) > 0 {
		t.Errorf("%d still run", len(left))
	}
	for _, info := range e.List() {
		if info.OutputOpen {
			t.Errorf("the output of %d is still open", info.ID)
		}
	}
}
