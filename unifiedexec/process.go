package unifiedexec

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// timeoutCode is the code of a process that its timeout ended, as timeout(1) has it.
const timeoutCode = 124

// Process is one command, on a terminal or on pipes.
type Process struct {
	engine  *Engine
	id      int32
	display string
	program string
	dir     string
	tty     bool
	pid     int
	// pidStart is set only when there is a journal and no mark: reading it costs.
	pidStart uint64
	mark     uint64
	started  time.Time
	// oomBefore is the engine's count of out-of-memory kills at the start.
	oomBefore uint64
	// oomScoreKept says that the score could not be raised.
	oomScoreKept bool
	log          *outputLog
	pumps        []*pump
	input        *input
	terminal     *os.File
	// pidfd belongs to run, which closes it.
	pidfd *os.File
	done  chan struct{}
	// written is closed once the journal has the start; nil when there is nothing to wait for.
	written <-chan struct{}
	// turn is the interaction lock: held by the call that feeds or polls.
	turn chan struct{}
	// delivered is how much of the output results have told; guarded by turn, as are report and notices.
	delivered uint64
	// report is where its shell leaves its state for the next; nil when nobody wants it any more.
	report *report
	// notices are what the start has to remark, until a result tells them.
	notices []string

	mu sync.Mutex
	// reaped is set in the moment in which the kernel may give the process id to somebody else.
	reaped bool
	// cause is why the engine ended it; empty when it did not.
	cause        ExitReason
	causeMessage string
	// ending is what will be exit as soon as the journal has it.
	ending *ExitRecord
	exit   *ExitRecord
	// outputLost is set when it ran under an engine that told nobody how much it had written.
	outputLost bool
	stop       *stopping
	// lived is closed at the end of a process with a timeout; nil when there is none.
	lived chan struct{}

	// feeds are the inputs of clients that may come back, the most recently used last.
	feedsMu sync.Mutex
	feeds   []*Feed

	// entry is guarded by the table.
	entry entry
}

// ID is the process's number in the table, 1000 to 99999.
func (p *Process) ID() int32 { return p.id }

// Done is closed once the exit record is there: the process ended and what it wrote is in the log.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns the exit record; false while there is none.
func (p *Process) Exit() (ExitRecord, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit == nil {
		return ExitRecord{}, false
	}
	return *p.exit, true
}

// Info tells what the process is now; Descendants is left 0.
func (p *Process) Info() Info {
	size := p.log.size()
	info := Info{
		ID: p.id, State: StateRunning, Command: p.display, Program: p.program, Workdir: p.dir,
		TTY: p.tty, StartTime: p.started, PID: p.pid, PIDStart: p.pidStart, Mark: p.mark,
		OutputBytes: size.end, DroppedBytes: size.dropped, OutputOpen: size.open, OutputLost: p.outputLost,
		SpilledBytes: size.spilled, SpillProblem: size.problem, OOMScoreKept: p.oomScoreKept,
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	info.StdinOpen = p.takesInputLocked()
	if p.exit != nil {
		rec := *p.exit
		info.State, info.Exit = StateExited, &rec
	}
	return info
}

// NewReader makes a cursor into the output. Close it.
func (p *Process) NewReader(o ReaderOptions) *Reader { return p.log.newReader(o) }

// takesInput is whether what is written may still be read.
func (p *Process) takesInput() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takesInputLocked()
}

func (p *Process) takesInputLocked() bool {
	return p.input != nil && !p.input.fed && p.exit == nil && p.input.open()
}

// Write feeds the terminal or the open stdin. It blocks while the process does not read; ctx ends that, and what was
// not written by then never is.
func (p *Process) Write(ctx context.Context, data []byte) (int, error) {
	if !p.takesInput() {
		return 0, ErrStdinClosed
	}
	return p.input.write(ctx, data)
}

// The characters that mean something to a terminal in its default mode.
const (
	interruptByte = 3
	endOfFile     = 4
)

// CloseStdin ends the input after what was written before: it closes the pipe, or types the terminal's end-of-file
// character, after which the terminal still takes input. Closing twice is no error.
func (p *Process) CloseStdin() error {
	_, err := p.endInput()
	return err
}

