package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"execsession.dev/agentd/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func newTestClient(t *testing.T, agent *scriptedAgent, options ...Option) *Client {
	t.Helper()
	c := New(agent.dial, options...)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing the client: %v", err)
		}
	})
	return c
}

func numberedLines(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.Bytes()
}

// expected splits output the way the scripted agent tags it.
func expected(output []byte, chunk int) (stdout, stderr string) {
	var streams [2]strings.Builder
	i := 0
	for part := range slices.Chunk(output, chunk) {
		streams[i%2].Write(part)
		i++
	}
	return streams[0].String(), streams[1].String()
}

var command = &wire.Command{Program: &wire.Command_Script{Script: "true"}}

func TestRunSurvivesBrokenConnections(t *testing.T) {
	cases := map[string]struct {
		reason   string
		cutAfter int64
	}{
		"NeverCut": {reason: "The plain case: streams apart, code from the record."},
		"CutOften": {reason: "Every 30 KB the connection breaks; no byte may be lost or doubled.", cutAfter: 30_000},
		"CutEarly": {reason: "A cut within the first messages after the start.", cutAfter: 4_500},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			agent := newScriptedAgent(t)
			agent.output, agent.cutAfter = numberedLines(20_000), tc.cutAfter
			if tc.cutAfter > 0 && tc.cutAfter < 10_000 {
				agent.output = agent.output[:20_000]
			}
			c := newTestClient(t, agent)
			var stdout, stderr bytes.Buffer
			breaks, resumes := 0, 0
			record, err := c.Run(testContext(t), command, Streams{
				Stdout: &stdout, Stderr: &stderr,
				OnBreak:  func(error) { breaks++ },
				OnResume: func() { resumes++ },
				OnGap:    func(from, to uint64) { t.Errorf("%s: gap %d..%d", tc.reason, from, to) },
			})
			if err != nil {
				t.Fatalf("%s: Run: %v", tc.reason, err)
			}
			if record.GetExitCode() != 7 || agent.starts.Load() != 1 {
				t.Errorf("%s: exit code %d after %d starts, want 7 after 1", tc.reason, record.GetExitCode(), agent.starts.Load())
			}
			wantOut, wantErr := expected(agent.output, agent.chunk)
			if stdout.String() != wantOut || stderr.String() != wantErr {
				t.Errorf("%s: got %d and %d bytes that differ from the %d and %d sent", tc.reason, stdout.Len(), stderr.Len(), len(wantOut), len(wantErr))
			}
			if (breaks > 0) != (tc.cutAfter > 0) || breaks != resumes {
				t.Errorf("%s: %d breaks, %d resumes", tc.reason, breaks, resumes)
			}
		})
	}
}

func TestRunReportsGap(t *testing.T) {
	agent := newScriptedAgent(t)
	agent.output, agent.dropped = numberedLines(1000), 2500
	var gaps []uint64
	var stdout bytes.Buffer
	_, err := newTestClient(t, agent).Run(testContext(t), command, Streams{
		Stdout: &stdout, Stderr: &stdout,
		OnGap: func(from, to uint64) { gaps = append(gaps, from, to) },
	})
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	if diff := cmp.Diff([]uint64{0, 2500}, gaps); diff != "" {
		t.Errorf("gaps (-want +got):\n%s", diff)
	}
	if got, want := stdout.String(), string(agent.output[2500:]); got != want {
		t.Errorf("got %d bytes after the gap, want %d", len(got), len(want))
	}
}

