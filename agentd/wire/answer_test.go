package wire_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"execsession.dev/agentd/wire"
)

func TestAnswers(t *testing.T) {
	output := func(data string) *wire.AttachResponse_Output {
		return &wire.AttachResponse_Output{Output: &wire.Output{Offset: 7, Stream: wire.Stream_STREAM_STDERR, Data: []byte(data)}}
	}
	answers := []*wire.AttachResponse{
		{Message: &wire.AttachResponse_Process{Process: &wire.Process{Id: 1234}}, InputTaken: new(uint64(3))},
		{Message: output("some")},
		{Message: output("more"), InputTaken: new(uint64(1 << 40)), InputClosed: true},
		{Message: output(string(bytes.Repeat([]byte("x"), 20000)))},
		{Message: &wire.AttachResponse_Output{Output: &wire.Output{}}},
		{InputTaken: new(uint64(5))},
		{Message: &wire.AttachResponse_Gap{Gap: &wire.Gap{From: 1, To: 2}}},
		{},
		{Message: output("last")},
		{Message: &wire.AttachResponse_Exit{Exit: &wire.ExitRecord{ExitCode: 3}}},
	}
	codec := wire.NewAnswerCodec()
	var received wire.Answer // one for all, as a stream uses it
	defer received.Free()
	for _, want := range answers {
		data, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		for name, pieces := range map[string]mem.BufferSlice{
			"whole":     {mem.SliceBuffer(data)},
			"in pieces": {mem.SliceBuffer(data[:len(data)/2]), mem.SliceBuffer(data[len(data)/2:])},
		} {
			if err := codec.Unmarshal(pieces, &received); err != nil {
				t.Fatalf("%v, %s: %v", want, name, err)
			}
			if diff := cmp.Diff(want, &received.AttachResponse, protocmp.Transform()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}

// FuzzAnswer holds that an answer is what protobuf's own code makes of the same bytes.
func FuzzAnswer(f *testing.F) {
	for _, m := range []*wire.AttachResponse{
		{Message: &wire.AttachResponse_Output{Output: &wire.Output{Offset: 1, Data: []byte("x")}}, InputTaken: new(uint64(1))},
		{Message: &wire.AttachResponse_Gap{Gap: &wire.Gap{To: 1}}, InputClosed: true},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		// Fields that come twice are merged.
		f.Add(append(data, data...))
		f.Add(data[:len(data)-1])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want wire.AttachResponse
		wantErr := proto.Unmarshal(data, &want)
		var got wire.Answer
		defer got.Free()
		err := wire.NewAnswerCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &got)
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("error %v, want %v", err, wantErr)
		}
		if diff := cmp.Diff(&want, &got.AttachResponse, protocmp.Transform()); err == nil && diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
