package agentd

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/ledger"
	"execsession.dev/sandbox"
	"execsession.dev/unifiedexec"
)

// cadence says when status records are written.
type cadence struct {
	// least is between two status records.
	least time.Duration
	// busy and rest are between heartbeats with and without running commands; a reader
	// that lost its place, and a load balancer that cuts silent streams, live on them.
	busy, rest time.Duration
}

var defaultCadence = cadence{least: time.Second, busy: 30 * time.Second, rest: 4 * time.Minute}

// appender takes records; *ledger.Writer is one.
type appender interface {
	Append(ledger.Record)
}

// reporter knows the current state and tells it to the ledger.
type reporter struct {
	boot    string
	started time.Time
	now     func() time.Time
	out     appender
	cadence cadence
	denials *denials
	// journal tells the state of the journal.
	journal func() *ledger.Journal

	mu            sync.Mutex
	sandbox       ledger.Sandbox
	policy        ledger.Policy
	full          bool // the ledger shows commands
	running       int
	exited        uint64
	spillFailed   uint64
	oomScoresKept uint64
	lastActivity  time.Time
	stopping      bool

	dirty chan struct{} // holds a token when the state changed since the last status
}

func newReporter(boot string, out appender, now func() time.Time) *reporter {
	return &reporter{
		boot: boot, started: now().UTC(), now: now, out: out, cadence: defaultCadence, denials: newDenials(out, now),
		journal: func() *ledger.Journal { return nil },
		policy:  ledger.Policy{Reason: ReasonDocumentMissing, Message: "no document was read yet"},
		dirty:   make(chan struct{}, 1),
	}
}

// snapshot is the whole current state.
func (r *reporter) snapshot() ledger.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return ledger.Status{
		AgentVersion: Version, StartTime: r.started, Stopping: r.stopping,
		Sandbox: r.sandbox, Policy: r.policy, Denied: r.denials.count(),
		Processes:    ledger.Processes{Running: r.running, Exited: r.exited},
		LastActivity: r.lastActivity,
		Journal:      r.journal(), SpillFailures: r.spillFailed, OOMScoresKept: r.oomScoresKept,
	}
}

// change changes the state under the lock and asks for a status record.
func (r *reporter) change(f func()) {
	r.mu.Lock()
	f()
	r.mu.Unlock()
	select {
	case r.dirty <- struct{}{}:
	default:
	}
}

// active notes that somebody used a command. It is told with the next status record
// and asks for none: polling must not fill the log.
func (r *reporter) active() {
	now := r.now().UTC()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastActivity = now
}

// policyChanged tells the new policy.
func (r *reporter) policyChanged(s *policyState) {
	state := s.ledger()
	r.change(func() {
		r.policy = state
		r.sandbox = sandboxTo(s.report)
		r.full = s.valid() && s.policy.Output.Ledger == config.LedgerFull
	})
	r.out.Append(ledger.Record{Type: ledger.TypePolicy, Policy: &state})
}

func sandboxTo(report sandbox.Report) ledger.Sandbox {
	return ledger.Sandbox{
		LandlockABI: report.LandlockABI, Seccomp: report.Seccomp, Denials: report.Denials, Network: report.Network,
		Enforced: report.Enforced, NotEnforced: report.NotEnforced,
	}
}

// processStarted is the engine's OnStart.
func (r *reporter) processStarted(info unifiedexec.Info) {
	started := ledger.Started{
		ID: info.ID, Program: programName(info), Digest: digest(info.Command), TTY: info.TTY,
	}
	r.change(func() {
		r.running++
		r.lastActivity = r.now().UTC()
		if info.OOMScoreKept {
			r.oomScoresKept++
		}
		if r.full {
			started.Command = valid(info.Command)
		}
	})
	r.out.Append(ledger.Record{Type: ledger.TypeStarted, Started: &started})
	r.denials.identify(info.PID, info.ID)
}

// processExited is the engine's OnExit.
func (r *reporter) processExited(info unifiedexec.Info) {
	r.change(func() {
		r.running--
		r.exited++
		r.lastActivity = r.now().UTC()
		if info.SpillProblem != "" {
			r.spillFailed++
		}
	})
	r.ended(info)
}

// processLost tells the end of a command that an earlier agentd started. It counts with neither's commands.
func (r *reporter) processLost(info unifiedexec.Info) { r.ended(info) }

func (r *reporter) ended(info unifiedexec.Info) {
	exit := info.Exit
	r.out.Append(ledger.Record{Type: ledger.TypeExited, Exited: &ledger.Exited{
		ID: info.ID, Reason: string(exit.Reason), ExitCode: int32(exit.Code), Signal: exit.Signal,
		StartTime: exit.StartTime.UTC(), EndTime: exit.EndTime.UTC(), OutputBytes: info.OutputBytes,
		Message: valid(exit.Message),
	}})
}

// refused tells that a command was not started.
func (r *reporter) refused(reason string, err error, digest string) {
	r.out.Append(ledger.Record{Type: ledger.TypeRefused, Refused: &ledger.Refused{
		Reason: reason, Message: valid(status.Convert(err).Message()), Digest: digest,
	}})
}

// stop tells that agentd is ending.
func (r *reporter) stop() { r.change(func() { r.stopping = true }) }

// status appends a status record.
func (r *reporter) status() ledger.Record {
	state := r.snapshot()
	record := ledger.Record{Type: ledger.TypeStatus, Time: r.now().UTC(), Status: &state}
	r.out.Append(record)
	return record
}

// calmAfter is how long nothing has to change before memory is given back.
const calmAfter = 20 * time.Second

// run writes status records until ctx ends: on a change, but not more often than the
// cadence allows, the last change never lost; and as a heartbeat.
func (r *reporter) run(ctx context.Context) {
	changed := true
	var memory giver
	memory.kept, _ = heap()
	for {
		// What changed until now is in the record that is written now.
		select {
		case <-r.dirty:
		default:
		}
		r.status()
		if wait(ctx, r.cadence.least, nil) == waitCancelled {
			return
		}
		period := r.heartbeat()
		calm := min(calmAfter, period)
		end := wait(ctx, calm, r.dirty)
		if end == waitOver {
			if changed {
				memory.giveBack()
			}
			changed = false
			end = wait(ctx, period-calm, r.dirty)
		}
		switch end {
		case waitCancelled:
			return
		case waitEarly:
			changed = true
		case waitOver:
		}
	}
}

// heartbeat is the time to the next one, spread so that the agents of a node do not beat as one.
func (r *reporter) heartbeat() time.Duration {
	r.mu.Lock()
	busy := r.running > 0
	r.mu.Unlock()
	period := r.cadence.rest
	if busy {
		period = r.cadence.busy
	}
	return period - time.Duration(rand.Int64N(int64(period)/8+1)) //nolint:gosec // jitter needs no secret
}

// waitEnd says what ended a wait.
type waitEnd int

const (
	waitOver waitEnd = iota
	waitEarly
	waitCancelled
)

// wait ends after d, with a token of early, or with ctx.
func wait(ctx context.Context, d time.Duration, early <-chan struct{}) waitEnd {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return waitOver
	case <-early:
		return waitEarly
	case <-ctx.Done():
		return waitCancelled
	}
}
