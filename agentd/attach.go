package agentd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"execsession.dev/agentd/wire"
	"execsession.dev/unifiedexec"
)

// maxOutputFrame keeps a message within one HTTP/2 frame; measured, larger ones are slower.
const maxOutputFrame = 8192

// attachStream is the stream of one Attach.
type attachStream = grpc.BidiStreamingServer[wire.AttachRequest, wire.AttachResponse]

// Attach implements wire.AgentServer.
func (s *service) Attach(stream attachStream) error {
	process, output, err := s.open(stream)
	if err != nil {
		return err
	}
	defer output.Close()
	info := process.Info()
	if err := stream.Send(&wire.AttachResponse{Message: &wire.AttachResponse_Process{Process: processTo(info)}}); err != nil {
		return err
	}

	// What the client sends is read beside the output. Recv ends with the stream's
	// context, which ends with this call: so the goroutine is joined when the server is.
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	feeder := feeder{process: process, takesInput: info.StdinOpen, active: s.reporter.active}
	s.feeds.Go(func() {
		if err := feeder.run(ctx, stream); err != nil {
			cancel(err)
		}
	})

	if err := sendOutput(ctx, stream, output); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	record, ended := process.Exit()
	if !ended {
		return nil // A client that does not follow gets no end that is not there.
	}
	return stream.Send(&wire.AttachResponse{Message: &wire.AttachResponse_Exit{Exit: exitTo(&record)}})
}

// open starts or joins, as the first request says.
func (s *service) open(stream attachStream) (*unifiedexec.Process, *unifiedexec.Reader, error) {
	options := unifiedexec.ReaderOptions{Lossless: true, MaxBytes: maxOutputFrame}
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil, nil, fieldError("message", "the stream ended before its first request")
	}
	if err != nil {
		return nil, nil, err
	}
	switch m := first.GetMessage().(type) {
	case *wire.AttachRequest_Start:
		// The reader is there before the command writes: a client that starts a command misses nothing of it.
		var process *unifiedexec.Process
		var output *unifiedexec.Reader
		err := s.start(stream.Context(), m.Start, func(command unifiedexec.Command) (err error) {
			process, output, err = s.engine.StartReading(stream.Context(), command, options)
			return err
		})
		return process, output, err
	case *wire.AttachRequest_Open:
		s.reporter.active()
		options.From = m.Open.GetFromOffset()
		if m.Open.GetNoFollow() {
			options.Wait, options.Lossless = unifiedexec.WaitNone, false
		}
		process, err := s.engine.Process(m.Open.GetProcessId())
		if err != nil {
			return nil, nil, err
		}
		if newest := process.Info().OutputBytes; options.From > newest {
			return nil, nil, fieldError("open.from_offset", "%d is beyond the newest byte, %d", options.From, newest)
		}
		output := process.NewReader(options)
		return process, output, nil
	}
	return nil, nil, fieldError("message", "the first request must be start or open, not %s", requestName(first))
}

// sendOutput sends until the reader is at its end.
func sendOutput(ctx context.Context, stream attachStream, output *unifiedexec.Reader) error {
	for {
		chunk, err := output.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the output: %w", err)
		}
		// Send marshals at once, so that the chunk's memory may be used again.
		if err := stream.Send(chunkTo(chunk)); err != nil {
			return err
		}
	}
}

// feeder does what the later requests of an Attach say.
type feeder struct {
	process    *unifiedexec.Process
	takesInput bool
	active     func()
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
	case *wire.AttachRequest_Stdin:
		// Blocks while the command does not read; until then nothing more is received,
		// and so the client's flow control makes it wait.
		_, err := f.process.Write(ctx, m.Stdin)
		return f.inputError(err)
	case *wire.AttachRequest_StdinEof:
		return f.inputError(f.process.CloseStdin())
	case *wire.AttachRequest_Resize:
		size, err := sizeFrom("resize", m.Resize)
		if err != nil {
			return err
		}
		return f.inputError(f.process.Resize(size))
	case *wire.AttachRequest_Signal:
		return f.process.Signal(m.Signal.GetName())
	}
	return fieldError("message", "a later request must be stdin, stdin_eof, resize or signal, not %s", requestName(request))
}

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
	}
	return "an empty one"
}