func TestRunWithoutRecord(t *testing.T) {
	gone := errors.New("pod \"p\" is gone")
	cases := map[string]struct {
		reason  string
		prepare func(*scriptedAgent)
		// onStarted runs once the client knows of the process.
		onStarted func(*scriptedAgent)
		processID int32
		in        string
	}{
		"StartAnswerLost": {
			reason:  "A start whose answer was lost is not sent again and not called a failure to start.",
			prepare: func(a *scriptedAgent) { a.onStart = func() { a.cut(nil) } },
			in:      "may or may not run",
		},
		"PodGone": {
			reason:    "A permanent dial error ends the attempts.",
			prepare:   func(a *scriptedAgent) { a.awaitInput = true },
			onStarted: func(a *scriptedAgent) { a.cut(Permanent(gone)) },
			processID: 1234,
			in:        gone.Error(),
		},
		"OutOfTime": {
			reason:    "Attempts are bounded.",
			prepare:   func(a *scriptedAgent) { a.awaitInput = true },
			onStarted: func(a *scriptedAgent) { a.cut(gone) },
			processID: 1234,
			in:        gone.Error(),
		},
		"UnknownAfterwards": {
			reason: "The agent no longer knows the process.",
			prepare: func(a *scriptedAgent) {
				a.awaitInput = true
				a.refuseOpen = refused(codes.NotFound, wire.ReasonUnknownProcess, "unknown process id 1234")
			},
			onStarted: func(a *scriptedAgent) { a.cut(nil) },
			processID: 1234,
			in:        "unknown process id 1234",
		},
		"AnotherProcess": {
			reason:  "After a restart of the agent the number may belong to another process.",
			prepare: func(a *scriptedAgent) { a.awaitInput = true },
			onStarted: func(a *scriptedAgent) {
				a.startAt = a.startAt.Add(time.Second)
				a.cut(nil)
			},
			processID: 1234,
			in:        "another process",
		},
		"NoRecordSent": {
			reason:    "The end of the stream is no end of the command.",
			prepare:   func(a *scriptedAgent) { a.exit = nil },
			processID: 1234,
			in:        "without a record",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			agent := newScriptedAgent(t)
			tc.prepare(agent)
			record, err := newTestClient(t, agent, ReconnectFor(time.Second)).Run(testContext(t), command, Streams{
				OnStart: func(*wire.Process) {
					if tc.onStarted != nil {
						tc.onStarted(agent)
					}
				},
			})
			var missing *NoExitRecordError
			if !errors.Is(err, ErrNoExitRecord) || !errors.As(err, &missing) {
				t.Fatalf("%s: got record %v and error %v, want ErrNoExitRecord", tc.reason, record, err)
			}
			if missing.ProcessID != tc.processID || !strings.Contains(err.Error(), tc.in) {
				t.Errorf("%s: got process %d and %q, want process %d and text with %q", tc.reason, missing.ProcessID, err, tc.processID, tc.in)
			}
			if n := agent.starts.Load(); n != 1 {
				t.Errorf("%s: started %d times", tc.reason, n)
			}
		})
	}
}

func TestRunNotStarted(t *testing.T) {
	agent := newScriptedAgent(t)
	agent.cut(errors.New("no route"))
	_, err := newTestClient(t, agent).Run(testContext(t), command, Streams{})
	var broken *ConnectionError
	if !errors.As(err, &broken) || !broken.Dialing || errors.Is(err, ErrNoExitRecord) {
		t.Fatalf("got %v, want a dialing ConnectionError: nothing can have been started", err)
	}
	if n := agent.dials.Load(); n != 1 {
		t.Errorf("dialed %d times, want once: the first connection is the caller's to wait for", n)
	}
}

func TestConnectionErrorSaysWhatTheOtherEndSaid(t *testing.T) {
	refusal := errors.New("agentd connect: refused")
	c := New(func(context.Context) (net.Conn, error) {
		mine, other := net.Pipe()
		_ = other.Close()
		return &failingConn{Conn: mine, err: refusal}, nil
	})
	defer c.Close()
	_, err := c.GetStatus(testContext(t))
	var broken *ConnectionError
	if !errors.As(err, &broken) || !broken.Dialing || !errors.Is(err, refusal) {
		t.Fatalf("got %v, want a dialing ConnectionError that wraps %v", err, refusal)
	}
}

type failingConn struct {
	net.Conn
	err error
}

func (c *failingConn) Read([]byte) (int, error) { return 0, c.err }

