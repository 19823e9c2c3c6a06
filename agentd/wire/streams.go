package wire

import (
	"context"
	"encoding/binary"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// streamWindow is how much of a stream may be on its way in one direction. A larger one would fill every buffer on the
	// way with bulk output, which then stands before a keystroke's echo.
	streamWindow = 128 << 10
	// messageCost is what a message counts beside its bytes, so that empty ones are bounded too.
	messageCost = 64
)

// allowance is how much more the other side of a stream has room for.
type allowance struct {
	mu   sync.Mutex
	left int
	// grown gets an element when there is more than before.
	grown chan struct{}
}

func newAllowance() *allowance { return &allowance{left: streamWindow, grown: make(chan struct{}, 1)} }

// take waits until something is left, and takes what a message of so many bytes counts, which may be more than that: so
// messages of every size pass. It is for one goroutine at a time. After the end of what it must not outlast it gives io.EOF.
func (a *allowance) take(ctx context.Context, bytes int, ended, over <-chan struct{}) error {
	for !a.try(bytes) {
		select {
		case <-a.grown:
		case <-ended:
			return io.EOF
		case <-over:
			return io.EOF
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return nil
}

func (a *allowance) try(bytes int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left <= 0 {
		return false
	}
	a.left -= bytes + messageCost
	return true
}

// giveBack is for the body of a frame of that kind; false if it is none.
func (a *allowance) giveBack(body []byte) bool {
	if len(body) != roomBytes {
		return false
	}
	a.mu.Lock()
	a.left += int(binary.BigEndian.Uint32(body))
	sane := a.left <= streamWindow
	a.mu.Unlock()
	wake(a.grown)
	return sane
}

// inbox holds the messages of a stream that were received and not yet asked for.
type inbox struct {
	// arrived gets an element when there is something.
	arrived chan struct{}

	mu       sync.Mutex
	messages [][]byte
	// last is the message that was given out, spare the memory of the one before it, which the next one to arrive takes.
	last, spare []byte
	// used is how much of the window is not given back, and done how much of that nobody needs any more.
	used, done int
	// atOnce, if it is not nil, gets messages as they arrive.
	atOnce func(message []byte) bool
	// end follows the messages; nil while more may come.
	end error
	// idle is whether the receiver has done what it was given.
	idle bool
}

func newInbox() *inbox { return &inbox{arrived: make(chan struct{}, 1)} }

// put keeps a copy of a message, unless it is taken at once; false when the other side sends more than it may.
func (in *inbox) put(message []byte) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.end != nil || in.used >= streamWindow {
		return false
	}
	cost := len(message) + messageCost
	in.used += cost
	// Who gives room back has to send it, and so that waits for the receiver.
	if in.atOnce != nil && in.idle && len(in.messages) == 0 && in.done+cost < streamWindow/2 && in.atOnce(message) {
		in.done += cost
		return true
	}
	in.messages = append(in.messages, append(in.spare[:0], message...))
	in.spare = nil
	wake(in.arrived)
	return true
}

// takeAtOnce begins with the next message.
func (in *inbox) takeAtOnce(take func(message []byte) bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.atOnce = take
}

// finish says what follows the messages.
func (in *inbox) finish(end error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.end == nil {
		in.end = end
	}
	wake(in.arrived)
}

// any is whether next has something.
func (in *inbox) any() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.messages) > 0 || in.end != nil
}

// next gives the next message, which is valid until it is called again, and how much of the window is to be given
// back. When there is none it gives the end, or false.
func (in *inbox) next() (message []byte, room int, ok bool, end error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.idle = len(in.messages) == 0; in.idle {
		return nil, 0, false, in.end
	}
	if cap(in.last) <= keptBuffer {
		in.spare = in.last
	}
	in.last = in.messages[0]
	in.messages = slices.Delete(in.messages, 0, 1)
	in.done += len(in.last) + messageCost
	if in.done >= streamWindow/2 {
		room, in.done = in.done, 0
		in.used -= room
	}
	return in.last, room, true, nil
}

func wake(waiter chan struct{}) {
	select {
	case waiter <- struct{}{}:
	default:
	}
}

// roomFrame gives room back.
func roomFrame(call uint64, room int) []byte {
	return bareFrame(frameRoom, call, binary.BigEndian.AppendUint32(nil, uint32(room)))
}

func readMessage(message []byte, into any) error {
	if err := unmarshal(message, into.(proto.Message)); err != nil { //nolint:forcetypeassert // generated code calls, with messages
		return status.Errorf(codes.Internal, "reading a message of a stream: %v", err)
	}
	return nil
}

// noHeaders is what a stream here has none of.
func noHeaders() error { return status.Error(codes.Unimplemented, "streams have no headers") }
