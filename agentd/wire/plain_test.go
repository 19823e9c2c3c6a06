package wire

import (
	"math"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// plainSeeds are messages with every field that is read and written field by field, and some with others.
func plainSeeds() []proto.Message {
	least := int64(math.MinInt64)
	return []proto.Message{
		&ExecCommandRequest{}, &ExecCommandRequest{Command: &Command{}},
		&ExecCommandRequest{
			Command:     &Command{Program: &Command_Script{Script: "ls"}, Workdir: "w", Tty: true, Shell: "bash", Login: new(false)},
			YieldTimeMs: &least, MaxOutputTokens: new(int64(0)),
		},
		&ExecCommandRequest{Command: &Command{Program: &Command_Argv{Argv: &Argv{Args: []string{"a", "", "é"}}}, Login: new(true)}},
		&ExecCommandRequest{Command: &Command{Program: &Command_Argv{Argv: &Argv{}}, Env: map[string]string{"A": "b"}}, OneShot: true},
		&ToolResult{},
		&ToolResult{
			ChunkId: "c", WallTimeSeconds: math.Copysign(0, -1), ExitCode: new(int32(-1)), SessionId: new(int32(0)), OriginalTokenCount: -5, Output: "o",
			Exit: &ExitRecord{
				Reason: ExitReason_EXIT_REASON_POLICY, ExitCode: -7, Signal: "SIGKILL", Message: "m", MaxRssBytes: -1,
				StartTime: &timestamppb.Timestamp{Seconds: -1, Nanos: 5}, EndTime: &timestamppb.Timestamp{},
				UserTime: &durationpb.Duration{Nanos: -5}, SystemTime: &durationpb.Duration{Seconds: 3},
			},
		},
		&ToolResult{Exit: &ExitRecord{}, Notices: []string{"n"}, Denials: []*Denial{{Rule: "r"}}},
		&AttachRequest{}, &AttachRequest{Message: &AttachRequest_Input{Input: &Input{}}},
		&AttachRequest{Message: &AttachRequest_Input{Input: &Input{Offset: 1 << 40, Data: []byte("\xff"), End: true}}},
		&AttachRequest{Message: &AttachRequest_Input{Input: &Input{Data: []byte("x")}}, InputId: "i"},
		&AttachRequest{Message: &AttachRequest_Stdin{Stdin: []byte("x")}},
		&AttachResponse{}, &AttachResponse{InputTaken: new(uint64(0))},
		&AttachResponse{Message: &AttachResponse_Output{Output: &Output{Offset: 1, Stream: -1, Data: []byte("\xff")}}, InputTaken: new(uint64(0))},
		&AttachResponse{Message: &AttachResponse_Output{Output: &Output{}}, InputClosed: true, Denials: []*Denial{{Rule: "r"}}},
	}
}

// TestPlainMessages: what is ordinary is read and written without package proto, and says the same.
func TestPlainMessages(t *testing.T) {
	for i, message := range plainSeeds() {
		known, err := proto.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := appendMessage(nil, message)
		if err != nil {
			t.Fatal(err)
		}
		for name, encoded := range map[string][]byte{"package proto": known, "us": ours} {
			got := message.ProtoReflect().New().Interface()
			if err := unmarshal(encoded, got); err != nil || !proto.Equal(message, got) {
				t.Errorf("message %d, written by %s: read as %v, %v, want %v", i, name, got, err, message)
			}
		}
	}
	ordinary := plainSeeds()[2].(*ExecCommandRequest)
	encoded, ok := ordinary.appendPlain(nil)
	if !ok || !new(ExecCommandRequest).readPlain(encoded) {
		t.Error("an ordinary request is left to package proto")
	}
	result := &ToolResult{Output: "o", Exit: &ExitRecord{EndTime: timestamppb.Now()}}
	if encoded, ok = result.appendPlain(nil); !ok || !new(ToolResult).readPlain(encoded) {
		t.Error("an ordinary result is left to package proto")
	}
	for name, message := range map[string]proto.Message{
		"script": &ExecCommandRequest{Command: &Command{Program: &Command_Script{Script: "\xff"}}},
		"argv":   &ExecCommandRequest{Command: &Command{Program: &Command_Argv{Argv: &Argv{Args: []string{"\xff"}}}}},
		"output": &ToolResult{Output: "\xff"}, "message": &ToolResult{Exit: &ExitRecord{Message: "\xff"}},
	} {
		if _, err := appendMessage(nil, message); err == nil {
			t.Errorf("%s that is not UTF-8 was written", name)
		}
	}
}

// FuzzPlain: whatever is read, package proto reads the same, and what is written it reads as it was.
func FuzzPlain(f *testing.F) {
	for _, message := range plainSeeds() {
		encoded, err := proto.Marshal(message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	f.Add([]byte("\x0a\x00\x0a\x00"))
	f.Add([]byte("\x0a\x03\x0a\x01\xff"))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		for _, kind := range []proto.Message{&ExecCommandRequest{}, &ToolResult{}, &AttachRequest{}, &AttachResponse{}} {
			want := kind.ProtoReflect().New().Interface()
			wantErr := proto.Unmarshal(encoded, want)
			if plain, ok := kind.(plainReader); ok && plain.readPlain(encoded) && (wantErr != nil || !proto.Equal(want, kind)) {
				t.Fatalf("read as %v, and by package proto as %v, %v", kind, want, wantErr)
			}
			if wantErr != nil {
				continue
			}
			if result, ok := want.(*ToolResult); ok {
				forgetUnknown(result.GetExit())
			}
			written, err := appendMessage(nil, want)
			got := kind.ProtoReflect().New().Interface()
			if err == nil {
				err = proto.Unmarshal(written, got)
			}
			if err != nil || !proto.Equal(want, got) {
				t.Fatalf("%v was written as %x: %v, %v", want, written, got, err)
			}
		}
	})
}

// forgetUnknown drops fields that times have not: they are not written, and nothing of ours makes them.
func forgetUnknown(exit *ExitRecord) {
	for _, time := range []proto.Message{exit.GetStartTime(), exit.GetEndTime(), exit.GetUserTime(), exit.GetSystemTime()} {
		if time.ProtoReflect().IsValid() {
			time.ProtoReflect().SetUnknown(nil)
		}
	}
}
