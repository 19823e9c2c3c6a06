package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Preface begins a connection that carries frames. Any other beginning is gRPC's own, which the same server speaks as well.
//
// gRPC costs a call 0.2 to 0.4 ms, a third of what a short command takes: on both sides a reader, a writer and the
// caller wake each other. Here whoever calls writes, and reads its answer itself unless somebody else reads already.
//
// After it both sides send frames. Numbers are big-endian:
//
//	4 bytes  how many follow
//	8 bytes  the call's number, which no other call of the connection has that has no answer yet
//	1 byte   the kind
//	...      what belongs to the kind
//
// A call has one request and one answer. A stream is a call that has messages in both directions before its answer.
// Each side may send 128 KiB of them, 64 bytes a message added, and one message more; the other gives that room back as it
// takes them.
const Preface = "execsession-frames/1\n"

// The kinds of frames.
const (
	// frameCall: 8 bytes of nanoseconds that the call has left, 0 for no limit; 1 byte with the length of the method;
	// the method, such as /execsession.agent.v1alpha1.Agent/ExecCommand, empty for a ping; the request.
	frameCall byte = iota + 1
	// frameCancel: nothing. It gives up the call of that number, which is answered all the same.
	frameCancel
	// frameResponse: the response; nothing for a ping and at the end of a stream.
	frameResponse
	// frameFailure: a google.rpc.Status.
	frameFailure
	// frameStream: as a call's, with the first message instead of the request.
	frameStream
	// frameInput: a later message of the client's. frameInputEnd: nothing; there are no more.
	frameInput
	frameInputEnd
	// frameOutput: a message of the agent's.
	frameOutput
	// frameRoom: 4 bytes of how much more of a stream its other side may send.
	frameRoom
)

// MaxResponseBytes bounds a response; a ToolResult is at most a few MiB.
const MaxResponseBytes = 16 << 20

const (
	// maxRequestBytes is gRPC's own default.
	maxRequestBytes = 4 << 20
	// sizeBytes, headBytes and callBytes are how long the parts of a frame are.
	sizeBytes = 4
	headBytes = 8 + 1
	callBytes = 8 + 1
	maxMethod = 255
	roomBytes = 4
	// ordinaryBytes is how long most messages are at most.
	ordinaryBytes = 256
	// keptBuffer is how large a buffer may be that is kept between two frames, and readBytes how much is read at least.
	keptBuffer = 64 << 10
	readBytes  = 4 << 10
	// pieceBytes is how much of a frame is written at once. A connection that takes a piece now and then is slow, and not dead.
	pieceBytes = 64 << 10
)

// frame is one message of a connection.
type frame struct {
	call uint64
	kind byte
	body []byte
}

// newFrame makes a frame of a kind with a head of its own and, unless it is nil, a message. The error is a status.
func newFrame(kind byte, call uint64, head []byte, message proto.Message) ([]byte, error) {
	return appendFrame(make([]byte, 0, sizeBytes+headBytes+len(head)+ordinaryBytes), kind, call, head, message)
}

// appendFrame makes a frame in a buffer that is empty.
func appendFrame(encoded []byte, kind byte, call uint64, head []byte, message proto.Message) ([]byte, error) {
	begin := sizeBytes + headBytes + len(head)
	encoded = binary.BigEndian.AppendUint32(encoded, 0) // The size is known below.
	encoded = binary.BigEndian.AppendUint64(encoded, call)
	encoded = append(append(encoded, kind), head...)
	encoded, err := appendMessage(encoded, message)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encoding a message: %v", err)
	}
	if bytes, most := len(encoded)-begin, bodyOf(kind); bytes > most {
		return nil, oversized(kind, message, bytes, most)
	}
	binary.BigEndian.PutUint32(encoded, uint32(len(encoded)-sizeBytes))
	return encoded, nil
}

