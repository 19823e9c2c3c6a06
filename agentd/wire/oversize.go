package wire

import (
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// oversized is the error of a message that is too large. Of a request it names the largest field, so that whoever made
// it knows what to make smaller.
func oversized(kind byte, message proto.Message, bytes, most int) error {
	failed := status.Newf(codes.ResourceExhausted, "a message has %d bytes, and at most %d are taken", bytes, most)
	if kind != frameCall && kind != frameStream || message == nil {
		return failed.Err()
	}
	field, size := largestField(message.ProtoReflect())
	problem := fmt.Sprintf("%d bytes are too many: all of a request may have %d", size, most)
	named, err := status.New(codes.ResourceExhausted, field+": "+problem).WithDetails(&errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: problem}},
	})
	if err != nil {
		return failed.Err()
	}
	return named.Err()
}

// largestField finds the field that takes most, within messages too.
func largestField(message protoreflect.Message) (path string, bytes int) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name, size := string(field.Name()), fieldBytes(message, field, value)
		if size <= bytes {
			return true
		}
		path, bytes = name, size
		if field.Message() != nil && !field.IsList() && !field.IsMap() {
			if within, most := largestField(value.Message()); within != "" {
				path, bytes = name+"."+within, most
			}
		}
		return true
	})
	return path, bytes
}

// fieldBytes is the length of a text, and of everything else how much it takes in a message.
func fieldBytes(message protoreflect.Message, field protoreflect.FieldDescriptor, value protoreflect.Value) int {
	switch {
	case field.IsList() || field.IsMap():
	case field.Kind() == protoreflect.StringKind:
		return len(value.String())
	case field.Kind() == protoreflect.BytesKind:
		return len(value.Bytes())
	}
	alone := message.New()
	alone.Set(field, value)
	return proto.Size(alone.Interface())
}
