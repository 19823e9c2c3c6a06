package unifiedexec

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	defaultExecYield  = 10 * time.Second
	defaultStdinYield = 250 * time.Millisecond
	interruptKey      = "\x03"
)

// ExecCommand starts a command and returns when it ended or the yield time is over. When ctx ends
// first, the process keeps running and the error is ctx's.
func (e *Engine) ExecCommand(ctx context.Context, r ExecCommandRequest) (Result, error) {
	call, err := e.newCall(r.YieldTimeMS, defaultExecYield, minYield, maxYield, r.MaxOutputTokens)
	if err != nil {
		return Result{}, err
	}
	wait := e.waits.begin()
	defer wait.end()
	p, err := e.start(ctx, r.Command, true, nil)
	if err != nil {
		return Result{}, err
	}
	defer p.leave()
	defer e.keepState(p, nil)
	return call.collect(ctx, wait, p, nil)
}

// WriteStdin feeds or polls a process that ExecCommand left running, or that Start began.
func (e *Engine) WriteStdin(ctx context.Context, r WriteStdinRequest) (Result, error) {
	shortest, longest := minYield, maxYield
	if r.Chars == "" && !r.CloseStdin {
		shortest, longest = minEmptyPoll, e.settings.Load().Limits.BackgroundPollMax
	}
	call, err := e.newCall(r.YieldTimeMS, defaultStdinYield, shortest, longest, r.MaxOutputTokens)
	if err != nil {
		return Result{}, err
	}
	call.feeds = r.Chars != "" || r.CloseStdin
	p, err := e.table.use(r.ProcessID)
	if err != nil {
		return Result{}, err
	}
	wait := e.waits.begin()
	defer wait.end()
	switch interrupted, err := p.enter(ctx, wait); {
	case err != nil:
		return Result{}, err
	case interrupted:
		return call.skip(wait, p), nil
	}
	defer p.leave()
	// The call that held the lock may have told the end.
	if _, err := e.table.use(r.ProcessID); err != nil {
		return Result{}, err
	}
	fed, err := p.feed(ctx, r.Chars, r.CloseStdin)
	if err != nil {
		return Result{}, err
	}
	return call.collect(ctx, wait, p, fed)
}

// maxUnread is how much input of calls may wait for a process that does not read.
const maxUnread = 1 << 20

// feed writes or interrupts, and returns what the process has not read yet, or nil. A call that cannot do all of it does
// nothing.
func (p *Process) feed(ctx context.Context, chars string, eof bool) (*piece, error) {
	if eof && !p.hasStdin() {
		return nil, p.forgiveEnd(ctx, ErrStdinClosed)
	}
	if chars == interruptKey && p.terminal == nil {
		if err := p.signalGroup(unix.SIGINT); err != nil {
			return nil, err
		}
		chars = ""
	}
	var fed *piece
	var err error
	if chars != "" {
		fed, err = p.feedChars(chars)
	}
	if eof && err == nil {
		var end *piece
		if end, err = p.endInput(); fed == nil {
			fed = end
		}
	}
	return fed, p.forgiveEnd(ctx, err)
}

func (p *Process) feedChars(chars string) (*piece, error) {
	if !p.takesInput() {
		return nil, ErrStdinClosed
	}
	if unread := p.input.queued(); unread > 0 && unread+len(chars) > maxUnread {
		return nil, &FieldError{Field: "chars", Problem: fmt.Sprintf("%d bytes of earlier input still wait to be read, and at most %d may", unread, maxUnread)}
	}
	piece := p.input.put([]byte(chars), nil)
	if piece.done == nil {
		return nil, piece.err
	}
	return piece, nil
}

// forgiveEnd drops the error of a write to a process that ended meanwhile: its end is the answer.
func (p *Process) forgiveEnd(ctx context.Context, err error) error {
	if errors.Is(err, ErrStdinClosed) && p.endsNow(ctx) {
		return nil
	}
	return err
}

// dyingMoment is how much earlier than a process's end its input may be seen closed: the kernel closes what it held
// before it tells that it ended.
const dyingMoment = 250 * time.Millisecond

