package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"execsession.dev/agentd/wire"
)

// chunkBytes keeps a message below one HTTP/2 frame.
const chunkBytes = 8 << 10

// input carries the caller's side of a command to one stream after another. An agent that
// counts input says after a break how much of it the command took, and gets the rest; an
// older one says nothing, and then a hole can not be ruled out.
type input struct {
	// id names this input to the agent; empty without input.
	id string
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

	mu sync.Mutex
	// counted is whether the agent counts this input.
	counted bool
	// taken is what the agent is known to have, pending the bytes from there on that were sent.
	taken   uint64
	pending []byte
	// unwanted is set when the command takes no more.
	unwanted bool
	// moved gets an element when there may be room for more.
	moved chan struct{}
}

func newInput(streams Streams) *input {
	in := &input{resize: streams.Resize, signals: streams.Signals, stopped: make(chan struct{}), moved: make(chan struct{}, 1)}
	if streams.Stdin != nil {
		in.id = rand.Text()
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

// joined takes the agent's first answer on a connection, which says whether it counts
// and where to go on.
func (in *input) joined(answer *wire.AttachResponse) error {
	if answer.InputTaken == nil {
		return nil
	}
	in.mu.Lock()
	taken := in.taken
	in.counted = true
	in.mu.Unlock()
	if answer.GetInputTaken() < taken {
		return &Error{Code: codes.DataLoss, Message: fmt.Sprintf("the agent no longer knows how much of the input it took: it says %d bytes, and it took %d", answer.GetInputTaken(), taken)}
	}
	in.took(answer)
	return nil
}

// took notes what an answer says about the input.
func (in *input) took(answer *wire.AttachResponse) {
	if answer.InputTaken == nil {
		return
	}
	in.mu.Lock()
	known := uint64(0)
	if taken := answer.GetInputTaken(); taken > in.taken {
		known = min(taken-in.taken, uint64(len(in.pending)))
	}
	in.taken += known
	in.pending = in.pending[known:]
	in.unwanted = in.unwanted || answer.GetInputClosed()
	in.mu.Unlock()
	select {
	case in.moved <- struct{}{}:
	default:
	}
}

// room is whether another chunk may be on its way.
func (in *input) room() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return !in.unwanted && (!in.counted || len(in.pending)+chunkBytes <= wire.InputWindow)
}

// feed sends what comes until ctx or the stream ends. Its error is one of the input
// itself: a stream that broke is told by receiving.
func (in *input) feed(ctx context.Context, stream attachStream) error {
	for _, request := range in.again() {
		if stream.Send(request) != nil {
			return nil //nolint:nilerr // receiving tells why the stream broke
		}
	}
	for {
		chunks := in.chunks
		if in.ended || !in.room() {
			chunks = nil
		}
		var request *wire.AttachRequest
		select {
		case <-ctx.Done():
			return nil
		case <-in.moved:
			continue
		case chunk, more := <-chunks:
			if !more && in.readErr != nil {
				return in.readErr
			}
			if !more {
				in.ended, in.endSent = true, time.Now()
				request = in.endRequest()
				break
			}
			request = in.dataRequest(chunk)
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

// again is what a new connection has to be told of what was sent on earlier ones.
func (in *input) again() []*wire.AttachRequest {
	var requests []*wire.AttachRequest
	if in.size != nil {
		requests = append(requests, resizeRequest(in.size))
	}
	in.mu.Lock()
	pending, at, counted := bytes.Clone(in.pending), in.taken, in.counted
	in.mu.Unlock()
	for len(pending) > 0 && counted {
		n := min(len(pending), chunkBytes)
		requests = append(requests, countedRequest(at, pending[:n], false))
		at, pending = at+uint64(n), pending[n:]
	}
	// An agent that does not count can be told the end again only when no byte came before it.
	if in.ended && (counted || in.sent == 0) {
		requests = append(requests, in.endRequest())
	}
	return requests
}

func (in *input) dataRequest(chunk []byte) *wire.AttachRequest {
	in.sent += int64(len(chunk))
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.counted {
		return &wire.AttachRequest{Message: &wire.AttachRequest_Stdin{Stdin: chunk}}
	}
	at := in.taken + uint64(len(in.pending))
	in.pending = append(in.pending, chunk...)
	return countedRequest(at, chunk, false)
}

func (in *input) endRequest() *wire.AttachRequest {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.counted {
		return &wire.AttachRequest{Message: &wire.AttachRequest_StdinEof{StdinEof: &wire.StdinEOF{}}}
	}
	return countedRequest(in.taken+uint64(len(in.pending)), nil, true)
}

// settled tells whether the whole input was sent so long before now that the agent must
// have answered a ping after it, and so must have received it.
func (in *input) settled(now time.Time) bool {
	return in.ended && now.Sub(in.endSent) > pingEvery+pingWait
}

// salvage says whether the input can go on after its connection broke. When the agent does
// not count, nothing tells how much of it arrived. At a terminal somebody sees what is
// missing and types on. On a pipe a hole would be taken for data, so no more is sent, and a
// command that waits for the rest would wait for ever.
func (in *input) salvage(tty bool, now time.Time) error {
	in.mu.Lock()
	counted := in.counted
	in.mu.Unlock()
	if counted || tty || in.sent == 0 || in.settled(now) {
		return nil
	}
	return fmt.Errorf("the connection broke while input was being sent, and how much of its %d bytes arrived is not known, so the rest can not follow", in.sent)
}

func resizeRequest(size *wire.WindowSize) *wire.AttachRequest {
	return &wire.AttachRequest{Message: &wire.AttachRequest_Resize{Resize: size}}
}

func countedRequest(offset uint64, data []byte, end bool) *wire.AttachRequest {
	return &wire.AttachRequest{Message: &wire.AttachRequest_Input{Input: &wire.Input{Offset: offset, Data: data, End: end}}}
}
