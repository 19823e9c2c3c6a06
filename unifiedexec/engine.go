package unifiedexec

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	defaultStopGrace  = 3 * time.Second
	defaultDrainGrace = 50 * time.Millisecond
)

// Engine runs processes and keeps their table.
type Engine struct {
	inherit    []string
	stopGrace  time.Duration
	drainGrace time.Duration
	onStart    func(Info)
	onExit     func(Info)
	// memoryEvents counts the memory group's troubles, -1 where nobody does; oomScoreAdj is what commands get.
	memoryEvents int
	oomScoreAdj  int
	// null is /dev/null, which every command may have for its input: to open it takes 1 % of a short one.
	null    descriptor
	journal Journal
	// spills is nil when no output goes to a file.
	spills *spillStore

	settings atomic.Pointer[settings]
	table    *table
	waits    *waits
	history  history
	orphans  *orphans
	// snapshots and persisted are what shells are given before their scripts.
	snapshots snapshots
	persisted persisted
	events    events
	// running counts every goroutine of the engine.
	running sync.WaitGroup
	// closing is closed by the first Close, closed when everything ended.
	closeOnce sync.Once
	closed    chan struct{}
}

// engines counts the open engines of this process: they share their marks.
var engines atomic.Int32

// New makes an engine. Unless ReapOrphans asks for one, it starts no goroutine. Close it.
func New(cfg Config) (*Engine, error) {
	e := &Engine{
		inherit: slices.Clone(cfg.Environ), stopGrace: cfg.StopGrace, drainGrace: cfg.DrainGrace,
		onStart: cfg.OnStart, onExit: cfg.OnExit,
		orphans: newOrphans(cfg.ReapOrphans), closed: make(chan struct{}),
		waits: newWaits(), oomScoreAdj: cfg.OOMScoreAdj,
		journal: cfg.Journal,
	}
	if e.oomScoreAdj < -1000 || e.oomScoreAdj > 1000 {
		return nil, &FieldError{Field: "oomScoreAdj", Value: strconv.Itoa(e.oomScoreAdj), Problem: "must be from -1000 to 1000"}
	}
	var err error
	if e.spills, err = newSpillStore(cfg.Spill, e.running.Go); err != nil {
		return nil, err
	}
	e.table = newTable(&e.running)
	if cfg.Environ == nil {
		e.inherit = os.Environ()
	}
	if e.stopGrace <= 0 {
		e.stopGrace = defaultStopGrace
	}
	if e.drainGrace <= 0 {
		e.drainGrace = defaultDrainGrace
	}
	if err := e.Configure(cfg.Settings); err != nil {
		return nil, err
	}
	// What this process was started with and left open is not the commands' to have. Everything that Go opens is marked already.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("keeping inherited descriptors from commands: %w", err)
	}
	if err := defaultDispositions(); err != nil {
		return nil, err
	}
	if cfg.Subreaper {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("becoming the parent of orphans: %w", err)
		}
	}
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", os.DevNull, err)
	}
	e.null = descriptor(null)
	e.memoryEvents = openMemoryEvents(cfg.MemoryEvents)
	if cfg.ReapOrphans {
		e.running.Go(e.orphans.run)
	}
	engines.Add(1)
	return e, nil
}

// Configure replaces the settings for later commands. A bad setting is a *FieldError and changes nothing.
func (e *Engine) Configure(s Settings) error {
	checked, err := complete(s, e.inherit)
	if err != nil {
		return err
	}
	e.settings.Store(checked)
	return nil
}

// Start starts a command and returns it at once. The process is never ended to make room; once
// it ended it stays as long as Limits say. ctx bounds only the start.
func (e *Engine) Start(ctx context.Context, c Command) (*Process, error) {
	p, err := e.start(ctx, c, false, nil)
	if err != nil {
		return nil, err
	}
	awaitKept(p.written)
	return p, nil
}

