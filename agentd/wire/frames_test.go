package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

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
