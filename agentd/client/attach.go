package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"execsession.dev/agentd/wire"
)

const (
	// attemptWait bounds one attempt to reach the agent again.
	attemptWait = 15 * time.Second
	firstPause  = 100 * time.Millisecond
	longPause   = 5 * time.Second
)

// Streams are the two ends of a command's input and output and what a caller wants to be
// told. Every field may be left out. The functions are called one at a time, from within
// Run or Attach.
type Streams struct {
	// Stdin is copied to the command until its end, which the command then sees; the
	// command must have been started with its input open. A Read that blocks outlives
	// Run until it returns.
	Stdin io.Reader
	// Stdout gets what the command writes to its output or its terminal.
	Stdout io.Writer
	Stderr io.Writer
	// Resize carries new sizes of the terminal, Signals names such as "INT". Both are read
	// only while the command is connected.
	Resize  <-chan *wire.WindowSize
	Signals <-chan string

	// OnRequest tells that the command is asked for, first of all: from now on it may run. OnStart
	// tells what was started or joined.
	OnRequest func()
	OnStart   func(*wire.Process)
	// OnGap tells which bytes of the output, by offset, can no longer be had.
	OnGap func(from, to uint64)
	// OnLost tells that the agent was killed while the command ran: what it wrote and was not passed on is lost, and
	// nobody knows how much that is.
	OnLost func()
	// OnDenials tells, last of all, what the sandbox refused the command, unless that is nothing.
	OnDenials func([]*wire.Denial)
	// OnBreak tells that the connection broke and will be made again, OnResume that it was.
	OnBreak  func(error)
	OnResume func()
}

// Run starts the command, copies its streams and returns its exit record. It returns
// *NoExitRecordError when the end could not be learned, an *Error or a dialing
// *ConnectionError when the command was not started, and the cause of ctx when ctx ends;
// the command then keeps running.
func (c *Client) Run(ctx context.Context, command *wire.Command, streams Streams) (*wire.ExitRecord, error) {
	a := &attachment{client: c, streams: streams, channel: c.bulk, starting: true}
	if command.GetTty() {
		a.channel = c.terminals
	}
	return a.run(ctx, &wire.AttachRequest{Message: &wire.AttachRequest_Start{Start: &wire.StartRequest{Command: command}}})
}

// Attach joins a command and copies its streams from open's offset. With open's
// no_follow it returns a nil record when the command still runs.
func (c *Client) Attach(ctx context.Context, open *wire.AttachOpen, streams Streams) (*wire.ExitRecord, error) {
	a := &attachment{client: c, streams: streams, channel: c.bulk, offset: open.GetFromOffset(), opening: open}
	return a.run(ctx, &wire.AttachRequest{Message: &wire.AttachRequest_Open{Open: open}})
}

// attachment is one Run or Attach over all its connections.
type attachment struct {
	client  *Client
	streams Streams
	channel *channel
	input   *input
	// opening is how the command was joined, nil when it was started.
	opening *wire.AttachOpen
	// starting is true when the opening request starts a command, requested once it was
	// given to a connection: from then on it must not be sent again.
	starting, requested bool
	// process is what the agent said it started or joined, nil before its first answer.
	process *wire.Process
	// answered tells whether the newest connection got as far as that answer.
	answered bool
	// refused counts answers of the agent that ended a stream in its midst, as when a signal
	// came after the command's end: the record may still be had by joining anew.
	refused int
	offset  uint64
}

func (a *attachment) run(ctx context.Context, opening *wire.AttachRequest) (*wire.ExitRecord, error) {
	a.input = newInput(a.streams)
	defer a.input.close()
	record, err := a.converse(ctx, opening)
	var out outage
	for a.resumable(ctx, err) {
		if a.answered {
			out = newOutage(a.client.reconnectFor)
			if a.streams.OnBreak != nil {
				a.streams.OnBreak(err)
			}
		}
		if lost := a.input.salvage(a.process.GetTty(), time.Now()); lost != nil {
			err = lost
			break
		}
		if !out.wait(ctx) {
			break
		}
		record, err = a.resume(ctx)
	}
	return record, a.conclude(ctx, err)
}

// resumable tells whether dialing again may bring the rest.
func (a *attachment) resumable(ctx context.Context, err error) bool {
	var broken *ConnectionError
	var permanent *permanentError
	var answered *Error
	if a.process == nil || ctx.Err() != nil || errors.As(err, &permanent) {
		return false
	}
	if errors.As(err, &answered) && a.answered {
		a.refused++
		return a.refused == 1
	}
	return errors.As(err, &broken)
}

func (a *attachment) resume(ctx context.Context) (*wire.ExitRecord, error) {
	return a.converse(ctx, &wire.AttachRequest{Message: &wire.AttachRequest_Open{Open: &wire.AttachOpen{
		ProcessId:   a.process.GetId(),
		FromOffset:  a.offset,
		NoFollow:    a.opening.GetNoFollow(),
		UntilClosed: a.opening.GetUntilClosed(),
		Text:        a.opening.GetText(),
		MaxOutputs:  a.opening.GetMaxOutputs(),
	}}})
}

// conclude says what err means for whoever asked for the command.
func (a *attachment) conclude(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	var own *StreamError
	var answered *Error
	switch {
	case errors.As(err, &own):
		return err
	case a.process != nil && ctx.Err() == nil:
		return &NoExitRecordError{ProcessID: a.process.GetId(), Err: err}
	case a.process == nil && a.starting && a.requested && !errors.As(err, &answered):
		return &NoExitRecordError{Err: err}
	}
	return err
}

