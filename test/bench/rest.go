package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// The bars of group rest.
const (
	residentBar   = 16.0 // MiB
	idleBar       = 40.0 // KiB a process
	idleCPUBar    = 0.0  // percent, to one digit
	soakGrowthBar = 1.1  // of what was resident after the first tenth
	idleProcesses = 64
	// reserveSwing is by how many idle threads agentd's reserve shrinks before it is filled again.
	reserveSwing   = 12
	settleTime     = 3 * time.Second
	warmUpCommands = 24
)

func (b *bench) measureRest(ctx context.Context) error {
	if err := b.measureIdle(ctx); err != nil {
		return err
	}
	return b.withAgents(ctx, func(bare, confined *agent) error { return b.measureSoak(ctx, bare, confined) })
}

// idler is an agent whose processes do nothing.
type idler struct {
	*agent
	tty                bool
	fresh, empty, full memory
	freshThreads       int
	before, after      processorUse
	holds              holdings
}

// measureIdle watches four agents at once: both kinds, with processes on pipes and on terminals.
func (b *bench) measureIdle(ctx context.Context) (err error) {
	var idlers []*idler
	defer func() {
		for _, i := range idlers {
			err = errors.Join(err, i.stop())
		}
	}()
	for _, kind := range []string{unsandboxed, sandboxed} {
		for _, tty := range []bool{false, true} {
			a, err := b.startAgent(ctx, kind)
			if err != nil {
				return err
			}
			idlers = append(idlers, &idler{agent: a, tty: tty})
		}
	}
	wait(ctx, settleTime)
	for _, step := range []struct {
		do    func(*idler) error
		pause time.Duration
	}{
		{(*idler).noteFresh, 0},
		// The pages of the program that starting needs are no cost of a process.
		{func(i *idler) error { return i.warmUp(ctx) }, settleTime},
		{func(i *idler) (err error) { i.empty, err = memoryOf(i.pid()); return err }, 0},
		{func(i *idler) error { return i.fill(ctx) }, settleTime},
		{(*idler).noteFull, b.rest},
		{func(i *idler) (err error) { i.after, err = processorUseOf(i.pid()); return err }, 0},
	} {
		for _, i := range idlers {
			if err := step.do(i); err != nil {
				return fmt.Errorf("%s: %w", i.title(), err)
			}
		}
		wait(ctx, step.pause)
	}
	var fresh, idle []row
	for _, i := range idlers {
		if !i.tty {
			fresh = append(fresh, i.freshRows()...)
		}
		idle = append(idle, i.idleRows(b.rest)...)
	}
	b.section("rest", "a fresh agent", fresh...)
	b.section("rest", fmt.Sprintf("%d idle processes", idleProcesses), idle...)
	return nil
}

func (i *idler) title() string {
	return i.name + ", " + job{tty: i.tty}.stdio()
}

func (i *idler) noteFresh() (err error) {
	holds, holdsErr := holdingsOf(i.pid())
	i.freshThreads = holds.threads
	i.fresh, err = memoryOf(i.pid())
	return errors.Join(holdsErr, err)
}

func (i *idler) warmUp(ctx context.Context) error {
	j := trueJob
	j.tty = i.tty
	for range warmUpCommands {
		if err := j.execBy(ctx, i.Client); err != nil {
			return err
		}
	}
	return nil
}

func (i *idler) fill(ctx context.Context) error {
	sleep := job{name: "sleep", bare: []string{"sleep", "100000"}, tty: i.tty}
	for range idleProcesses {
		if _, err := i.Start(ctx, sleep.wire()); err != nil {
			return err
		}
	}
	return nil
}

func (i *idler) noteFull() error {
	var errs [3]error
	i.full, errs[0] = memoryOf(i.pid())
	i.holds, errs[1] = holdingsOf(i.pid())
	i.before, errs[2] = processorUseOf(i.pid())
	return errors.Join(errs[:]...)
}

func (i *idler) freshRows() []row {
	return []row{
		figure(i.name+": resident", "MiB", mebibytes(i.fresh.resident)).medianAtMost(residentBar),
		figure(i.name+": private", "MiB", mebibytes(i.fresh.private)),
		figure(i.name+": threads", "threads", float64(i.freshThreads)),
	}
}

