package wire

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Answer is an AttachResponse to receive into again and again. The data of output is not copied: it is the connection's
// memory, and valid until the next answer is received into it, or until Free.
type Answer struct {
	AttachResponse

	message AttachResponse_Output
	output  Output
	taken   uint64
	memory  mem.Buffer
}

// Free gives the memory of the last output back.
func (a *Answer) Free() {
	if a.memory != nil {
		a.memory.Free()
		a.memory = nil
	}
}

// AnswerCodec is for calls of Attach whose answers are received into an *Answer.
type AnswerCodec struct{ encoding.CodecV2 }

// NewAnswerCodec makes a codec that does everything else as gRPC's own.
func NewAnswerCodec() AnswerCodec { return AnswerCodec{encoding.GetCodecV2(proto.Name)} }

// Unmarshal implements encoding.CodecV2.
func (c AnswerCodec) Unmarshal(data mem.BufferSlice, v any) error {
	answer, ok := v.(*Answer)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	answer.Free()
	answer.Reset()
	// A message that came in one piece is only referred to.
	answer.memory = data.MaterializeToBuffer(mem.DefaultBufferPool())
	if answer.takeOutput(answer.memory.ReadOnlyData()) {
		return nil
	}
	answer.Free()
	answer.Reset()
	return c.CodecV2.Unmarshal(data, &answer.AttachResponse)
}

// takeOutput reads a message that is output. It answers false for any other, also for one that is malformed.
func (a *Answer) takeOutput(message []byte) bool {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		switch {
		case number == 2 && kind == protowire.BytesType:
			var output []byte
			if output, n = protowire.ConsumeBytes(message); n < 0 || a.Message != nil || !a.output.take(output) {
				return false
			}
			a.message.Output = &a.output
			a.Message = &a.message
		case number == 5 && kind == protowire.VarintType:
			if a.taken, n = protowire.ConsumeVarint(message); n < 0 {
				return false
			}
			a.InputTaken = &a.taken
		case number == 6 && kind == protowire.VarintType:
			var closed uint64
			if closed, n = protowire.ConsumeVarint(message); n < 0 {
				return false
			}
			a.InputClosed = closed != 0
		default:
			return false
		}
		message = message[n:]
	}
	return a.Message != nil
}

// take reads an Output whose data stays where it is.
func (o *Output) take(message []byte) bool {
	o.Offset, o.Stream, o.Data = 0, 0, nil
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		var value uint64
		switch {
		case number == 1 && kind == protowire.VarintType:
			value, n = protowire.ConsumeVarint(message)
			o.Offset = value
		case number == 2 && kind == protowire.VarintType:
			value, n = protowire.ConsumeVarint(message)
			o.Stream = Stream(value)
		case number == 3 && kind == protowire.BytesType:
			o.Data, n = protowire.ConsumeBytes(message)
		default:
			return false
		}
		if n < 0 {
			return false
		}
		message = message[n:]
	}
	return true
}
