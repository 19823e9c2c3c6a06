package agentd

import (
	"context"

	"execsession.dev/agentd/wire"
	"execsession.dev/unifiedexec"
)

// feeder does what the later requests of an Attach say. Input that the command does not
// read waits in the engine, so that a resize or a signal behind it is done at once.
type feeder struct {
	process *unifiedexec.Process
	answers *answers
	// feed is the counted input of a client that named it, plain that of one that did not.
	feed  *unifiedexec.Feed
	plain *unifiedexec.Feed
	// sent is how much plain was given.
	sent uint64
	// takesInput is whether input was welcome when the client first came.
	takesInput bool
	active     func()
}

// name finds the counted input of a client that may have been here before. What it sends
// after that is not wrong, even if the command took its last in the meantime.
func (f *feeder) name(id string) {
	f.plain = f.process.Feed("")
	f.takesInput = f.plain.Welcome()
	if id != "" {
		f.feed = f.process.Feed(id)
		f.answers.feed = f.feed
		f.takesInput = f.feed.Welcome()
	}
}

// run ends when the client closed its side, the stream broke, or a request was wrong.
// Only the last is an error: a client that is gone leaves the command running.
func (f *feeder) run(ctx context.Context, stream attachStream) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the call's context tells a broken stream
		}
		f.active()
		if err := f.do(ctx, request); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the call ended meanwhile
			}
			return err
		}
	}
}

func (f *feeder) do(ctx context.Context, request *wire.AttachRequest) error {
	switch m := request.GetMessage().(type) {
	case *wire.AttachRequest_Input:
		if f.feed == nil {
			return fieldError("input", "needs an input_id in the first request, by which it is counted")
		}
		return f.inputError(f.feed.Put(ctx, m.Input.GetOffset(), m.Input.GetData(), m.Input.GetEnd()))
	case *wire.AttachRequest_Stdin:
		// Blocks while much waits to be read; until then nothing more is received, and
		// so the client's flow control makes it wait.
		at := f.sent
		f.sent += uint64(len(m.Stdin))
		return f.inputError(f.plain.Put(ctx, at, m.Stdin, false))
	case *wire.AttachRequest_StdinEof:
		return f.inputError(f.plain.Put(ctx, f.sent, nil, true))
	case *wire.AttachRequest_Resize:
		size, err := sizeFrom("resize", m.Resize)
		if err != nil {
			return err
		}
		return f.inputError(f.process.Resize(size))
	case *wire.AttachRequest_Signal:
		return f.process.Signal(m.Signal.GetName())
	}
	return fieldError("message", "a later request must be input, stdin, stdin_eof, resize or signal, not %s", requestName(request))
}

// doNow feeds what there is room for. What it does not do, and what is wrong, is left to do.
func (f *feeder) doNow(request *wire.AttachRequest) bool {
	input, ok := request.GetMessage().(*wire.AttachRequest_Input)
	if !ok || f.feed == nil {
		return false
	}
	f.active()
	return f.feed.Put(noWait, input.Input.GetOffset(), input.Input.GetData(), input.Input.GetEnd()) == nil
}

// noWait has ended.
var noWait = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// inputError forgives input that a command does not want any more: its output and its
// end are still worth having. A command that never took any is the client's mistake.
func (f *feeder) inputError(err error) error {
	if isStdinClosed(err) && f.takesInput {
		return nil
	}
	return err
}

func requestName(r *wire.AttachRequest) string {
	switch r.GetMessage().(type) {
	case *wire.AttachRequest_Start:
		return "start"
	case *wire.AttachRequest_Open:
		return "open"
	case *wire.AttachRequest_Stdin:
		return "stdin"
	case *wire.AttachRequest_StdinEof:
		return "stdin_eof"
	case *wire.AttachRequest_Resize:
		return "resize"
	case *wire.AttachRequest_Signal:
		return "signal"
	case *wire.AttachRequest_Input:
		return "input"
	}
	return "an empty one"
}