// StartReading is Start with a reader that was there before the process wrote its first byte. A lossless one
// misses nothing, however late its first Next comes: until then the process waits for it as soon as it fills its log.
// So read or close it. There is no reader when there is an error.
func (e *Engine) StartReading(ctx context.Context, c Command, o ReaderOptions) (*Process, *Reader, error) {
	var reader *Reader
	p, err := e.start(ctx, c, false, func(p *Process) { reader = p.log.newWaitingReader(o) })
	if err != nil {
		return nil, nil, err
	}
	awaitKept(p.written)
	return p, reader, nil
}

// start plans, launches and registers. A process of the tool is born with its interaction lock held. What is to
// be done with the process before any of its output is read is done by born. Whoever tells of the process before its end
// waits for written first.
func (e *Engine) start(ctx context.Context, c Command, tool bool, born func(*Process)) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	settings := e.settings.Load()
	plan, err := settings.plan(c)
	if err != nil {
		return nil, err
	}
	if e.table.crowded(settings.Limits) {
		// What cannot start shall end nothing.
		if err := plan.check(); err != nil {
			return nil, err
		}
	}
	id, evicted, err := e.table.reserve(settings.Limits)
	if err != nil {
		return nil, err
	}
	defer e.running.Done()
	if evicted != nil {
		if err := e.makeRoom(ctx, evicted); err != nil {
			e.table.release(id)
			return nil, err
		}
	}
	if err := e.prepare(&plan, settings, c, tool); err != nil {
		e.table.release(id)
		return nil, err
	}
	return e.launchAs(id, plan, entry{tool: tool}, born)
}

// launchAs starts a finished plan under a reserved id.
func (e *Engine) launchAs(id int32, plan plan, as entry, born func(*Process)) (*Process, error) {
	plan.null = e.null
	launched, err := plan.launch(func(argv0 string, argv []string, attr *syscall.ProcAttr) (int, error) {
		return e.orphans.started(func() (int, error) { return plan.start(argv0, argv, attr) })
	})
	if err != nil {
		e.table.release(id)
		if plan.report != nil {
			plan.report.close()
		}
		return nil, err
	}
	p := e.newProcess(id, plan, launched)
	p.entry = as
	if as.tool {
		p.turn <- struct{}{}
	}
	if !as.hidden {
		p.log.spill = newSpill(e.spills, p.log)
	}
	if born != nil {
		born(p)
	}
	closed := e.table.insert(p)
	p.written = e.journalStart(p)
	if e.tell(e.onStart, p) {
		e.running.Go(e.events.deliver)
	}
	p.begin(plan)
	if closed {
		// What it did until now is done, so it ends on record like those that ran before.
		p.log.release()
		p.beginStop(0, ReasonEngineStopped, engineStopped)
	}
	return p, nil
}

// tell queues a callback with what the process is now. When deliver is true nobody else calls it: the caller has to see
// to events.deliver.
func (e *Engine) tell(callback func(Info), p *Process) (deliver bool) {
	if callback == nil || p.entry.hidden {
		return false
	}
	info := p.Info()
	return e.events.put(func() { callback(info) })
}

// Process finds a process that runs or is still kept; else the error is an *UnknownProcessError.
func (e *Engine) Process(id int32) (*Process, error) { return e.table.get(id) }

// visible are the processes that are not the engine's own.
func (e *Engine) visible() []*Process {
	return slices.DeleteFunc(e.table.all(), func(p *Process) bool { return p.entry.hidden })
}

// List tells the processes that run or are still kept, sorted by id, with their living descendants.
func (e *Engine) List() []Info {
	procs := e.visible()
	if len(procs) == 0 {
		return nil
	}
	members := claims(procs, liveProcesses())
	infos := make([]Info, len(procs))
	for i, p := range procs {
		infos[i] = p.Info()
		infos[i].Descendants = len(slices.DeleteFunc(members[p], func(entry procEntry) bool { return entry.pid == p.pid }))
	}
	return infos
}

