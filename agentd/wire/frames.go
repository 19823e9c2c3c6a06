package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// CallPreface begins a connection for calls. Any other beginning is gRPC's own, which the same server speaks as well.
//
// gRPC costs a call 0.2 to 0.4 ms, a third of what a short command takes: on both sides a reader, a writer and the
// caller wake each other. Here whoever calls writes, and reads its answer itself unless somebody else reads already.
// Only calls of one request and one response go this way; a command's streams need gRPC's flow control.
const CallPreface = "execsession-calls/1\n"

// MaxResponseBytes bounds a response; a ToolResult is at most a few MiB.
const MaxResponseBytes = 16 << 20

const (
	// maxRequestBytes is gRPC's own default.
	maxRequestBytes = 4 << 20
	// frameExtra is more than a frame has beside them.
	frameExtra = 64 << 10
	// keptBuffer is how large a buffer may be that is kept between two frames, and readBytes how much is read at least.
	keptBuffer = 64 << 10
	readBytes  = 4 << 10
)

// encodeFrame is a message with its length before it.
func encodeFrame(m proto.Message) ([]byte, error) {
	size := proto.Size(m)
	frame := protowire.AppendVarint(make([]byte, 0, size+binary.MaxVarintLen32), uint64(size))
	frame, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(frame, m)
	if err != nil {
		return nil, fmt.Errorf("encoding a frame: %w", err)
	}
	return frame, nil
}

// pieceBytes is how much of a frame is written at once. A connection that takes a piece now and then is slow, and not dead.
const pieceBytes = 64 << 10

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
	most int
	// buffer holds what was read; what is before start was returned already.
	buffer []byte
	start  int
}

// next returns the next frame, which is valid until the next call.
func (r *frameReader) next() ([]byte, error) {
	for {
		unread := r.buffer[r.start:]
		size, n := protowire.ConsumeVarint(unread)
		switch {
		case n < 0 && !errors.Is(protowire.ParseError(n), io.ErrUnexpectedEOF):
			return nil, fmt.Errorf("reading a frame: its length is malformed: %w", protowire.ParseError(n))
		case n > 0 && size > uint64(r.most):
			return nil, fmt.Errorf("reading a frame: it has %d bytes, and at most %d are taken", size, r.most)
		case n > 0 && size <= uint64(len(unread)-n):
			r.start += n + int(size)
			return unread[n : n+int(size)], nil
		}
		if err := r.fill(max(n, 0) + int(size)); err != nil {
			return nil, err
		}
	}
}

// fill reads once, into a buffer that has room for a frame of so many bytes.
func (r *frameReader) fill(frame int) error {
	unread := r.buffer[r.start:]
	room := max(frame, len(unread)+readBytes)
	if cap(r.buffer) < room || cap(r.buffer) > max(room, keptBuffer) {
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
