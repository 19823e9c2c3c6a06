package execsession

import (
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// Somebody who starts a command sees it counted at once; a session that starts one
	// after the other costs two writes a minute.
	noiseBurst = 10
	noiseEvery = 30 * time.Second
)

// pace bounds the writes of what changes with every command.
type pace struct{ limiter *rate.Limiter }

func newPace() *pace {
	return &pace{rate.NewLimiter(rate.Every(noiseEvery), noiseBurst)}
}

// wait is 0 and takes a write, or is how long to wait for the next.
func (p *pace) wait(now time.Time) time.Duration {
	reservation := p.limiter.ReserveN(now, 1)
	delay := reservation.DelayFrom(now)
	if delay > 0 {
		reservation.CancelAt(now)
	}
	return delay
}

// tooSoon holds back a write that would tell only of commands, until its turn comes.
func (r *Reconciler) tooSoon(t *turn) bool {
	quiet := t.base.Status.DeepCopy()
	quiet.Processes = t.session.Status.Processes
	quiet.LastActivityTime = t.session.Status.LastActivityTime
	if !equality.Semantic.DeepEqual(*quiet, t.session.Status) {
		return false
	}
	delay := r.memory.of(client.ObjectKeyFromObject(t.session)).writes.wait(t.now)
	if delay > 0 && (t.again == 0 || delay < t.again) {
		t.again = delay
	}
	return delay > 0
}