// converse is one connection's part of the attachment.
func (a *attachment) converse(ctx context.Context, opening *wire.AttachRequest) (*wire.ExitRecord, error) {
	a.answered = false
	l, err := a.reach(ctx)
	if err != nil {
		return nil, err
	}
	// Cancelling ends the stream and with it the feeding goroutine; the command lives on.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := l.agent.Attach(ctx)
	if err != nil {
		return nil, &ConnectionError{Dialing: true, Err: l.explain(ctx, err)}
	}
	if !a.requested && a.streams.OnRequest != nil {
		a.streams.OnRequest()
	}
	a.requested = true
	opening.InputId = a.input.id
	// What Send returns only says that the stream is over; Recv says why.
	_ = stream.Send(opening)
	if err := a.join(stream); err != nil {
		return nil, l.explain(ctx, err)
	}
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		if err := a.input.feed(ctx, stream); err != nil {
			cancel(err)
		}
	}()
	record, err := a.receive(stream)
	err = l.explain(ctx, err)
	cancel(nil)
	<-fed
	return record, err
}

// reach gives a live link; an attempt to reach the agent again is bounded.
func (a *attachment) reach(ctx context.Context) (*link, error) {
	if a.process != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, attemptWait)
		defer cancel()
	}
	return a.channel.link(ctx)
}

// attachStream is the client's end of an Attach call.
type attachStream = grpc.BidiStreamingClient[wire.AttachRequest, wire.AttachResponse]

// join takes the first answer. A process with the same id that started at another time
// is another process: ids are only unique within one life of the agent.
func (a *attachment) join(stream attachStream) error {
	answer, err := stream.Recv()
	if err != nil {
		return err
	}
	joined := answer.GetProcess()
	if joined == nil {
		return &Error{Code: codes.Internal, Message: fmt.Sprintf("the agent's first answer is not a process but %T", answer.GetMessage())}
	}
	if a.process == nil {
		a.process, a.answered = joined, true
		if err := a.input.joined(answer); err != nil {
			return err
		}
		if a.streams.OnStart != nil {
			a.streams.OnStart(joined)
		}
		a.tellLost(joined)
		return nil
	}
	if !joined.GetStartTime().AsTime().Equal(a.process.GetStartTime().AsTime()) {
		return &Error{Code: codes.NotFound, Reason: wire.ReasonUnknownProcess, Message: "the agent was started anew since, and the number now names another process"}
	}
	if err := a.input.joined(answer); err != nil {
		return err
	}
	a.answered = true
	if a.streams.OnResume != nil {
		a.streams.OnResume()
	}
	a.tellLost(joined)
	return nil
}

func (a *attachment) tellLost(joined *wire.Process) {
	if joined.GetOutputLost() && a.streams.OnLost != nil {
		a.streams.OnLost()
	}
}

func (a *attachment) receive(stream attachStream) (*wire.ExitRecord, error) {
	var answer wire.Answer
	for {
		err := stream.RecvMsg(&answer)
		if errors.Is(err, io.EOF) && a.opening.GetNoFollow() {
			return nil, nil
		}
		if errors.Is(err, io.EOF) {
			return nil, &Error{Code: codes.Internal, Message: "the agent ended the stream without a record"}
		}
		if err != nil {
			return nil, err
		}
		a.input.took(&answer.AttachResponse)
		switch message := answer.GetMessage().(type) {
		case *wire.AttachResponse_Output:
			if err := a.write(message.Output); err != nil {
				return nil, err
			}
		case *wire.AttachResponse_Gap:
			a.skip(message.Gap.GetFrom(), message.Gap.GetTo())
		case *wire.AttachResponse_Exit:
			if denials := answer.GetDenials(); len(denials) > 0 && a.streams.OnDenials != nil {
				a.streams.OnDenials(denials)
			}
			return message.Exit, nil
		}
	}
}

// write passes on what is new in output.
func (a *attachment) write(output *wire.Output) error {
	data := output.GetData()
	a.skip(a.offset, output.GetOffset())
	if known := a.offset - output.GetOffset(); known < uint64(len(data)) {
		data = data[known:]
	} else {
		return nil
	}
	a.offset += uint64(len(data))
	to, name := a.streams.Stdout, "output"
	if output.GetStream() == wire.Stream_STREAM_STDERR {
		to, name = a.streams.Stderr, "error output"
	}
	if to == nil {
		return nil
	}
	if _, err := to.Write(data); err != nil {
		return &StreamError{Name: "writing the command's " + name, Err: err}
	}
	return nil
}

// skip reports and passes a gap, unless all of it lies behind.
func (a *attachment) skip(from, to uint64) {
	from = max(from, a.offset)
	if to <= from {
		return
	}
	a.offset = to
	if a.streams.OnGap != nil {
		a.streams.OnGap(from, to)
	}
}

// outage is the time without a connection.
type outage struct {
	until time.Time
	pause time.Duration
}

func newOutage(total time.Duration) outage {
	return outage{until: time.Now().Add(total), pause: firstPause}
}

// wait pauses before the next attempt and reports whether there is one.
func (o *outage) wait(ctx context.Context) bool {
	pause := o.pause/2 + rand.N(o.pause/2) //nolint:gosec // spreads attempts; nobody gains by guessing it
	o.pause = min(2*o.pause, longPause)
	if time.Now().Add(pause).After(o.until) {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
