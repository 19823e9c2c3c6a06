package unifiedexec

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

func put(t *testing.T, f *Feed, offset int, data string, end bool) {
	t.Helper()
	if err := f.Put(testContext(t), uint64(offset), []byte(data), end); err != nil {
		t.Fatalf("Put(%d, %q, %v): %v", offset, data, end, err)
	}
}

func TestFeedTakesEachByteOnce(t *testing.T) {
	e := newEngine(t, Config{})
	for _, tty := range []bool{false, true} {
		script := "echo up; cat"
		if tty {
			script = "stty -echo -onlcr; " + script
		}
		p := launchTool(t, e, Command{Script: script, Stdin: StdinOpen, TTY: tty}, "up\n")
		f := p.Feed("client")
		put(t, f, 0, "one\n", false)
		put(t, f, 0, "one\n", false)
		put(t, f, 2, "e\ntwo\n", false)
		if p.Feed("client") != f || p.Feed("other") == f || !f.Welcome() {
			t.Error("the feed is not the client's")
		}
		put(t, f, 4, "two\nthree\n", true)
		put(t, f, 0, "one\n", false)
		put(t, f, 14, "", true)
		got := readAll(t, p, ReaderOptions{}, 0)
		if want := "up\none\ntwo\nthree\n"; got != want {
			t.Errorf("tty=%v: %q, want %q", tty, got, want)
		}
		if n, _ := f.Taken(); n != 14 {
			t.Errorf("tty=%v: taken %d", tty, n)
		}
	}
}

func TestFeedErrors(t *testing.T) {
	e := newEngine(t, Config{})
	p := start(t, e, Command{Script: "cat; sleep 300", Stdin: StdinOpen})
	f := p.Feed("client")
	put(t, f, 0, "abc", false)
	var field *FieldError
	if err := f.Put(testContext(t), 4, []byte("e"), false); !errors.As(err, &field) || field.Field != "input.offset" {
		t.Errorf("a hole: %v", err)
	}
	put(t, f, 3, "", true)
	if err := f.Put(testContext(t), 3, []byte("d"), false); !errors.As(err, &field) || field.Field != "input.data" {
		t.Errorf("after the end: %v", err)
	}
	other := p.Feed("other")
	if err := other.Put(testContext(t), 0, []byte("x"), false); !errors.Is(err, ErrStdinClosed) {
		t.Errorf("another client after the end: %v", err)
	}
	for _, c := range []Command{{Script: "sleep 300"}, {Script: "sleep 300", Stdin: StdinData}} {
		none := start(t, e, c).Feed("client")
		if err := none.Put(testContext(t), 0, []byte("x"), false); !errors.Is(err, ErrStdinClosed) || none.Welcome() {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A process that closed its input takes what is in the pipe, and the feed says that it takes no more.
func TestFeedOfAClosedInput(t *testing.T) {
	e := newEngine(t, Config{})
	p := launchTool(t, e, Command{Script: "exec <&-; echo up; exec sleep 300", Stdin: StdinOpen}, "up")
	f := p.Feed("client")
	changed, stop := f.Watch(1)
	defer stop()
	if err := f.Put(testContext(t), 0, []byte("x"), false); !errors.Is(err, ErrStdinClosed) {
		t.Errorf("Put: %v", err)
	}
	select {
	case <-changed:
	case <-time.After(patience):
		t.Error("nobody was told")
	}
	if n, closed := f.Taken(); n != 0 || !closed {
		t.Errorf("taken %d, closed %v", n, closed)
	}
	if p.Info().StdinOpen {
		t.Error("the process still counts as one that reads")
	}
}

// Who watches for so many bytes at a time is not woken for less.
func TestFeedWatchedInSteps(t *testing.T) {
	e := newEngine(t, Config{})
	f := start(t, e, Command{Script: "cat >/dev/null", Stdin: StdinOpen}).Feed("client")
	changed, stop := f.Watch(64)
	defer stop()
	for at := range 1000 {
		if err := f.Put(testContext(t), uint64(at), []byte("x"), false); err != nil {
			t.Fatal(err)
		}
		if taken, _ := f.Taken(); taken != uint64(at)+1 {
			t.Fatalf("%d taken, want %d", taken, at+1)
		}
		if told := len(changed) > 0; told != ((at+1)%64 == 0) {
			t.Fatalf("told %v after %d bytes", told, at+1)
		}
		if len(changed) > 0 {
			<-changed
		}
	}
}

// However pieces are sent again and by however many at once, the process reads each byte once.
func TestFeedFromManySides(t *testing.T) {
	e := newEngine(t, Config{})
	const size = 1 << 20
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(rand.N(256))
	}
	p := start(t, e, Command{Script: "cat", Stdin: StdinOpen})
	var senders sync.WaitGroup
	for range 3 {
		senders.Go(func() {
			f := p.Feed("client")
			for at := 0; at < size; {
				n := min(1+rand.N(20_000), size-at)
				if err := f.Put(testContext(t), uint64(at), bytes.Clone(data[at:at+n]), at+n == size); err != nil {
					t.Error(err)
					return
				}
				if at += n; rand.N(4) == 0 {
					at -= rand.N(n + 1)
				}
			}
		})
	}
	got := readAll(t, p, ReaderOptions{Lossless: true}, 0)
	senders.Wait()
	if got != string(data) {
		t.Errorf("%d bytes came back of %d, or others", len(got), size)
	}
}

func TestFeedsAreBounded(t *testing.T) {
	e := newEngine(t, Config{})
	p := start(t, e, Command{Script: "cat", Stdin: StdinOpen})
	watched := p.Feed("watched")
	_, stop := watched.Watch(1)
	defer stop()
	oldest := p.Feed("0")
	for i := range 2 * maxFeeds {
		p.Feed(fmt.Sprint(i))
	}
	if len(p.feeds) > maxFeeds {
		t.Errorf("%d feeds are kept", len(p.feeds))
	}
	if p.Feed("watched") != watched {
		t.Error("one that is in use was forgotten")
	}
	if p.Feed("0") == oldest {
		t.Error("the oldest is still known")
	}
}
