package unifiedexec

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// killPatience bounds how long killed processes may take to go away; one that sleeps in the kernel can take for ever.
	killPatience = 5 * time.Second
	// killTime bounds how long new ones are killed that those before had made. Where a machine is short of processors, to look
	// at a hundred processes takes seconds.
	killTime = 2 * time.Minute
)

// stopping is one run of the ladder: ask, wait the grace time, kill.
type stopping struct {
	done chan struct{}

	mu       sync.Mutex
	deadline time.Time
	// waiting is the pidfd that is waited for at the moment.
	waiting *os.File
}

// hurry moves the end of the grace time forward.
func (s *stopping) hurry(deadline time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !deadline.Before(s.deadline) {
		return
	}
	s.deadline = deadline
	if s.waiting != nil {
		_ = s.waiting.SetReadDeadline(deadline) // It is closed only after the wait.
	}
}

func (s *stopping) await(m member) bool {
	s.mu.Lock()
	deadline := s.deadline
	s.waiting = m.pidfd
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting = nil
		s.mu.Unlock()
	}()
	return awaitPidfd(m.pidfd, deadline)
}

// Stop ends the process and every descendant: SIGTERM, the grace time (negative means the engine's),
// SIGKILL. It returns the record and whether the process itself was still running. ctx
// ends the wait, not the stopping.
func (p *Process) Stop(ctx context.Context, grace time.Duration) (rec ExitRecord, wasRunning bool, err error) {
	return p.StopFor(ctx, grace, ReasonStopped, "")
}

// StopFor is Stop with a reason for the record: ReasonPolicy and so on.
func (p *Process) StopFor(ctx context.Context, grace time.Duration, reason ExitReason, message string) (rec ExitRecord, wasRunning bool, err error) {
	run, wasRunning := p.beginStop(grace, reason, message)
	for _, end := range []<-chan struct{}{run.done, p.done} {
		select {
		case <-end:
		case <-ctx.Done():
			return ExitRecord{}, wasRunning, ctx.Err()
		}
	}
	rec, _ = p.Exit()
	return rec, wasRunning, nil
}

// beginStop starts the ladder or hurries the one that is on its way.
func (p *Process) beginStop(grace time.Duration, reason ExitReason, message string) (*stopping, bool) {
	if grace < 0 {
		grace = p.engine.stopGrace
	}
	deadline := time.Now().Add(grace)
	p.mu.Lock()
	defer p.mu.Unlock()
	running := !p.endedLocked()
	if running && p.cause == "" {
		p.cause, p.causeMessage = reason, message
	}
	if p.stop != nil {
		select {
		case <-p.stop.done:
		default:
			p.stop.hurry(deadline)
			return p.stop, running
		}
	}
	p.stop = &stopping{done: make(chan struct{}), deadline: deadline}
	run := p.stop
	p.engine.running.Go(func() {
		defer close(run.done)
		p.climb(run, grace > 0)
	})
	return run, running
}

// climb asks everybody, also those who appear meanwhile, and kills who is left.
func (p *Process) climb(run *stopping, ask bool) {
	asked := make(map[procEntryKey]bool)
	for ask {
		members := p.hold()
		if len(members) == 0 {
			return
		}
		for _, m := range members {
			if key := m.entry.key(); !asked[key] {
				asked[key] = true
				p.ask(m)
			}
		}
		ask = awaitAll(members, run.await)
	}
	p.kill()
}

// kill kills everybody, also those who appear meanwhile.
func (p *Process) kill() {
	killed := make(map[procEntryKey]bool)
	var last time.Time
	for end := time.Now().Add(killTime); time.Now().Before(end); {
		members := p.hold()
		if len(killed) > 0 || len(members) > crowd {
			for _, m := range members {
				m.release()
			}
			p.freeze()
			members = p.hold()
		}
		if len(members) == 0 {
			return
		}
		fresh := false
		for _, m := range members {
			key := m.entry.key()
			fresh = fresh || !killed[key]
			killed[key] = true
			_ = m.signal(unix.SIGKILL) // Whoever may not be signalled is still there in the next round.
		}
		if fresh {
			last = time.Now().Add(killPatience)
		}
		if !awaitAll(members, func(m member) bool { return awaitPidfd(m.pidfd, last) }) && !fresh {
			return
		}
	}
}

// crowd is how many are stopped before they are killed: killing fewer is done before they notice.
const crowd = 16

// freezeTime bounds how long freeze waits for those that do not stop, and freezePause is how long it waits between two looks.
const (
	freezeTime  = 10 * time.Second
	freezePause = 2 * time.Millisecond
)

// freeze stops everybody, until all have stopped: who has makes no more processes, and keeps the task that another one
// would make one with. Those that fork all the time are faster than killing them one by one. To have been told is
// not enough: on a machine short of processors, who was told in the middle of a fork may end it seconds later. Nor is one
// look: numbers come round again, and such a one may leave its child behind where the look already was, and stop.
func (p *Process) freeze() {
	const looks = 2
	end := time.Now().Add(freezeTime)
	for still := 0; still < looks && time.Now().Before(end); time.Sleep(freezePause) {
		still++
		for _, entry := range p.members() {
			if entry.stopped() {
				continue
			}
			still = 0
			if m, ok := holdMember(entry); ok {
				_ = m.signal(unix.SIGSTOP) // Who may not be signalled cannot be killed either.
				m.release()
			}
		}
	}
}

// ask sends what a closing terminal or an operator would send; a stopped process must go on to hear it.
func (p *Process) ask(m member) {
	signals := []unix.Signal{unix.SIGTERM, unix.SIGCONT}
	if p.terminal != nil {
		// An interactive shell ignores SIGTERM and ends on a hang-up.
		signals = []unix.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGCONT}
	}
	for _, sig := range signals {
		_ = m.signal(sig) // Whoever may not be signalled is killed, or left, later.
	}
}

// hold opens a pidfd for each living member.
func (p *Process) hold() []member {
	var held []member
	for _, entry := range p.members() {
		if m, ok := holdMember(entry); ok {
			held = append(held, m)
		}
	}
	return held
}

// awaitAll waits for each and lets each go; false when one of them outlived the wait.
func awaitAll(members []member, await func(member) bool) bool {
	all := true
	for _, m := range members {
		all = await(m) && all
		m.release()
	}
	return all
}

// procEntryKey names one process for good.
type procEntryKey struct {
	pid   int
	start uint64
}

func (p procEntry) key() procEntryKey { return procEntryKey{pid: p.pid, start: p.start} }