// StopAll stops every process and what ended ones left behind, with a grace time as in Stop, and tells what it stopped.
// The engine keeps working. ctx ends the wait, not the stopping.
func (e *Engine) StopAll(ctx context.Context, grace time.Duration) ([]Info, error) {
	stopped := e.stopAll(e.visible(), grace, ReasonStopped, "")
	infos := make([]Info, 0, len(stopped))
	for _, s := range stopped {
		for _, end := range []<-chan struct{}{s.run.done, s.process.done} {
			select {
			case <-end:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		infos = append(infos, s.process.Info())
	}
	return infos, nil
}

// stopped is a process whose end began, and the ladder that ends it.
type stopped struct {
	process *Process
	run     *stopping
}

// stopAll begins to stop what of some processes runs or left something behind, with one look at what that is.
func (e *Engine) stopAll(procs []*Process, grace time.Duration, reason ExitReason, message string) []stopped {
	left := claims(procs, liveProcesses())
	var all []stopped
	for _, p := range procs {
		if _, ended := p.Exit(); ended && len(left[p]) == 0 {
			continue
		}
		run, _ := p.beginStop(grace, reason, message)
		all = append(all, stopped{process: p, run: run})
	}
	return all
}

// closeMargin is what Close takes beyond the grace time to see that what it killed is gone.
const closeMargin = 2 * time.Second

// Close ends everything: SIGTERM to all, the grace time, SIGKILL. Each process that still runs gets
// the record EngineStopped. Later calls return ErrClosed; outputs and records stay
// readable. When ctx ends first, everything left is killed at once.
func (e *Engine) Close(ctx context.Context) error {
	e.closeOnce.Do(func() { go e.shutDown() })
	select {
	case <-e.closed:
		return nil
	case <-ctx.Done():
	}
	for _, p := range e.table.all() {
		p.beginStop(0, ReasonEngineStopped, "")
	}
	select {
	case <-e.closed:
		return nil
	case <-time.After(closeMargin):
		return fmt.Errorf("closing the engine: %w", ctx.Err())
	}
}

// engineStopped is the message of what Close ends.
const engineStopped = "the engine stopped"

// shutDown ends in a bounded time: a process that no kill ends is abandoned.
func (e *Engine) shutDown() {
	defer close(e.closed)
	e.table.mu.Lock()
	e.table.closed = true
	e.table.mu.Unlock()
	e.history.close()
	procs := e.table.all()
	for _, p := range procs {
		p.log.release()
	}
	for _, s := range e.stopAll(e.table.all(), -1, ReasonEngineStopped, engineStopped) {
		<-s.run.done
	}
	if engines.Add(-1) == 0 {
		// While another engine is open, a stray might be its.
		killStrays(marks.issued)
	}
	for _, p := range procs {
		p.abandon()
	}
	close(e.orphans.stop)
	e.running.Wait()
	_ = unix.Close(int(e.null)) // It was only read.
	if e.memoryEvents >= 0 {
		_ = unix.Close(e.memoryEvents) // As above.
	}
}

// abandonAfter is how long a process that was killed may take to have its record.
const abandonAfter = 3 * time.Second

// abandon ends the goroutines of a process that does not end, and of streams that a stranger holds.
func (p *Process) abandon() {
	timer := time.NewTimer(abandonAfter)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
	_ = p.pidfd.Close() // It may be closed already.
	for _, pump := range p.pumps {
		_ = pump.file.Close() // As above.
	}
	if p.input != nil {
		p.input.close()
	}
}

// killStrays kills what has one of an engine's marks: what descends from any of its processes, also of those long forgotten.
func killStrays(issued func(mark uint64) bool) {
	deadline := time.Now().Add(closeMargin)
	for time.Now().Before(deadline) {
		var strays []member
		for _, entry := range liveProcesses() {
			if entry.pid == os.Getpid() || !issued(entry.mark) {
				continue
			}
			if m, ok := holdMember(entry); ok {
				strays = append(strays, m)
			}
		}
		if len(strays) == 0 {
			return
		}
		for _, m := range strays {
			_ = m.signal(unix.SIGKILL) // Whoever may not be signalled is not ours.
		}
		awaitAll(strays, func(m member) bool { return awaitPidfd(m.pidfd, deadline) })
	}
}
