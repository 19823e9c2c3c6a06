package agentd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"

	"execsession.dev/agentd/wire"
	"execsession.dev/approval"
	"execsession.dev/unifiedexec"
)

const (
	// firstOutput is the most that the first output of a stream has, and each later one may have twice as much as the one before, up
	// to maxOutput, which goes in one write and comes in one read of a client. A connection that breaks soon has then carried
	// something.
	firstOutput = 16_000
	maxOutput   = 64_000
	// maxDelta is the most that an output has for who takes a limited number of them.
	maxDelta = 8192
)

// attachStream is the stream of one Attach.
type attachStream = grpc.BidiStreamingServer[wire.AttachRequest, wire.AttachResponse]

// Attach implements wire.AgentServer.
func (s *service) Attach(stream attachStream) error {
	first, err := firstRequest(stream)
	if err != nil {
		return err
	}
	process, output, err := s.open(stream.Context(), first)
	if err != nil {
		return err
	}
	defer output.Close()
	info := process.Info()
	answers := &answers{stream: stream}
	defer answers.close()
	feeder := &feeder{process: process, answers: answers, active: s.reporter.active}
	feeder.name(first.GetInputId())
	if err := answers.send(&wire.AttachResponse{Message: &wire.AttachResponse_Process{Process: s.processTo(info)}}); err != nil {
		return err
	}

	// What the client sends is read beside the output. Recv ends with the stream's
	// context, which ends with this call: so the goroutines are joined when the server is.
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	wire.TakeAtOnce(stream, feeder.doNow)
	s.feeds.Go(func() {
		if err := feeder.run(ctx, stream); err != nil {
			cancel(err)
		}
	})
	if feeder.feed != nil {
		s.feeds.Go(func() { answers.follow(ctx, feeder.feed) })
	}

	if err := sendOutput(ctx, answers, output, first.GetOpen().GetMaxOutputs()); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	record, ended := process.Exit()
	if !ended {
		return nil // A client that does not follow gets no end that is not there.
	}
	return answers.send(&wire.AttachResponse{
		Message: &wire.AttachResponse_Exit{Exit: exitTo(&record)}, Denials: denialsTo(s.reporter.denials.of(info.ID).All()),
	})
}

// maxInputID is more than any random name needs.
const maxInputID = 64

func firstRequest(stream attachStream) (*wire.AttachRequest, error) {
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil, fieldError("message", "the stream ended before its first request")
	}
	if err != nil {
		return nil, err
	}
	if n := len(first.GetInputId()); n > maxInputID {
		return nil, fieldError("input_id", "has %d bytes, and at most %d are taken", n, maxInputID)
	}
	return first, nil
}

// open starts or joins, as the first request says.
func (s *service) open(ctx context.Context, first *wire.AttachRequest) (*unifiedexec.Process, *unifiedexec.Reader, error) {
	switch m := first.GetMessage().(type) {
	case *wire.AttachRequest_Start:
		options := unifiedexec.ReaderOptions{Lossless: true, MaxBytes: firstOutput}
		// The reader is there before the command writes: a client that starts a command misses nothing of it.
		var process *unifiedexec.Process
		var output *unifiedexec.Reader
		launched, err := s.launch(ctx, m.Start.GetCommand(), approval.Request{}, func(command unifiedexec.Command) (err error) {
			process, output, err = s.engine.StartReading(ctx, command, options)
			return err
		})
		if err == nil {
			s.reporter.denials.name(launched, process.ID())
		}
		return process, output, err
	case *wire.AttachRequest_Open:
		s.reporter.active()
		options, err := readerOptions(m.Open)
		if err != nil {
			return nil, nil, err
		}
		process, err := s.engine.Process(m.Open.GetProcessId())
		if err != nil {
			return nil, nil, err
		}
		// How much a command had written that an earlier agentd started, nobody knows.
		info := process.Info()
		if newest := info.OutputBytes; options.From > newest && !info.OutputLost {
			return nil, nil, fieldError("open.from_offset", "%d is beyond the newest byte, %d", options.From, newest)
		}
		output := process.NewReader(options)
		return process, output, nil
	}
	return nil, nil, fieldError("message", "the first request must be start or open, not %s", requestName(first))
}

func readerOptions(open *wire.AttachOpen) (unifiedexec.ReaderOptions, error) {
	options := unifiedexec.ReaderOptions{From: open.GetFromOffset(), Lossless: true, MaxBytes: firstOutput, Text: open.GetText()}
	if open.GetMaxOutputs() > 0 {
		options.MaxBytes = maxDelta
	}
	switch {
	case open.GetNoFollow() && open.GetUntilClosed():
		return options, fieldError("open.until_closed", "contradicts no_follow, which does not wait at all")
	case open.GetNoFollow():
		options.Wait, options.Lossless = unifiedexec.WaitNone, false
	case open.GetUntilClosed():
		options.Wait = unifiedexec.WaitClosed
	}
	return options, nil
}

// sendOutput sends until the reader is at its end. After so many outputs (0: no limit) it tells the rest as one gap.
func sendOutput(ctx context.Context, to *answers, output *unifiedexec.Reader, most uint32) error {
	var sent uint32
	var rest unifiedexec.Chunk
	for limit := firstOutput; ; {
		chunk, err := output.Next(ctx)
		if errors.Is(err, io.EOF) && rest.GapTo != 0 {
			return to.send(chunkTo(rest))
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the output: %w", err)
		}
		if most > 0 && sent == most {
			if rest.GapTo == 0 {
				rest.Offset = chunk.Offset
			}
			rest.GapTo = max(chunk.GapTo, chunk.Offset+uint64(len(chunk.Data)))
			continue
		}
		if chunk.GapTo == 0 {
			sent++
		}
		// Send marshals at once, so that the chunk's memory may be used again.
		if err := to.send(chunkTo(chunk)); err != nil {
			return err
		}
		if most == 0 && limit < maxOutput {
			limit = min(2*limit, maxOutput)
			output.Limit(limit)
		}
	}
}

// answers is the agent's side of an Attach, which sends from more than one goroutine.
type answers struct {
	mu     sync.Mutex
	stream attachStream
	// feed is the client's counted input, nil when it has none.
	feed *unifiedexec.Feed
	// told and toldClosed are what the client knows of it.
	told       uint64
	toldClosed bool
	begun      bool
	// closed is set when the call ends, after which nothing may be sent.
	closed bool
}

func (a *answers) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
}

// send sends an answer; the first one also tells how much of the input was taken.
func (a *answers) send(answer *wire.AttachResponse) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.feed != nil && !a.begun {
		a.addTakenLocked(answer)
	}
	a.begun = true
	return a.stream.Send(answer)
}

func (a *answers) addTakenLocked(answer *wire.AttachResponse) {
	taken, closed := a.feed.Taken()
	answer.InputTaken, answer.InputClosed = &taken, closed
	a.told, a.toldClosed = taken, closed
}

// follow tells what the command took of its input, not for every keystroke: a client need know only before it has sent
// as much as may be on its way.
func (a *answers) follow(ctx context.Context, feed *unifiedexec.Feed) {
	changed, stop := feed.Watch(wire.InputAckEvery)
	defer stop()
	for {
		if a.tellTaken() != nil {
			return // The output's sender learns the same.
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (a *answers) tellTaken() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken, closed := a.feed.Taken()
	if a.closed || taken/wire.InputAckEvery == a.told/wire.InputAckEvery && closed == a.toldClosed {
		return nil
	}
	answer := &wire.AttachResponse{}
	a.addTakenLocked(answer)
	return a.stream.Send(answer)
}