// bareFrame makes a frame that has no message.
func bareFrame(kind byte, call uint64, body []byte) []byte {
	encoded := binary.BigEndian.AppendUint32(nil, uint32(headBytes+len(body)))
	return append(append(binary.BigEndian.AppendUint64(encoded, call), kind), body...)
}

// failureOf is the error in a frame of that kind.
func failureOf(body []byte) error {
	var failure spb.Status
	if err := proto.Unmarshal(body, &failure); err != nil {
		return status.Errorf(codes.Internal, "reading a failure: %v", err)
	}
	return status.ErrorProto(&failure)
}

// bodyOf is how large the message in a frame may be.
func bodyOf(kind byte) int {
	switch kind {
	case frameCall, frameStream, frameInput:
		return maxRequestBytes
	}
	return MaxResponseBytes
}

// callHead is the head of a call.
func callHead(left time.Duration, method string) ([]byte, error) {
	if len(method) > maxMethod {
		return nil, fmt.Errorf("the method's name has %d bytes, and at most %d are taken", len(method), maxMethod)
	}
	head := binary.BigEndian.AppendUint64(make([]byte, 0, callBytes+len(method)), uint64(left))
	return append(append(head, byte(len(method))), method...), nil
}

// parseCall takes the body of a call apart.
func parseCall(body []byte) (left time.Duration, method string, request []byte, err error) {
	if len(body) < callBytes || len(body) < callBytes+int(body[8]) {
		return 0, "", nil, errors.New("reading a frame: a call ends before its request")
	}
	left = time.Duration(binary.BigEndian.Uint64(body))
	name := body[callBytes : callBytes+int(body[8])]
	return left, string(name), body[callBytes+len(name):], nil
}

// writePieces writes a frame, and tells how much of it was written; before is called before each piece.
func writePieces(to io.Writer, frame []byte, before func() error) (written int, err error) {
	for written < len(frame) {
		if err := before(); err != nil {
			return written, err
		}
		n, err := to.Write(frame[written:min(len(frame), written+pieceBytes)])
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// frameReader reads frames. After an error of its connection that passes, such as a deadline, it goes on where it was.
type frameReader struct {
	from io.Reader
	// most is how long a frame may be, and ahead how much is read at once, if that is more than readBytes.
	most, ahead int
	// buffer holds what was read; what is before start was returned already.
	buffer []byte
	start  int
}

// next returns the next frame, whose body is valid until the next call.
func (r *frameReader) next() (frame, error) {
	for {
		unread := r.buffer[r.start:]
		whole := sizeBytes
		if len(unread) >= sizeBytes {
			size := binary.BigEndian.Uint32(unread)
			if size < headBytes || uint64(size) > uint64(r.most) {
				return frame{}, fmt.Errorf("reading a frame: it has %d bytes, not from %d to %d", size, headBytes, r.most)
			}
			whole += int(size)
		}
		if len(unread) >= whole && whole > sizeBytes {
			r.start += whole
			head := unread[sizeBytes:]
			return frame{call: binary.BigEndian.Uint64(head), kind: head[8], body: head[headBytes : whole-sizeBytes]}, nil
		}
		if err := r.fill(whole); err != nil {
			return frame{}, err
		}
	}
}

// fill reads once, into a buffer that has room for a frame of so many bytes.
func (r *frameReader) fill(whole int) error {
	unread := r.buffer[r.start:]
	room := max(whole, len(unread)+readBytes, r.ahead)
	if cap(r.buffer) < room || cap(r.buffer) > max(room, 2*keptBuffer) {
		r.buffer = append(make([]byte, 0, room), unread...)
	} else {
		r.buffer = append(r.buffer[:0], unread...)
	}
	r.start = 0
	n, err := r.from.Read(r.buffer[len(r.buffer):cap(r.buffer)])
	r.buffer = r.buffer[:len(r.buffer)+n]
	if n > 0 {
		return nil // The error comes again.
	}
	if errors.Is(err, io.EOF) && len(unread) > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}