func (i *idler) idleRows(watched time.Duration) []row {
	each := float64(i.full.private-i.empty.private) / 1024 / idleProcesses
	ticks, scheduled := i.after.ticks-i.before.ticks, i.after.scheduled-i.before.scheduled
	// The larger of the two clocks counts, in tenths of a percent.
	percent := float64(int(1000*max(ticks, scheduled).Seconds()/watched.Seconds()+0.5)) / 10
	processor := figure(i.title()+": processor", "%", percent).medianAtMost(idleCPUBar).
		noting("in %s: %s by the scheduler's clock, %s in ticks", watched, scheduled.Round(time.Microsecond), ticks)
	return []row{
		figure(i.title()+": private memory each", "KiB", each).medianAtMost(idleBar),
		processor,
		figure(i.title()+": threads", "threads", float64(i.holds.threads)),
		figure(i.title()+": descriptors", "descriptors", float64(i.holds.descriptors)),
	}
}

// soaked is what an agent held at one point of the soak.
type soaked struct {
	memory
	holdings
}

func lookAt(a *agent) (s soaked, err error) {
	holds, holdsErr := holdingsOf(a.pid())
	s.holdings = holds
	s.memory, err = memoryOf(a.pid())
	return s, errors.Join(holdsErr, err)
}

// measureSoak runs many commands and looks for what they leave behind.
func (b *bench) measureSoak(ctx context.Context, agents ...*agent) error {
	var rows [][]row
	for _, a := range agents {
		of, err := b.soakAgent(ctx, a)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		rows = append(rows, of)
	}
	wait(ctx, b.rest)
	for i, a := range agents {
		m, err := memoryOf(a.pid())
		if err != nil {
			return err
		}
		rested := fmt.Sprintf("%s after the soak: ", b.rest)
		b.section("rest", fmt.Sprintf("%d commands, %d at a time, %s", b.soak, inFlight, a.name), append(rows[i],
			figure(rested+"resident", "MiB", mebibytes(m.resident)).medianAtMost(residentBar),
			figure(rested+"private", "MiB", mebibytes(m.private)))...)
	}
	return nil
}

func (b *bench) soakAgent(ctx context.Context, a *agent) ([]row, error) {
	first, tenth := 2*warmUpCommands, b.soak/10
	var looks [3]soaked
	var wrong soakErrors
	before, err := processorUseOf(a.pid())
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for at, upTo := range []int{first, max(tenth, first), b.soak} {
		from := []int{0, first, max(tenth, first)}[at]
		if err := inParallel(upTo-from, func(i int) error { return wrong.note(ctx, soakCommand(ctx, a, from+i)) }); err != nil {
			return nil, err
		}
		wait(ctx, settleTime)
		if looks[at], err = lookAt(a); err != nil {
			return nil, err
		}
	}
	took := time.Since(began) - time.Duration(len(looks))*settleTime
	after, err := processorUseOf(a.pid())
	if err != nil {
		return nil, err
	}
	start, early, end := looks[0], looks[1], looks[2]
	ended := figure("commands that ended otherwise than they must", "commands", float64(len(wrong.all))).medianAtMost(0)
	if len(wrong.all) > 0 {
		ended = ended.noting("the first: %v", wrong.all[0])
	}
	growth := figure("resident at the end over that after a tenth", "x", float64(end.resident)/float64(early.resident)).medianAtMost(soakGrowthBar)
	return []row{
		ended,
		figure("zombies left", "processes", float64(end.zombies)).medianAtMost(0),
		figure("children left", "processes", float64(end.children)).medianAtMost(0),
		figure("descriptors more than at the start", "descriptors", float64(end.descriptors-start.descriptors)).medianAtMost(0).
			noting("%d at the start", start.descriptors),
		figure("threads more than at the start", "threads", float64(end.threads-start.threads)).medianAtMost(reserveSwing).
			noting("%d at the start, which is after the first %d commands: Go keeps the threads that it once needed. "+
				"The reserve for starts breathes by %d", start.threads, first, reserveSwing),
		growth.noting("%.1f MiB after %d commands, %.1f MiB after all", mebibytes(early.resident), tenth, mebibytes(end.resident)),
		figure("rate", "1/s", float64(b.soak)/took.Seconds()),
		figure("agent's processor time for each", "ms", milliseconds(after.ticks-before.ticks)/float64(b.soak)),
	}, nil
}

// soakErrors keeps what went wrong without ending the soak.
type soakErrors struct {
	mu  sync.Mutex
	all []error
}

func (s *soakErrors) note(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, err)
	return nil
}