func TestInputReachesTheCommand(t *testing.T) {
	agent := newScriptedAgent(t)
	agent.awaitInput = true
	resize, signals := make(chan *wire.WindowSize), make(chan string)
	stdin, feeder := io.Pipe()
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		resize <- &wire.WindowSize{Rows: 30}
		signals <- "INT"
		_, _ = io.WriteString(feeder, "hello")
		_ = feeder.Close()
	}()
	record, err := newTestClient(t, agent).Run(testContext(t), command, Streams{Stdin: stdin, Resize: resize, Signals: signals})
	<-fed
	if err != nil || record.GetExitCode() != 7 {
		t.Fatalf("Run: %v, %v", record, err)
	}
	if diff := cmp.Diff([]string{"resize rows:30", "signal INT", "stdin hello", "eof"}, agent.notes()); diff != "" {
		t.Errorf("received (-want +got):\n%s", diff)
	}
}

func TestInputAfterABreak(t *testing.T) {
	cases := map[string]struct {
		reason  string
		tty     bool
		counts  []uint64
		wantErr string
		want    []string
	}{
		"Counted": {
			reason: "What the agent says that it did not take is sent again, and nothing else.",
			counts: []uint64{0, 3},
			want:   []string{"input 0 one false", "input 3 two false", "input 6  true"},
		},
		"CountedForgotten": {
			reason:  "An agent that says less than it said before would get a hole or the same again.",
			counts:  []uint64{0, 2},
			wantErr: "no longer knows how much of the input it took",
			want:    []string{"input 0 one false"},
		},
		"PipeMidway": {
			reason:  "A hole in the input would be taken for data.",
			wantErr: "how much of its 3 bytes arrived is not known",
			want:    []string{"stdin one"},
		},
		"Terminal": {
			reason: "Somebody sees what is missing and types on.",
			tty:    true,
			want:   []string{"stdin one", "stdin two", "eof"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			agent := newScriptedAgent(t)
			agent.awaitInput, agent.counts = true, tc.counts
			stdin, feeder := io.Pipe()
			resumed, ended, fed := make(chan struct{}), make(chan struct{}), make(chan struct{})
			told := make(chan struct{}, 8)
			go func() {
				defer close(fed)
				defer feeder.Close()
				_, _ = io.WriteString(feeder, "one")
				for len(agent.notes()) == 0 {
					time.Sleep(time.Millisecond)
				}
				if len(tc.counts) > 0 {
					<-told
				}
				agent.cut(nil)
				if tc.wantErr != "" {
					<-ended
					return
				}
				<-resumed
				_, _ = io.WriteString(feeder, "two")
			}()
			_, err := newTestClient(t, agent).Run(testContext(t), &wire.Command{Tty: tc.tty}, Streams{
				Stdin: stdin, OnResume: func() { close(resumed) }, OnGap: func(uint64, uint64) { told <- struct{}{} },
			})
			close(ended)
			<-fed
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (!errors.Is(err, ErrNoExitRecord) || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("%s: error %v, want text %q", tc.reason, err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, agent.notes()); diff != "" {
				t.Errorf("%s: received (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestInputSettles(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	cases := map[string]struct {
		reason string
		in     *input
		tty    bool
		wantOK bool
	}{
		"Nothing":   {reason: "Nothing was sent, so nothing can be missing.", in: &input{}, wantOK: true},
		"OnlyEnd":   {reason: "The end alone can be told again.", in: &input{ended: true, endSent: now}, wantOK: true},
		"Midway":    {reason: "The rest can not follow a hole.", in: &input{sent: 5}},
		"EndRecent": {reason: "The end may have been lost with the connection.", in: &input{sent: 5, ended: true, endSent: now.Add(-time.Second)}},
		"EndLong":   {reason: "A ping was answered since.", in: &input{sent: 5, ended: true, endSent: now.Add(-time.Minute)}, wantOK: true},
		"Counted":   {reason: "The agent says what is missing.", in: &input{sent: 5, counted: true}, wantOK: true},
		"Terminal":  {reason: "Somebody sees what is missing.", in: &input{sent: 5}, tty: true, wantOK: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if err := tc.in.salvage(tc.tty, now); (err == nil) != tc.wantOK {
				t.Errorf("%s: got %v", tc.reason, err)
			}
		})
	}
}

func TestErrorsAreTyped(t *testing.T) {
	agent := newScriptedAgent(t)
	c := newTestClient(t, agent)
	ctx := testContext(t)

	_, err := c.Start(ctx, command)
	var answered *Error
	if !errors.As(err, &answered) || answered.Field != "command.workdir" || answered.Code != codes.InvalidArgument {
		t.Errorf("Start: got %#v, want an *Error that names the field", err)
	}
	if got, want := err.Error(), `command.workdir: workdir "x" is not in the workspace`; got != want {
		t.Errorf("Start: got %q, want %q", got, want)
	}
	if _, err = c.Stop(ctx, 5, nil); Reason(err) != wire.ReasonUnknownProcess || err.Error() != "unknown process id 5" {
		t.Errorf("Stop: got %v with reason %q", err, Reason(err))
	}
	if _, err = c.ListProcesses(ctx); !errors.As(err, &answered) || answered.Code != codes.Unimplemented {
		t.Errorf("ListProcesses: got %v, want Unimplemented", err)
	}
}

func TestLostAnswerIsNotAskedForAgain(t *testing.T) {
	agent := newScriptedAgent(t)
	c := newTestClient(t, agent)
	_, err := c.ExecCommand(testContext(t), &wire.ExecCommandRequest{})
	var broken *ConnectionError
	if !errors.As(err, &broken) || broken.Dialing {
		t.Fatalf("got %v, want a ConnectionError after the request was sent", err)
	}
	if n := agent.starts.Load(); n != 1 {
		t.Errorf("executed %d times", n)
	}
	if _, err := c.GetStatus(testContext(t)); err != nil {
		t.Errorf("the next call dials again: %v", err)
	}
	if n := agent.dials.Load(); n != 2 {
		t.Errorf("dialed %d times, want 2", n)
	}
}

func TestDetaching(t *testing.T) {
	agent := newScriptedAgent(t)
	agent.awaitInput = true
	detached := errors.New("detached")
	ctx, cancel := context.WithCancelCause(testContext(t))
	_, err := newTestClient(t, agent).Run(ctx, command, Streams{OnStart: func(*wire.Process) { cancel(detached) }})
	if !errors.Is(err, detached) {
		t.Errorf("got %v, want the cause of the context", err)
	}
}

func TestChannels(t *testing.T) {
	cases := map[string]struct {
		reason  string
		options []Option
		want    int32
	}{
		"Two": {reason: "Bulk output must not delay calls.", want: 2},
		"One": {reason: "A socket pair can not be dialed twice.", options: []Option{OneConnection()}, want: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			agent := newScriptedAgent(t)
			c := newTestClient(t, agent, tc.options...)
			if _, err := c.GetStatus(testContext(t)); err != nil {
				t.Fatalf("GetStatus: %v", err)
			}
			if _, err := c.Run(testContext(t), command, Streams{}); err != nil {
				t.Fatalf("Run: %v", err)
			}
			if got := agent.dials.Load(); got != tc.want {
				t.Errorf("%s: dialed %d times, want %d", tc.reason, got, tc.want)
			}
		})
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

func TestOwnStreamsBreak(t *testing.T) {
	broken := errors.New("disk full")
	agent := newScriptedAgent(t)
	agent.output = numberedLines(10)
	c := newTestClient(t, agent)
	var own *StreamError
	if _, err := c.Run(testContext(t), command, Streams{Stdout: brokenWriter{broken}}); !errors.As(err, &own) || !errors.Is(err, broken) {
		t.Errorf("writing: got %v, want a *StreamError", err)
	}
	agent = newScriptedAgent(t)
	agent.awaitInput = true
	r, w := io.Pipe()
	_ = w.CloseWithError(broken)
	if _, err := newTestClient(t, agent).Run(testContext(t), command, Streams{Stdin: r}); !errors.As(err, &own) || !errors.Is(err, broken) {
		t.Errorf("reading: got %v, want a *StreamError: an input that broke off is not one that ended", err)
	}
	if notes := agent.notes(); slices.Contains(notes, "eof") {
		t.Errorf("the command was told the end of an input that broke off: %q", notes)
	}
}