// endsNow is whether the process ended, or is about to have its record.
func (p *Process) endsNow(ctx context.Context) bool {
	if p.input != nil && !p.input.fed {
		select {
		case <-p.done:
			return true
		case <-time.After(dyingMoment):
		case <-ctx.Done():
			return false
		}
	}
	p.mu.Lock()
	ended := p.endedLocked()
	p.mu.Unlock()
	if !ended {
		return false
	}
	select {
	case <-p.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// enter waits for the interaction lock, which an interrupted call does not get.
func (p *Process) enter(ctx context.Context, wait *wait) (interrupted bool, err error) {
	select {
	case p.turn <- struct{}{}:
	case <-wait.interrupt:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if wait.interrupted() {
		p.leave()
		return true, nil
	}
	return false, nil
}

func (p *Process) leave() { <-p.turn }

// call is one of the two calls with its bounds worked out.
type call struct {
	engine    *Engine
	yield     time.Duration
	maxTokens int64
	notices   []string
	// feeds is set for a call that does more than poll.
	feeds bool
}

func (e *Engine) newCall(yieldMS *int64, unset, shortest, longest time.Duration, maxTokens *int64) (call, error) {
	c := call{engine: e, yield: unset, maxTokens: defaultMaxOutputTokens}
	if yieldMS != nil {
		if *yieldMS < 0 {
			return c, &FieldError{Field: "yield_time_ms", Value: fmt.Sprint(*yieldMS), Problem: "is negative"}
		}
		c.yield = time.Duration(min(*yieldMS, int64(longest/time.Millisecond)+1)) * time.Millisecond
	}
	if clamped := min(max(c.yield, shortest), longest); clamped != c.yield {
		c.yield = clamped
		if yieldMS != nil {
			c.notices = append(c.notices, fmt.Sprintf("yield_time_ms %d was changed to %d; it must be from %d to %d here",
				*yieldMS, clamped.Milliseconds(), shortest.Milliseconds(), longest.Milliseconds()))
		}
	}
	if maxTokens != nil {
		if *maxTokens < 0 {
			return c, &FieldError{Field: "max_output_tokens", Value: fmt.Sprint(*maxTokens), Problem: "is negative"}
		}
		c.maxTokens = *maxTokens
	}
	if most := e.settings.Load().Limits.MaxOutputTokens; most > 0 && c.maxTokens > most {
		if maxTokens != nil {
			c.notices = append(c.notices, fmt.Sprintf("max_output_tokens %d was changed to %d, the most that is allowed", c.maxTokens, most))
		}
		c.maxTokens = most
	}
	return c, nil
}

// collect waits for the end or the yield time and takes what was written since the last result. While the process has
// not read what it was fed, that is waited for too: how it was refused is the caller's to know.
func (c call) collect(ctx context.Context, wait *wait, p *Process, fed *piece) (Result, error) {
	// What came before, as the wait for a call before this one, is not of the yield time.
	wait.restart()
	interrupted := false
	var err error
	if fed != nil {
		if interrupted, err = c.awaitFed(ctx, wait, p, fed); err != nil {
			return Result{}, err
		}
	}
	if !interrupted {
		if interrupted, err = wait.until(ctx, p.done, c.yield); err != nil {
			return Result{}, err
		}
	}
	if c.feeds && p.hasStdin() {
		if left := p.input.queued(); left > 0 {
			c.notices = append(c.notices, fmt.Sprintf("%d bytes of input wait for the command to read them", left))
		}
	}
	if interrupted {
		c.notices = append(c.notices, "the wait was interrupted; the command goes on")
	}
	return c.take(p, wait.began), nil
}

// skip is the result of a call that was interrupted before its turn came: it has neither fed nor taken anything.
func (c call) skip(wait *wait, p *Process) Result {
	return Result{
		ChunkID: newChunkID(), ProcessID: p.id, WallTime: time.Since(wait.began),
		Notices: append(c.notices, "the wait for an earlier call on this command was interrupted; nothing was read or written"),
	}
}

// awaitFed waits within the yield time until the process has what it was fed.
func (c call) awaitFed(ctx context.Context, wait *wait, p *Process, fed *piece) (interrupted bool, err error) {
	if interrupted, err = wait.until(ctx, fed.done, c.yield); err != nil {
		return false, err
	}
	select {
	case <-fed.done:
		if fed.end {
			return interrupted, nil // An end that nobody reads any more is none.
		}
		return interrupted, p.forgiveEnd(ctx, fed.err)
	default:
		return interrupted, nil
	}
}

func (c call) take(p *Process, began time.Time) Result {
	result := Result{ChunkID: newChunkID(), ProcessID: p.id, Notices: append(p.notices, c.notices...)}
	p.notices = nil
	rec, ended := p.Exit()
	if !ended {
		awaitKept(p.written)
	}
	size := p.log.size()
	to := size.end
	if ended {
		to = size.settledAt
		result.Exit, result.ProcessID = &rec, 0
	}
	out := p.log.span(p.delivered, to)
	if !ended {
		out.holdBack()
	}
	p.delivered = max(p.delivered, out.to)
	result.Output, result.OriginalTokenCount = render(out, c.maxTokens)
	result.WallTime = time.Since(began)
	if ended {
		if notice := c.engine.keepState(p, &rec); notice != "" {
			result.Notices = append(result.Notices, notice)
		}
		c.engine.told(p)
	}
	return result
}

// holdBack leaves the beginning of a character at the end to the next result.
func (s *span) holdBack() {
	last := &s.head
	if s.omitted > 0 {
		last = &s.tail
	}
	whole := wholeRunes(*last)
	s.to -= uint64(len(*last) - whole)
	*last = (*last)[:whole]
}

// told notes that a result told the end of a process.
func (e *Engine) told(p *Process) {
	e.table.delivered(p)
	if e.journal != nil {
		e.journal.Told(p.id)
	}
	e.settled(p, time.Now())
}

// newChunkID makes six hexadecimal digits.
func newChunkID() string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // It never fails.
	return hex.EncodeToString(b[:])
}
