package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A client that does not keep to the protocol loses its connection and nothing else happens.
func TestStrangeClients(t *testing.T) {
	_, socket := serveStub(t, newBlock().exec)
	head, err := callHead(0, Agent_ExecCommand_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	call, err := newFrame(frameCall, 7, head, &ExecCommandRequest{Justification: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for name, said := range map[string]string{
		"no preface":              "GET / HTTP/1.1\r\nHost: example\r\n\r\n",
		"a frame too large":       Preface + strings.Repeat("\xff", 20),
		"a frame too small":       Preface + "\x00\x00\x00\x08" + strings.Repeat("x", 8),
		"a kind that is none":     Preface + "\x00\x00\x00\x09" + strings.Repeat("x", 9),
		"a call without a method": Preface + "\x00\x00\x00\x09" + strings.Repeat("\x00", 8) + "\x01",
		"an answer":               Preface + "\x00\x00\x00\x09" + strings.Repeat("\x00", 8) + "\x03",
		"half a frame, then none": Preface + string(call[:len(call)-1]),
	} {
		conn := dialSocket(t, socket)
		if err := conn.SetDeadline(time.Now().Add(testPatience)); err != nil {
			t.Fatal(err)
		}
		// One byte at a time: nothing depends on how much comes at once.
		if _, err := io.Copy(conn, iotest.OneByteReader(strings.NewReader(said))); err != nil && !strings.Contains(err.Error(), "pipe") {
			t.Errorf("%s: %v", name, err)
		}
		_ = conn.(*net.UnixConn).CloseWrite()
		if _, err := io.ReadAll(conn); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: the connection does not end: %v", name, err)
		}
		_ = conn.Close()
	}
	conn := dialSocket(t, socket)
	defer conn.Close()
	if _, err := conn.Write(append(append([]byte(Preface), call...), call...)); err != nil {
		t.Fatal(err)
	}
	in := frameReader{from: conn, most: 1 << 20}
	answer, err := in.next()
	if err != nil || answer.kind != frameFailure || !bytes.Contains(answer.body, []byte("call 7 has no answer yet")) {
		t.Errorf("two calls of one number: %q, %v", answer.body, err)
	}
}

// However a stream is cut into reads, and whatever deadline comes in between, the frames are the same.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x09012345678\x00\x00\x00\x0c0123456789ab"), uint8(1))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), uint8(3))
	f.Add([]byte("\x00"), uint8(2))
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		all := func(from io.Reader) (frames []string, end string) {
			in := frameReader{from: from, most: 100}
			for {
				frame, err := in.next()
				if errors.Is(err, iotest.ErrTimeout) {
					continue
				}
				if err != nil {
					return frames, err.Error()
				}
				if len(frame.body) > 100 {
					t.Fatalf("a frame of %d bytes", len(frame.body))
				}
				frames = append(frames, fmt.Sprint(frame.call, frame.kind, string(frame.body)))
				if _, _, request, err := parseCall(frame.body); err == nil && len(request) > len(frame.body)-callBytes {
					t.Fatalf("a request of %d bytes in a frame of %d", len(request), len(frame.body))
				}
			}
		}
		want, wantEnd := all(bytes.NewReader(stream))
		got, gotEnd := all(&choppy{rest: stream, step: int(step)})
		if diff := cmp.Diff(want, got); diff != "" || wantEnd != gotEnd {
			t.Errorf("at once: %s; in pieces: %s; %s", wantEnd, gotEnd, diff)
		}
	})
}

// choppy gives few bytes at a time, and a timeout before each.
type choppy struct {
	rest  []byte
	step  int
	timed bool
}

func (c *choppy) Read(p []byte) (int, error) {
	if c.timed = !c.timed; c.timed {
		return 0, iotest.ErrTimeout
	}
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.rest[:min(len(c.rest), max(c.step, 1))])
	c.rest = c.rest[n:]
	return n, nil
}
