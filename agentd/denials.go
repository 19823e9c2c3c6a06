package agentd

import (
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"execsession.dev/agentd/ledger"
	"execsession.dev/sandbox"
	"execsession.dev/sandbox/egress"
)

// The bounds of what denials may cost, whatever all commands do together. The sandbox
// bounds what one command does; calls that no record tells are counted all the same.
const (
	denialsPerSecond = 20
	denialsBurst     = 100
	// keptLaunches and keptCommands bound what is remembered of commands that ended: of those that never got a name, and
	// of those that were refused something. The engine keeps fewer.
	keptLaunches = 256
	keptCommands = 256
)

// denials tells the ledger what commands were refused, and knows it of each command.
type denials struct {
	out appender
	now func() time.Time

	mu sync.Mutex
	// launches are those whose command has no name yet: the engine gives it after the start.
	launches map[int]*launch
	// ended are the processes among them that are no more, oldest first.
	ended []int
	// commands are those that have something left, or were refused something; finished are the latter, which have
	// nothing left, oldest first.
	commands map[int32]*launch
	finished []int32
	total    uint64
	// allowance is how many records may be written at the moment of its last change.
	allowance float64
	changed   time.Time
	live      int
	idle      chan struct{} // closed when nothing lives; nil unless somebody waits
}

// launch is one start, and what it was refused.
type launch struct {
	denials  *denials
	refusals sandbox.Refusals
	// The others are guarded by denials.mu. What was refused before the command had a name is pending.
	id      int32
	named   bool
	over    bool
	pid     int
	pending []sandbox.Denial
}

func newDenials(out appender, now func() time.Time) *denials {
	return &denials{
		out: out, now: now, launches: make(map[int]*launch), commands: make(map[int32]*launch),
		allowance: denialsBurst, changed: now(),
	}
}

// watch returns what a start is watched with. Begun follows if it made a process.
func (d *denials) watch(l *launch) sandbox.Watch {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live++
	l.denials = d
	return sandbox.Watch{OnDenial: l.denied, Refusals: &l.refusals, OnEnd: l.end}
}

// begun notes the process that a start made.
func (d *denials) begun(l *launch, pid int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.pid = pid
	d.launches[pid] = l
	if l.over {
		d.forgetLocked(l)
	}
}

// identify says which command a process is.
func (d *denials) identify(pid int, id int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.launches[pid]; l != nil { // else it was started otherwise, or has its name already
		d.nameLocked(l, id)
	}
}

// name says which command a launch is. Whoever started it knows that sooner than the engine tells it.
func (d *denials) name(l *launch, id int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.denials != nil && !l.named {
		d.nameLocked(l, id)
	}
}

func (d *denials) nameLocked(l *launch, id int32) {
	if d.launches[l.pid] == l {
		delete(d.launches, l.pid)
	}
	l.id, l.named = id, true
	for _, denial := range l.pending {
		d.tellLocked(l, denial)
	}
	l.pending = nil
	if l.over && l.refusals.Total() == 0 {
		return
	}
	d.commands[id] = l
	if l.over {
		d.finishLocked(l)
	}
}

func (l *launch) denied(denial sandbox.Denial) {
	d := l.denials
	d.mu.Lock()
	defer d.mu.Unlock()
	if !l.named {
		// The sandbox tells few, and the engine names a command at once.
		l.pending = append(l.pending, denial)
		return
	}
	d.tellLocked(l, denial)
}

func (l *launch) end() {
	d := l.denials
	d.mu.Lock()
	defer d.mu.Unlock()
	l.over = true
	switch {
	case l.named:
		d.finishLocked(l)
	case d.launches[l.pid] == l:
		d.forgetLocked(l)
	}
	d.live--
	if d.live == 0 && d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
}

// forgetLocked bounds the launches that ended without a name: most get it in a
// moment, those of agentd's own never do.
func (d *denials) forgetLocked(l *launch) {
	d.ended = append(d.ended, l.pid)
	if len(d.ended) <= keptLaunches {
		return
	}
	if oldest := d.launches[d.ended[0]]; oldest != nil && oldest.over {
		delete(d.launches, d.ended[0])
	}
	d.ended = d.ended[1:]
}

// finishLocked forgets a command that was refused nothing, and bounds the others.
func (d *denials) finishLocked(l *launch) {
	if d.commands[l.id] != l {
		return
	}
	if l.refusals.Total() == 0 {
		delete(d.commands, l.id)
		return
	}
	d.finished = append(d.finished, l.id)
	if len(d.finished) <= keptCommands {
		return
	}
	if oldest := d.commands[d.finished[0]]; oldest != nil && oldest.over {
		delete(d.commands, d.finished[0])
	}
	d.finished = d.finished[1:]
}

func (d *denials) tellLocked(l *launch, denial sandbox.Denial) {
	d.total += denial.Count
	if !d.mayTellLocked() {
		return
	}
	d.out.Append(ledger.Record{Type: ledger.TypeDenied, Denied: &ledger.Denied{
		ID: l.id, Source: ledger.SourceEnforced, Rule: denial.Rule,
		Syscall: denial.Syscall, Arguments: denial.Arguments, Address: denial.Address,
		Errno: unix.ErrnoName(denial.Errno), Program: valid(denial.Program), PID: denial.PID,
		Count: denial.Count, Mixed: denial.Omitted, FirstTime: denial.First.UTC(), LastTime: denial.Last.UTC(),
	}})
}

// mayTellLocked takes one record from the allowance.
func (d *denials) mayTellLocked() bool {
	now := d.now()
	d.allowance = min(denialsBurst, d.allowance+now.Sub(d.changed).Seconds()*denialsPerSecond)
	d.changed = now
	if d.allowance < 1 {
		return false
	}
	d.allowance--
	return true
}

// refusedByProxy tells what the proxy refused: whose request it was is not known.
func (d *denials) refusedByProxy(e egress.Event) {
	if e.Verdict != egress.Refused {
		return
	}
	host := e.Host
	if host == "" {
		host = e.Asked
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.total++
	if !d.mayTellLocked() {
		return
	}
	d.out.Append(ledger.Record{Type: ledger.TypeDenied, Denied: &ledger.Denied{
		Source: ledger.SourceEnforced, Rule: "egress", Address: valid(net.JoinHostPort(host, strconv.Itoa(int(e.Port)))),
		Arguments: valid(string(e.Reason) + ": " + e.Message), Count: 1, FirstTime: e.Time.UTC(), LastTime: e.Time.UTC(),
	}})
}

// count is how many calls were refused since agentd started.
func (d *denials) count() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.total
}

// of is what a command, its descendants included, was refused; nil when that is nothing, and also for a command of
// long ago or of an earlier agentd.
func (d *denials) of(id int32) *sandbox.Refusals {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.commands[id]; l != nil {
		return &l.refusals
	}
	return nil
}

// settle waits until the last process of every command is gone, which tells its last
// denials, but not longer than that.
func (d *denials) settle(patience time.Duration) {
	d.mu.Lock()
	if d.live == 0 {
		d.mu.Unlock()
		return
	}
	if d.idle == nil {
		d.idle = make(chan struct{})
	}
	idle := d.idle
	d.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}
