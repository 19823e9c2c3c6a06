package unifiedexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// The life of a command that is run to its end: an agent's, and a person's own.
const (
	defaultRunTimeout       = 10 * time.Second
	defaultUserShellTimeout = time.Hour
)

// ExecOneShot runs a command of the tool to its end: it cannot be fed or polled, and its timeout (0 means 10 seconds), in
// which pauses do not count, is its life. What it wrote until then is in the result. When ctx ends first the command is
// stopped too, and the error is ctx's; an interrupt stops it as well, for nobody could come back to it.
func (e *Engine) ExecOneShot(ctx context.Context, c Command, maxOutputTokens *int64) (Result, error) {
	if c.TTY {
		return Result{}, &FieldError{Field: "tty", Problem: "a command that runs to its end has no terminal"}
	}
	if c.Stdin == StdinOpen {
		return Result{}, &FieldError{Field: "stdin", Problem: "nobody could write to a command that runs to its end"}
	}
	if c.Timeout < 0 {
		return Result{}, &FieldError{Field: "timeout", Value: c.Timeout.String(), Problem: "is negative"}
	}
	if c.Timeout == 0 {
		c.Timeout = defaultRunTimeout
	}
	call, err := e.newCall(nil, 0, 0, 0, maxOutputTokens)
	if err != nil {
		return Result{}, err
	}
	wait := e.waits.begin()
	defer wait.end()
	p, err := e.start(ctx, c, true, nil)
	if err != nil {
		return Result{}, err
	}
	defer p.leave()
	defer e.keepState(p, nil)
	began := time.Now()
	if err := p.outlast(ctx, wait); err != nil {
		e.told(p)
		return Result{}, err
	}
	return call.take(p, began), nil
}

// The reasons for which a command that runs to its end is stopped early.
const (
	callCancelled   = "the call was cancelled"
	callInterrupted = "the wait for its end was interrupted"
)

// outlast waits for the end of a command that runs to its end, and brings it about when nobody wants it any more.
func (p *Process) outlast(ctx context.Context, wait *wait) (err error) {
	select {
	case <-p.done:
	case <-wait.interrupt:
		p.beginStop(-1, ReasonStopped, callInterrupted)
	case <-ctx.Done():
		p.beginStop(-1, ReasonStopped, callCancelled)
		err = ctx.Err()
	}
	p.awaitEnd()
	return err
}

func timeoutMessage(timeout time.Duration) string {
	return fmt.Sprintf("its timeout of %s was over", timeout)
}

// awaitEnd waits for the end, and for the descendants' when they are being stopped.
func (p *Process) awaitEnd() {
	<-p.done
	p.mu.Lock()
	stop := p.stop
	p.mu.Unlock()
	if stop != nil {
		<-stop.done
	}
}

// RunRequest is a command whose output is wanted in two pieces.
type RunRequest struct {
	// Command.Timeout 0 means 10 seconds here, and one hour with UserShell, unless NoTimeout says that there is none.
	Command   Command
	NoTimeout bool
	// UserShell says that the command is a person's own and not an agent's.
	UserShell bool
	// StreamBytes is how much of each stream is kept, from its beginning; 0 means 1 MiB, negative means everything.
	StreamBytes int
}

// RunResult is what a command left when it had ended.
type RunResult struct {
	// Code is the command's code, 128 and the signal's number, or 124 when its timeout ended it.
	Code           int
	TimedOut       bool
	Exit           ExitRecord
	Stdout, Stderr []byte
	// StdoutBytes and StderrBytes count what was written; more than was kept says that something was cut.
	StdoutBytes, StderrBytes uint64
	WallTime                 time.Duration
}

// Run runs a command to its end and keeps its streams apart. It never waits for what a surviving descendant
// still holds open. When ctx ends first the command is stopped, and the error is ctx's; an interrupt stops it too, and
// the result says so.
func (e *Engine) Run(ctx context.Context, r RunRequest) (RunResult, error) {
	if r.Command.TTY {
		return RunResult{}, &FieldError{Field: "tty", Problem: "a terminal has only one stream"}
	}
	if r.Command.Stdin == StdinOpen {
		return RunResult{}, &FieldError{Field: "stdin", Problem: "nobody could write to a command that runs to its end"}
	}
	r.Command.Timeout = r.timeout()
	wait := e.waits.begin()
	defer wait.end()
	began := time.Now()
	p, reader, err := e.StartReading(ctx, r.Command, ReaderOptions{Lossless: true})
	if err != nil {
		return RunResult{}, err
	}
	defer reader.Close()
	ended := make(chan error, 1)
	go func() { ended <- p.outlast(ctx, wait) }()
	var out RunResult
	err = readStreams(ctx, reader, r.keep(), &out)
	if err != nil {
		p.beginStop(-1, ReasonStopped, callCancelled)
		reader.Close() // Nobody reads on, so nobody shall be waited for.
	}
	if lost := <-ended; err == nil {
		err = lost
	}
	if err != nil {
		return RunResult{}, err
	}
	out.WallTime = time.Since(began)
	out.Exit, _ = p.Exit()
	out.Code, out.TimedOut = out.Exit.Code, out.Exit.Reason == ReasonTimedOut
	return out, nil
}

func (r RunRequest) timeout() time.Duration {
	switch {
	case r.Command.Timeout != 0 || r.NoTimeout:
		return r.Command.Timeout
	case r.UserShell:
		return defaultUserShellTimeout
	}
	return defaultRunTimeout
}

func (r RunRequest) keep() int {
	if r.StreamBytes == 0 {
		return 1 << 20
	}
	return r.StreamBytes
}

// readStreams follows both streams to the exit. A lossless reader that reads at once is never let go.
func readStreams(ctx context.Context, reader *Reader, keep int, out *RunResult) error {
	for {
		c, err := reader.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if c.GapTo != 0 {
			return fmt.Errorf("reading the output: %d bytes were dropped at %d", c.GapTo-c.Offset, c.Offset)
		}
		kept, count := &out.Stdout, &out.StdoutBytes
		if c.Stream == StreamStderr {
			kept, count = &out.Stderr, &out.StderrBytes
		}
		*count += uint64(len(c.Data))
		room := len(c.Data)
		if keep >= 0 {
			room = min(room, keep-len(*kept))
		}
		*kept = append(*kept, c.Data[:room]...)
	}
}

// Aggregate joins the streams into at most limit bytes: stdout and then stderr when they fit. Otherwise
// stdout has a third and stderr the rest, and what one does not need is the other's.
func (out RunResult) Aggregate(limit int) []byte {
	stdout, stderr := out.Stdout, out.Stderr
	if limit >= 0 && len(stdout)+len(stderr) > limit {
		first := min(len(stdout), limit/3)
		second := min(len(stderr), limit-first)
		first = min(len(stdout), limit-second)
		stdout, stderr = stdout[:first], stderr[:second]
	}
	return append(append(make([]byte, 0, len(stdout)+len(stderr)), stdout...), stderr...)
}
