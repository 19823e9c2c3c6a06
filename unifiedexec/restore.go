package unifiedexec

import "time"

// Journal keeps what must outlive the engine. It is told a start and an end before anybody else is: whoever learned
// of one finds it in the journal afterwards. What is returned is closed once the record is kept, or after a bounded
// time when it cannot be. The calls for one process come in order; none is made with a lock held.
type Journal interface {
	Started(Info) (kept <-chan struct{})
	Ended(Info) (kept <-chan struct{})
	// Told says that a result told the end: WriteStdin does not know the process any more.
	Told(id int32)
}

// journalStart tells the journal; nil when there is nothing to wait for.
func (e *Engine) journalStart(p *Process) <-chan struct{} {
	if e.journal == nil || p.entry.hidden {
		return nil
	}
	return e.journal.Started(p.kept())
}

func (e *Engine) journalEnd(p *Process) <-chan struct{} {
	if e.journal == nil || p.entry.hidden {
		return nil
	}
	return e.journal.Ended(p.kept())
}

// awaitKept waits for a journal's word.
func awaitKept(kept <-chan struct{}) {
	if kept != nil {
		<-kept
	}
}

// kept is what a journal has to know of a process: its end a moment before everybody else learns it.
func (p *Process) kept() Info {
	info := p.Info()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending != nil {
		rec := *p.ending
		info.State, info.Exit = StateExited, &rec
	}
	return info
}

// Kept tells what a journal has to hold to be whole: every process of the table, sorted by id. What the journal was
// told so far is in it.
func (e *Engine) Kept() []Info {
	var infos []Info
	for _, p := range e.table.all() {
		if p.entry.hidden {
			continue
		}
		info := p.kept()
		e.table.mu.Lock()
		info.Told = p.entry.delivered
		e.table.mu.Unlock()
		infos = append(infos, info)
	}
	return infos
}

// Restore puts processes of an earlier engine into the table, as their journal tells them: all of them ended. One
// whose end the journal does not tell gets a record that says ReasonEngineStopped, with the message lost, and no code
// or time that nobody knows: the code is -1 and the time is this one. Since a record says that a process ended, what
// is left of any of them is ended first, as Close would have done, and with it, where marksBelow is what Marks told there,
// what else the earlier engine left: what a process that the journal has forgotten left behind, or one that the journal was not
// yet told of. Restore is for before the first start, and returns those that got their record here.
func (e *Engine) Restore(past []Info, marksBelow uint64, lost string) []Info {
	procs := make([]*Process, 0, len(past))
	for _, info := range past {
		procs = append(procs, e.restored(info))
	}
	e.endLeft(procs)
	if marksBelow != 0 {
		killStrays(issuedBelow(marksBelow))
	}
	now := time.Now()
	var ended []Info
	for _, p := range procs {
		p.mu.Lock()
		p.reaped = true
		untold := p.exit == nil
		if untold {
			p.exit = &ExitRecord{Reason: ReasonEngineStopped, Code: -1, StartTime: p.started, EndTime: now, Message: lost}
		}
		p.entry.ended = p.exit.EndTime
		if now.Before(p.entry.ended) {
			p.entry.ended = now // The clock was set back since.
		}
		p.mu.Unlock()
		e.table.restore(p)
		if untold {
			ended = append(ended, p.Info())
		}
	}
	e.sweep(now, true)
	return ended
}

// outputLostNotice is what the first result of a restored process remarks.
const outputLostNotice = "the engine was started anew since this command was started: what the command wrote before that is lost"

// restored makes a process that nobody can feed and whose output is gone.
func (e *Engine) restored(info Info) *Process {
	p := &Process{
		engine: e, id: info.ID, display: info.Command, program: info.Program, dir: info.Workdir, tty: info.TTY,
		pid: info.PID, pidStart: info.PIDStart, mark: info.Mark, started: info.StartTime,
		log:  goneLog(info.OutputBytes),
		done: make(chan struct{}), turn: make(chan struct{}, 1),
		notices: []string{outputLostNotice},
		reaped:  true, exit: info.Exit, outputLost: info.Exit == nil || info.OutputLost,
		entry: entry{delivered: info.Told},
	}
	close(p.done)
	if p.mark == 0 && p.pidStart != 0 {
		// Without a mark it is known by its number, as long as it lives.
		now, ok := readProcEntry(p.pid)
		p.reaped = !ok || now.start != p.pidStart
	}
	return p
}

// goneLog is a log of which nothing is kept.
func goneLog(end uint64) *outputLog {
	l := newOutputLog(0, 0)
	l.sealed, l.settled = true, true
	l.end, l.tailFrom, l.settledAt = end, end, end
	return l
}

// endLeft ends what is left of processes whose engine was killed, in the time that the ladder takes.
func (e *Engine) endLeft(procs []*Process) {
	var runs []*stopping
	for p := range claims(procs, liveProcesses()) {
		run, _ := p.beginStop(-1, ReasonEngineStopped, "")
		runs = append(runs, run)
	}
	for _, run := range runs {
		<-run.done
	}
}

// restore inserts a process that ended before the table was made.
func (t *table) restore(p *Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLocked(p)
}
