package wire

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

func TestAnswers(t *testing.T) {
	output := func(data string) *AttachResponse_Output {
		return &AttachResponse_Output{Output: &Output{Offset: 7, Stream: Stream_STREAM_STDERR, Data: []byte(data)}}
	}
	answers := []*AttachResponse{
		{Message: &AttachResponse_Process{Process: &Process{Id: 1234}}, InputTaken: new(uint64(3))},
		{Message: output("some")},
		{Message: output("more"), InputTaken: new(uint64(1 << 40)), InputClosed: true},
		{Message: output(string(bytes.Repeat([]byte("x"), 20000)))},
		{Message: &AttachResponse_Output{Output: &Output{}}},
		{InputTaken: new(uint64(5))},
		{Message: &AttachResponse_Gap{Gap: &Gap{From: 1, To: 2}}},
		{},
		{Message: output("last"), Denials: []*Denial{{Rule: "r"}}},
		{Message: output("last")},
		{Message: &AttachResponse_Exit{Exit: &ExitRecord{ExitCode: 3}}},
	}
	var received Answer // one for all, as a stream uses it
	for _, want := range answers {
		known, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := appendMessage(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		for name, data := range map[string][]byte{"package proto": known, "us": ours} {
			if err := unmarshal(data, &received); err != nil {
				t.Fatalf("%v, written by %s: %v", want, name, err)
			}
			if diff := cmp.Diff(want, &received.AttachResponse, protocmp.Transform()); diff != "" {
				t.Errorf("written by %s (-want +got):\n%s", name, diff)
			}
		}
	}
	encoded, ok := answers[2].appendPlain(nil)
	if !ok || !received.readPlain(encoded) {
		t.Error("output is left to package proto")
	}
	if request, ok := (&AttachRequest{Message: &AttachRequest_Input{Input: &Input{Data: []byte("x")}}}).appendPlain(nil); !ok || !new(AttachRequest).readPlain(request) {
		t.Error("input is left to package proto")
	}
}

// FuzzAnswer holds that an answer is what protobuf's own code makes of the same bytes.
func FuzzAnswer(f *testing.F) {
	for _, m := range []*AttachResponse{
		{Message: &AttachResponse_Output{Output: &Output{Offset: 1, Data: []byte("x")}}, InputTaken: new(uint64(1))},
		{Message: &AttachResponse_Gap{Gap: &Gap{To: 1}}, InputClosed: true},
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
		var want AttachResponse
		wantErr := proto.Unmarshal(data, &want)
		var got Answer
		err := unmarshal(data, &got)
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("error %v, want %v", err, wantErr)
		}
		if diff := cmp.Diff(&want, &got.AttachResponse, protocmp.Transform()); err == nil && diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