// hasStdin is whether a caller ever could feed it.
func (p *Process) hasStdin() bool { return p.input != nil && !p.input.fed }

// endInput is CloseStdin that returns the end when it has to wait for its turn.
func (p *Process) endInput() (queued *piece, err error) {
	if !p.hasStdin() || p.terminal != nil && !p.takesInput() {
		return nil, ErrStdinClosed
	}
	end := p.input.putEnd()
	if end.done == nil {
		return nil, end.err
	}
	return end, nil
}

// Resize changes the terminal's size.
func (p *Process) Resize(s Size) error {
	if p.terminal == nil {
		return ErrNotTerminal
	}
	if s.Rows == 0 || s.Columns == 0 {
		return &FieldError{Field: "size", Value: fmt.Sprintf("%dx%d", s.Rows, s.Columns), Problem: "needs both rows and columns"}
	}
	return p.terminalIoctl(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Columns})
	})
}

// foreground is the process group that the terminal's keys reach.
func (p *Process) foreground() (group int, err error) {
	err = p.terminalIoctl(func(fd int) error {
		var err error
		group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	return group, err
}

// terminalIoctl runs f on the terminal's descriptor; a terminal that is gone is ErrStdinClosed.
func (p *Process) terminalIoctl(f func(fd int) error) error {
	select {
	case <-p.pumps[0].ended:
		return ErrStdinClosed // Its descriptor may be open for a moment yet.
	default:
	}
	conn, err := p.terminal.SyscallConn()
	if err != nil {
		return ErrStdinClosed
	}
	var result error
	if err := conn.Control(func(fd uintptr) { result = f(int(fd)) }); err != nil {
		return ErrStdinClosed
	}
	return os.NewSyscallError("ioctl", result)
}

// newProcess dresses what was launched; it is watched only after begin.
func (e *Engine) newProcess(id int32, plan plan, l launched) *Process {
	p := &Process{
		engine: e, id: id, display: plan.display, program: plan.program, dir: plan.dir,
		pid: l.pid, mark: l.mark, started: time.Now(), pidfd: l.pidfd, terminal: l.terminal,
		log:  newOutputLog(plan.retain, len(l.outputs)),
		done: make(chan struct{}), turn: make(chan struct{}, 1),
		oomBefore: e.oomKills(), report: plan.report, notices: plan.notices, tty: plan.tty,
	}
	if e.journal != nil && p.mark == 0 {
		now, _ := readProcEntry(p.pid)
		p.pidStart = now.start
	}
	p.oomScoreKept = e.raiseOOMScore(l.pid)
	for _, o := range l.outputs {
		p.pumps = append(p.pumps, newPump(o.file, o.stream, p.log))
	}
	switch {
	case l.terminal != nil:
		p.input = newInput(l.terminal, true, false, e.running.Go)
		p.input.press = p.terminalInterrupt
	case l.input != nil:
		p.input = newInput(l.input, false, plan.stdin == StdinData, e.running.Go)
	}
	return p
}

// begin starts the goroutines of a process. They end with it, with its output, or with the engine.
func (p *Process) begin(plan plan) {
	for _, pump := range p.pumps {
		p.engine.running.Go(pump.run)
	}
	if plan.stdin == StdinData {
		// Whoever stops reading early does not want the rest.
		p.input.put(plan.data, nil)
		p.input.putEnd()
	}
	if plan.timeout > 0 {
		p.lived = make(chan struct{})
		life := p.engine.waits.life()
		p.engine.running.Go(func() { p.expire(life, plan.timeout) })
	}
	p.engine.running.Go(p.run)
}

// expire ends the process when its life is over, in which pauses do not count.
func (p *Process) expire(life *wait, timeout time.Duration) {
	_, _ = life.until(context.Background(), p.lived, timeout) // Nothing else ends it.
	select {
	case <-p.lived:
	default:
		p.beginStop(-1, ReasonTimedOut, timeoutMessage(timeout))
	}
}

// run waits for the end and writes the record.
func (p *Process) run() {
	status, usage, err := p.await()
	ended := time.Now()
	if p.lived != nil {
		close(p.lived)
	}
	for _, pump := range p.pumps {
		pump.leaderEnded()
	}
	p.drain()
	rec := p.record(status, err)
	p.blameMemory(&rec)
	rec.StartTime, rec.EndTime = p.started, ended
	rec.UserTime, rec.SystemTime = time.Duration(usage.Utime.Nano()), time.Duration(usage.Stime.Nano())
	rec.MaxRSS = usage.Maxrss << 10
	if p.input != nil && !p.input.fed {
		p.input.close()
	}
	p.mu.Lock()
	p.ending = &rec
	p.mu.Unlock()
	awaitKept(p.engine.journalEnd(p))
	p.mu.Lock()
	p.exit = &rec
	p.mu.Unlock()
	p.log.settle()
	now := time.Now()
	over := p.engine.table.ended(p, now)
	deliver := p.engine.tell(p.engine.onExit, p)
	if over {
		p.engine.settled(p, now)
	}
	close(p.done)
	// Nothing waits for this goroutine any more, so who waited goes first.
	runtime.Gosched()
	p.engine.orphans.kick()
	p.pidfd.Close()
	if deliver {
		p.engine.events.deliver()
	}
}

// await waits in the poller and reaps.
func (p *Process) await() (status childStatus, usage unix.Rusage, err error) {
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return status, usage, err
	}
	var failed error
	for {
		var climbing *stopping
		err = conn.Read(func(fd uintptr) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			if climbing = p.needsNumberLocked(); climbing != nil && pidfdEnded(int(fd)) {
				return true
			}
			climbing = nil
			status, failed = waitid(unix.P_PIDFD, int(fd), unix.WEXITED|unix.WNOHANG, &usage)
			p.reaped = failed != nil || status.pid != 0
			if p.reaped {
				p.engine.orphans.reaped(p.pid)
			}
			return p.reaped
		})
		if climbing == nil {
			break
		}
		<-climbing.done
	}
	if err == nil {
		err = failed
	}
	return status, usage, err
}

