package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"execsession.dev/agentd/wire"
)

// chunkBytes keeps a message below one HTTP/2 frame.
const chunkBytes = 8 << 10

// input carries the caller's side of a command to one stream after another.
type input struct {
	// chunks is closed by the reading goroutine at the end of the input; nil without input.
	chunks chan []byte
	// readErr is why the input ended too early; valid once chunks is closed.
	readErr error
	// stopped is closed by close; the reading goroutine then ends after its Read.
	stopped chan struct{}

	resize  <-chan *wire.WindowSize
	signals <-chan string

	// These belong to the feeding goroutine while there is one.
	size  *wire.WindowSize
	sent  int64
	ended bool
	// endSent is when the end of the input was sent.
	endSent time.Time
}

func newInput(streams Streams) *input {
	in := &input{resize: streams.Resize, signals: streams.Signals, stopped: make(chan struct{})}
	if streams.Stdin != nil {
		in.chunks = make(chan []byte)
		go in.read(streams.Stdin)
	}
	return in
}

func (in *input) close() { close(in.stopped) }

func (in *input) read(from io.Reader) {
	defer close(in.chunks)
	buffer := make([]byte, chunkBytes)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			select {
			case in.chunks <- bytes.Clone(buffer[:n]):
			case <-in.stopped:
				return
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			in.readErr = &StreamError{Name: "reading the input", Err: err}
			return
		}
	}
}

// feed sends what comes until ctx or the stream ends. Its error is one of the input
// itself: a stream that broke is told by receiving.
func (in *input) feed(ctx context.Context, stream attachStream) error {
	if in.size != nil && stream.Send(resizeRequest(in.size)) != nil {
		return nil //nolint:nilerr // receiving tells why the stream broke
	}
	chunks := in.chunks
	if in.ended {
		chunks = nil
		// Without a byte before it, the end can be told again.
		if in.sent == 0 && stream.Send(endRequest()) != nil {
			return nil //nolint:nilerr // receiving tells why the stream broke
		}
	}
	for {
		var request *wire.AttachRequest
		select {
		case <-ctx.Done():
			return nil
		case chunk, more := <-chunks:
			if !more && in.readErr != nil {
				return in.readErr
			}
			if !more {
				in.ended, in.endSent, chunks = true, time.Now(), nil
				request = endRequest()
				break
			}
			in.sent += int64(len(chunk))
			request = &wire.AttachRequest{Message: &wire.AttachRequest_Stdin{Stdin: chunk}}
		case in.size = <-in.resize:
			request = resizeRequest(in.size)
		case name := <-in.signals:
			request = &wire.AttachRequest{Message: &wire.AttachRequest_Signal{Signal: &wire.SignalName{Name: name}}}
		}
		if stream.Send(request) != nil {
			return nil //nolint:nilerr // receiving tells why the stream broke
		}
	}
}

// settled tells whether the whole input was sent so long before now that the agent must
// have answered a ping after it, and so must have received it.
func (in *input) settled(now time.Time) bool {
	return in.ended && now.Sub(in.endSent) > pingEvery+pingWait
}

// salvage says whether the input can go on after its connection broke. Nothing tells how
// much of it arrived. At a terminal somebody sees what is missing and types on. On a pipe
// a hole would be taken for data, so no more is sent, and a command that waits for the
// rest would wait for ever.
func (in *input) salvage(tty bool, now time.Time) error {
	if tty || in.sent == 0 || in.settled(now) {
		return nil
	}
	return fmt.Errorf("the connection broke while input was being sent, and how much of its %d bytes arrived is not known, so the rest can not follow", in.sent)
}

func resizeRequest(size *wire.WindowSize) *wire.AttachRequest {
	return &wire.AttachRequest{Message: &wire.AttachRequest_Resize{Resize: size}}
}

func endRequest() *wire.AttachRequest {
	return &wire.AttachRequest{Message: &wire.AttachRequest_StdinEof{StdinEof: &wire.StdinEOF{}}}
}
