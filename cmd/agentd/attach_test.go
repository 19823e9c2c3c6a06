package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"execsession.dev/agentd/wire"
)

func TestLocalAttach(t *testing.T) {
	l := startLocal(t)
	stream := attachStart(t, l, script("echo out; echo err >&2; pwd; exit 7"))
	got := receive(stream)
	if !errors.Is(got.err, io.EOF) {
		t.Fatalf("the stream ended with %v", got.err)
	}
	if want := "out\n" + l.workspace + "\n"; got.streams[wire.Stream_STREAM_STDOUT] != want {
		t.Errorf("stdout is %q, want %q", got.streams[wire.Stream_STREAM_STDOUT], want)
	}
	if want := "err\n"; got.streams[wire.Stream_STREAM_STDERR] != want {
		t.Errorf("stderr is %q, want %q", got.streams[wire.Stream_STREAM_STDERR], want)
	}
	if got.exit.GetReason() != wire.ExitReason_EXIT_REASON_EXITED || got.exit.GetExitCode() != 7 {
		t.Errorf("the exit record is %v, want exit code 7", got.exit)
	}
}

func TestLocalAttachFeeds(t *testing.T) {
	l := startLocal(t)
	command := argv("cat")
	command.Stdin = wire.StdinMode_STDIN_MODE_OPEN
	stream := attachStart(t, l, command)
	// More than every buffer on the way: this works only if back-pressure does.
	input := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	go func() {
		for chunk := range splitBytes(input, 8192) {
			if stream.Send(&wire.AttachRequest{Message: &wire.AttachRequest_Stdin{Stdin: chunk}}) != nil {
				return // the receiver tells why
			}
		}
		_ = stream.Send(&wire.AttachRequest{Message: &wire.AttachRequest_StdinEof{StdinEof: &wire.StdinEOF{}}})
	}()
	got := receive(stream)
	if got.exit.GetExitCode() != 0 || got.exit.GetReason() != wire.ExitReason_EXIT_REASON_EXITED {
		t.Errorf("the exit record is %v (stream error %v)", got.exit, got.err)
	}
	if !bytes.Equal(got.output, input) || len(got.gaps) != 0 {
		t.Errorf("%d bytes came back of %d, with gaps %v", len(got.output), len(input), got.gaps)
	}
}

// A run must lose nothing, however early and fast the command writes.
func TestLocalAttachLosesNothing(t *testing.T) {
	l := startLocal(t)
	const size = 64 << 20 // many times what the engine keeps
	for range 3 {
		got := receiveKeeping(attachStart(t, l, argv("head", "-c", fmt.Sprint(size), "/dev/zero")), 0)
		if got.received != size || len(got.gaps) != 0 || got.exit.GetExitCode() != 0 {
			t.Errorf("%d bytes came of %d, with gaps %v and %v (error %v)", got.received, size, got.gaps, got.exit, got.err)
		}
	}
}

// Nor does it lose anything because agentd did not run for a while, as when a machine or a container is paused.
func TestLocalAttachOutlivesAPause(t *testing.T) {
	l := startLocal(t)
	const size = 16 << 20
	stream := attachStart(t, l, argv("head", "-c", fmt.Sprint(size), "/dev/zero"))
	received := 0
	for received < 2<<20 {
		response, err := stream.Recv()
		if err != nil || response.GetGap() != nil {
			t.Fatal(response, err)
		}
		received += len(response.GetOutput().GetData())
	}
	time.Sleep(10 * time.Millisecond) // The command fills what is between it and this reader, and waits.
	if err := l.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if err := l.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	got := receiveKeeping(stream, 0)
	if received += got.received; received != size || len(got.gaps) != 0 || got.exit.GetExitCode() != 0 {
		t.Errorf("%d bytes came of %d, with gaps %v and %v (error %v)", received, size, got.gaps, got.exit, got.err)
	}
}

func splitBytes(data []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(data) > 0 {
			n := min(size, len(data))
			if !yield(data[:n]) {
				return
			}
			data = data[n:]
		}
	}
}

func TestLocalAttachTerminal(t *testing.T) {
	l := startLocal(t)
	command := script(`stty size; read x; stty size; trap 'echo got INT; exit 3' INT; echo ready; while :; do sleep 0.1; done`)
	command.Tty = true
	stream := attachStart(t, l, command)
	send(t, stream, &wire.AttachRequest{Message: &wire.AttachRequest_Resize{Resize: &wire.WindowSize{Rows: 30, Columns: 100}}})
	send(t, stream, &wire.AttachRequest{Message: &wire.AttachRequest_Stdin{Stdin: []byte("go\n")}})
	var text string
	for !strings.Contains(text, "ready") {
		response, err := stream.Recv()
		if err != nil {
			t.Fatalf("the stream ended with %v after %q", err, text)
		}
		text += string(response.GetOutput().GetData())
	}
	send(t, stream, &wire.AttachRequest{Message: &wire.AttachRequest_Signal{Signal: &wire.SignalName{Name: "SIGINT"}}})
	got := receive(stream)
	text += string(got.output)
	if !strings.Contains(text, "30 100") || !strings.Contains(text, "got INT") {
		t.Errorf("the terminal's output is %q, want the new size and the interrupt", text)
	}
	if got.exit.GetExitCode() != 3 {
		t.Errorf("the exit record is %v, want code 3", got.exit)
	}
}

func TestLocalClientGoneLeavesCommandRunning(t *testing.T) {
	l := startLocal(t)
	stream := attachStart(t, l, script("echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 5"))
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	id := first.GetProcess().GetId()
	if err := stream.CloseSend(); err != nil { // half-closed: the output still comes
		t.Fatal(err)
	}
	if response, err := stream.Recv(); err != nil || string(response.GetOutput().GetData()) != "one\n" {
		t.Fatalf("after half-closing came %v, %v, want the output", response, err)
	}
	// Another client joins where the first one was, and gets the rest.
	second, err := l.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, second, &wire.AttachRequest{Message: &wire.AttachRequest_Open{Open: &wire.AttachOpen{ProcessId: id, FromOffset: 4}}})
	if err := os.WriteFile(filepath.Join(l.workspace, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got := receive(second)
	if string(got.output) != "two\n" || got.exit.GetExitCode() != 5 {
		t.Errorf("the second client got %q and %v (error %v)", got.output, got.exit, got.err)
	}
	// What is kept can be read without following.
	third, err := l.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, third, &wire.AttachRequest{Message: &wire.AttachRequest_Open{Open: &wire.AttachOpen{ProcessId: id, NoFollow: true}}})
	if got := receive(third); string(got.output) != "one\ntwo\n" || got.exit.GetExitCode() != 5 {
		t.Errorf("the third client got %q and %v (error %v)", got.output, got.exit, got.err)
	}
}
