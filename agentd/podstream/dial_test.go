package podstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestMain(m *testing.M) {
	// client-go's heartbeat notices the end of its connection when it next pings, within 5 s.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start"))
}

var here = Target{Namespace: "ns", Pod: "here", Container: "workspace", Command: []string{"/bin/agentd", "connect"}}

func echo(stdin io.Reader, stdout, _ io.Writer) error {
	_, err := io.Copy(stdout, stdin)
	return err
}

func dialHere(t *testing.T, server *execServer) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	conn, err := Dial(ctx, server.start(t), here)
	// The end of the dialing context must not be the end of the connection.
	cancel()
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// exchange sees a byte go there and back. client-go's reader of a WebSocket leaves its
// streams open when the connection is closed before it first looked at it; so these tests
// close only what it has looked at.
func exchange(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := conn.Write([]byte{'x'}); err != nil {
		t.Fatalf("writing: %v", err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatalf("reading: %v", err)
	}
}

func TestConn(t *testing.T) {
	for name, spdyOnly := range map[string]bool{"WebSocket": false, "SPDY": true} {
		t.Run(name, func(t *testing.T) {
			server := &execServer{program: echo, spdyOnly: spdyOnly}
			conn := dialHere(t, server)
			sent := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
			written := make(chan error, 1)
			go func() {
				_, err := conn.Write(sent)
				written <- err
			}()
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("reading back %d bytes: %v", len(sent), err)
			}
			if err := <-written; err != nil {
				t.Errorf("writing: %v", err)
			}
			if got := server.spdys.Load() > 0; got != spdyOnly || server.webSocks.Load() != 1 {
				t.Errorf("%d WebSockets and %d SPDY connections", server.webSocks.Load(), server.spdys.Load())
			}
			query := server.query.Load().URL.Query()
			if !slices.Equal(query["command"], here.Command) || query.Get("container") != "workspace" || query.Get("tty") == "true" {
				t.Errorf("asked for %v", query)
			}
		})
	}
}

func TestOutlivesTheDialingDeadline(t *testing.T) {
	for name, spdyOnly := range map[string]bool{"WebSocket": false, "SPDY": true} {
		t.Run(name, func(t *testing.T) {
			config := (&execServer{program: echo, spdyOnly: spdyOnly}).start(t)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			conn, err := Dial(ctx, config, here)
			if err != nil {
				t.Fatalf("Dial: %v", err)
			}
			defer conn.Close()
			<-ctx.Done()
			got := make([]byte, 2)
			if _, err := conn.Write([]byte("hi")); err != nil {
				t.Fatalf("writing after the deadline of dialing: %v", err)
			}
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hi" {
				t.Errorf("reading after the deadline of dialing: %q, %v", got, err)
			}
		})
	}
}

func TestDeadline(t *testing.T) {
	conn := dialHere(t, &execServer{program: echo})
	exchange(t, conn)
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatalf("SetReadDeadline: %v", err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read: got %v, want a deadline error", err)
	}
}

func TestCloseUnblocksBothEnds(t *testing.T) {
	ended := make(chan struct{})
	conn := dialHere(t, &execServer{program: func(stdin io.Reader, stdout, _ io.Writer) error {
		defer close(ended)
		return echo(stdin, stdout, nil)
	}})
	exchange(t, conn)
	read := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		read <- err
	}()
	if err := conn.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := <-read; err == nil {
		t.Error("a pending Read returned no error")
	}
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("the program's input did not end")
	}
}

func TestEnds(t *testing.T) {
	cases := map[string]struct {
		reason  string
		program program
		want    []string
		wantEOF bool
	}{
		"Refusal": {
			reason: "What the program said explains the end.",
			program: func(_ io.Reader, _, stderr io.Writer) error {
				_, _ = io.WriteString(stderr, "agentd connect: refused:\npeer is a command\n")
				return errExit3
			},
			want: []string{"agentd connect: refused: peer is a command", "exit code 3"},
		},
		"Bounded": {
			reason: "A flood of errors is cut to its end.",
			program: func(_ io.Reader, _, stderr io.Writer) error {
				_, _ = io.WriteString(stderr, strings.Repeat("x", 3*maxStderr)+" the end")
				return errExit3
			},
			want: []string{"x the end"},
		},
		"Runtime": {
			reason:  "The kubelet's error says why nothing was started.",
			program: func(io.Reader, io.Writer, io.Writer) error { return errors.New("container not running") },
			want:    []string{"container not running"},
		},
		"Silence": {
			reason:  "A program that ended well and said nothing is an end of file.",
			program: func(io.Reader, io.Writer, io.Writer) error { return nil },
			wantEOF: true,
		},
	}
	for name, tc := range cases {
		for transport, spdyOnly := range map[string]bool{"WebSocket": false, "SPDY": true} {
			t.Run(name+transport, func(t *testing.T) {
				conn, err := Dial(t.Context(), (&execServer{program: tc.program, spdyOnly: spdyOnly}).start(t), here)
				// The program may have ended before Dial returned; its words must not be lost.
				if err == nil {
					defer conn.Close()
					_, err = io.ReadAll(conn)
					if tc.wantEOF && err != nil {
						t.Fatalf("%s: got %v, want io.EOF", tc.reason, err)
					}
				}
				for _, want := range tc.want {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: got %v, want text %q", tc.reason, err, want)
					}
				}
				if err != nil && len(err.Error()) > maxStderr+200 {
					t.Errorf("%s: an error of %d bytes", tc.reason, len(err.Error()))
				}
			})
		}
	}
}

func TestDialErrorKeepsItsType(t *testing.T) {
	gone := here
	gone.Pod = "gone"
	_, err := Dial(t.Context(), (&execServer{program: echo}).start(t), gone)
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `pod "gone"`) {
		t.Errorf("got %v, want a not-found error that names the pod", err)
	}
}

func TestDialIsBounded(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listening: %v", err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	config := (&execServer{program: echo}).start(t)
	config.Host = "http://" + silent.Addr().String()
	if _, err := Dial(ctx, config, here); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline of the context", err)
	}
}
