package wire

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"
)

// Answer is an AttachResponse to receive into again and again. The data of output is not copied: it is the stream's memory, and
// valid until the next answer is received.
type Answer struct {
	AttachResponse

	message AttachResponse_Output
	output  Output
	taken   uint64
}

// readPlain reads output.
func (a *Answer) readPlain(message []byte) bool {
	a.Reset()
	return fields(message, func(f field) bool {
		switch f.key() {
		case key(2, protowire.BytesType):
			unset := a.Message == nil
			a.message.Output = &a.output
			a.Message = &a.message
			return unset && a.output.readPlain(f.bytes)
		case key(5, protowire.VarintType):
			a.taken = f.number
			a.InputTaken = &a.taken
		case key(6, protowire.VarintType):
			a.InputClosed = f.number != 0
		default:
			return false
		}
		return true
	}) && a.Message != nil
}

// appendPlain writes output.
func (a *AttachResponse) appendPlain(encoded []byte) ([]byte, bool) {
	message, ok := a.Message.(*AttachResponse_Output)
	if !ok || message.Output == nil || len(a.unknownFields) > 0 || len(message.Output.unknownFields) > 0 || len(a.Denials) > 0 {
		return nil, false
	}
	o := message.Output
	encoded = protowire.AppendTag(encoded, 2, protowire.BytesType)
	encoded = protowire.AppendVarint(encoded, uint64(o.plainSize()))
	encoded = appendUnlessZero(encoded, 1, o.Offset)
	encoded = appendUnlessZero(encoded, 2, uint64(o.Stream))
	if len(o.Data) > 0 {
		encoded = appendBytes(encoded, 3, o.Data)
	}
	if a.InputTaken != nil {
		encoded = appendNumber(encoded, 5, *a.InputTaken)
	}
	if a.InputClosed {
		encoded = appendNumber(encoded, 6, 1)
	}
	return encoded, true
}

// plainSize is how long the message is.
func (o *Output) plainSize() (size int) {
	if o.Offset != 0 {
		size += protowire.SizeTag(1) + protowire.SizeVarint(o.Offset)
	}
	if o.Stream != 0 {
		size += protowire.SizeTag(2) + protowire.SizeVarint(uint64(o.Stream))
	}
	if len(o.Data) > 0 {
		size += protowire.SizeTag(3) + protowire.SizeBytes(len(o.Data))
	}
	return size
}

// readPlain leaves the data where it is.
func (o *Output) readPlain(message []byte) bool {
	o.Offset, o.Stream, o.Data = 0, 0, nil
	return fields(message, func(f field) bool {
		switch f.key() {
		case key(1, protowire.VarintType):
			o.Offset = f.number
		case key(2, protowire.VarintType):
			o.Stream = Stream(f.number)
		case key(3, protowire.BytesType):
			o.Data = f.bytes
		default:
			return false
		}
		return true
	})
}

// readPlain reads counted input.
func (r *AttachRequest) readPlain(message []byte) bool {
	return fields(message, func(f field) bool {
		if f.key() != key(7, protowire.BytesType) || r.Message != nil {
			return false
		}
		in := &Input{}
		r.Message = &AttachRequest_Input{Input: in}
		return in.readPlain(f.bytes)
	})
}

// appendPlain writes counted input.
func (r *AttachRequest) appendPlain(encoded []byte) ([]byte, bool) {
	message, ok := r.Message.(*AttachRequest_Input)
	if !ok || message.Input == nil || r.InputId != "" || len(r.unknownFields) > 0 || len(message.Input.unknownFields) > 0 {
		return nil, false
	}
	in := message.Input
	inner := appendUnlessZero(make([]byte, 0, ordinaryBytes+len(in.Data)), 1, in.Offset)
	if len(in.Data) > 0 {
		inner = appendBytes(inner, 2, in.Data)
	}
	inner = appendUnlessZero(inner, 3, protowire.EncodeBool(in.End))
	return appendBytes(encoded, 7, inner), true
}

func (in *Input) readPlain(message []byte) bool {
	return fields(message, func(f field) bool {
		switch f.key() {
		case key(1, protowire.VarintType):
			in.Offset = f.number
		case key(2, protowire.BytesType):
			in.Data = bytes.Clone(f.bytes)
		case key(3, protowire.VarintType):
			in.End = f.number != 0
		default:
			return false
		}
		return true
	})
}