// needsNumberLocked returns the ladder that must end before the process is reaped. Without a mark, a child that it
// started in its last moment is known only by its session, and a session's number is sure only while its leader has it.
func (p *Process) needsNumberLocked() *stopping {
	if p.mark != 0 || p.stop == nil {
		return nil
	}
	select {
	case <-p.stop.done:
		return nil
	default:
		return p.stop
	}
}

// endedLocked is whether the kernel already knows the end; what is done to the process now is not its cause.
func (p *Process) endedLocked() bool {
	if p.reaped {
		return true
	}
	ended := false
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return true
	}
	err = conn.Control(func(fd uintptr) { ended = pidfdEnded(int(fd)) })
	return ended || err != nil
}

// drain brings everything that the process wrote into the log, and then waits a moment for the end of the streams, which
// a surviving descendant may hold open for as long as it likes. On a terminal such a one holds what the kernel hung up
// with the process: that end does not come either.
func (p *Process) drain() {
	open := false
	for _, pump := range p.pumps {
		open = !pump.finish() || open
	}
	if !open {
		return
	}
	timer := time.NewTimer(p.engine.drainGrace)
	defer timer.Stop()
	for _, pump := range p.pumps {
		select {
		case <-pump.ended:
		case <-timer.C:
			return
		}
	}
}

// record says what the end was. What the engine did counts as the reason only if it came before the end.
func (p *Process) record(status childStatus, err error) ExitRecord {
	p.mu.Lock()
	defer p.mu.Unlock()
	rec := ExitRecord{Reason: ReasonExited, Code: int(status.status), Message: p.causeMessage}
	switch {
	case err != nil:
		rec.Code = -1
		rec.Message = "its exit status is not known: " + err.Error()
	case status.code != cldExited:
		rec.Reason = ReasonSignaled
		rec.Code = 128 + int(status.status)
		rec.Signal = signalName(syscall.Signal(status.status))
		if status.code == cldDumped && rec.Message == "" {
			rec.Message = "core dumped"
		}
	}
	if p.cause != "" {
		rec.Reason = p.cause
	}
	if rec.Reason == ReasonTimedOut {
		rec.Code = timeoutCode
	}
	return rec
}
