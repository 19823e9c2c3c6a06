package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"execsession.dev/agentd"
	"execsession.dev/agentd/client"
	"execsession.dev/agentd/config"
	"execsession.dev/agentd/wire"
)

// patience bounds every wait; the machine may be busy building.
const patience = 2 * time.Minute

// serve runs a real agent and gives the way to it.
func serve(t *testing.T) func(context.Context) (net.Conn, error) {
	t.Helper()
	// Start-up files of whoever runs the tests must not write into what is compared.
	shell := config.Shell{Login: config.LoginForbidden, Persistence: config.PersistenceNone}
	agent, err := agentd.New(agentd.Config{Workspace: t.TempDir(), Policy: config.DefaultPolicy(), Shell: shell, StopGrace: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- agent.Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) }
}

func newClient(t *testing.T, dial func(context.Context) (net.Conn, error)) *client.Client {
	t.Helper()
	c := client.New(dial)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing the client: %v", err)
		}
	})
	return c
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// fragile is a way to the agent whose connections break: after some bytes in a direction everything in it is lost,
// and a little later the connection is closed.
type fragile struct {
	dial func(context.Context) (net.Conn, error)
	// most is how much a connection may carry at most; made counts connections, breaks those that broke.
	most         int64
	made, breaks atomic.Int32
}

func (f *fragile) connect(ctx context.Context) (net.Conn, error) {
	conn, err := f.dial(ctx)
	if err != nil {
		return nil, err
	}
	// The first hundred bytes are the connection's own opening. On the first connection the start is confirmed too:
	// whether a command runs that nobody has confirmed is another question.
	least := int64(200)
	if f.made.Add(1) == 1 {
		least = 2000
	}
	return &fragileConn{
		Conn: conn, of: f,
		up: least + rand.Int64N(f.most), down: least + rand.Int64N(f.most),
	}, nil
}

type fragileConn struct {
	net.Conn
	of *fragile

	mu       sync.Mutex
	up, down int64
	broken   bool
}

// spend takes n bytes off a direction's allowance, and tells how many of them still pass.
func (c *fragileConn) spend(allowance *int64, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return 0
	}
	pass := min(int64(n), *allowance)
	if *allowance -= int64(n); *allowance <= 0 {
		c.broken = true
		c.of.breaks.Add(1)
		time.AfterFunc(rand.N(20*time.Millisecond), func() { _ = c.Close() })
	}
	return int(pass)
}

func (c *fragileConn) Write(p []byte) (int, error) {
	if pass := c.spend(&c.up, len(p)); pass > 0 {
		if n, err := c.Conn.Write(p[:pass]); err != nil {
			return n, err
		}
	}
	return len(p), nil
}

func (c *fragileConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil {
			return 0, err
		}
		if pass := c.spend(&c.down, n); pass > 0 {
			return pass, nil
		}
	}
}

func randomBytes(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rand.N(256))
	}
	return data
}

// unevenReader gives pieces of all sizes, with pauses that let a break happen in between.
type unevenReader struct{ from io.Reader }

func (r unevenReader) Read(p []byte) (int, error) {
	if rand.N(20) == 0 {
		time.Sleep(rand.N(5 * time.Millisecond))
	}
	return r.from.Read(p[:1+rand.N(len(p))])
}

// gate lets nothing be read before something was written.
type gate struct {
	io.Writer
	from   io.Reader
	once   sync.Once
	opened chan struct{}
}

func (g *gate) Write(p []byte) (int, error) {
	defer g.once.Do(func() { close(g.opened) })
	return g.Writer.Write(p)
}

func (g *gate) Read(p []byte) (int, error) {
	<-g.opened
	return g.from.Read(p)
}

func script(text string) *wire.Command_Script { return &wire.Command_Script{Script: text} }

// However often and wherever its connection breaks, a command reads every byte of its input once, and every byte that
// it writes comes back once.
func TestInputArrivesOnceOverBrokenConnections(t *testing.T) {
	dial := serve(t)
	open := func(text string) *wire.Command {
		return &wire.Command{Program: script(text), Stdin: wire.StdinMode_STDIN_MODE_OPEN}
	}
	const keys = 160_000
	var breaks atomic.Int32
	cases := map[string]struct {
		reason  string
		command *wire.Command
		data    []byte
		// first is what the command writes before it reads.
		first string
		most  int64
	}{
		"Bulk": {
			reason:  "more than may be on its way, so that it is told what was taken",
			command: open("cat"), data: randomBytes(1_200_000), most: 400_000,
		},
		"Little": {
			reason:  "so little that only the next connection tells what was taken",
			command: open("cat"), data: randomBytes(60_000), most: 30_000,
		},
		"Slow": {
			reason:  "input waits for the command while connections come and go",
			command: open(`while IFS= read -r line; do echo "$line"; done`),
			data:    []byte(strings.Repeat("0123456789abcde\n", 15_000)), most: 60_000,
		},
		"Terminal": {
			reason:  "keys that are typed twice are as wrong as those that are lost",
			command: &wire.Command{Program: script(fmt.Sprintf("stty raw -echo; printf r; head -c %d", keys)), Tty: true},
			data:    randomBytes(keys), first: "r", most: 40_000,
		},
	}
	for name, tc := range cases {
		for range 8 {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := &fragile{dial: dial, most: tc.most}
				var out bytes.Buffer
				console := &gate{Writer: &out, from: unevenReader{bytes.NewReader(tc.data)}, opened: make(chan struct{})}
				if tc.first == "" {
					console.once.Do(func() { close(console.opened) })
				}
				record, err := newClient(t, f.connect).Run(within(t), tc.command, client.Streams{
					Stdin: console, Stdout: console, Stderr: console,
					OnGap: func(from, to uint64) { t.Errorf("%d bytes of the output are lost", to-from) },
				})
				if err != nil || record.GetExitCode() != 0 {
					t.Fatalf("%s: %v, %v after %d breaks", tc.reason, record, err, f.breaks.Load())
				}
				if got, want := out.String(), tc.first+string(tc.data); got != want {
					at := common(got, want)
					t.Errorf("%s: %d bytes came back of %d, after %d breaks; from %d on %q, want %q", tc.reason,
						len(got), len(want), f.breaks.Load(), at, got[at:min(at+300, len(got))], want[at:min(at+20, len(want))])
				}
				breaks.Add(f.breaks.Load())
			})
		}
	}
	t.Cleanup(func() {
		t.Logf("%d connections broke", breaks.Load())
		if breaks.Load() == 0 {
			t.Error("no connection broke")
		}
	})
}

// common is how far two texts are the same.
func common(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// endless is input that is always there, counted.
type endless struct{ read atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = "0123456789abcde\n"[i%16]
	}
	e.read.Add(int64(len(p)))
	return len(p), nil
}

// stuck waits until nothing more is read.
func (e *endless) stuck() {
	for before := int64(-1); before != e.read.Load(); {
		before = e.read.Load()
		time.Sleep(300 * time.Millisecond)
	}
}

// A signal and a size reach a command at once, although input that it does not read waits before them.
func TestSignalsOvertakeUnreadInput(t *testing.T) {
	c := newClient(t, serve(t))
	for _, tty := range []bool{false, true} {
		input, signals, sizes := &endless{}, make(chan string), make(chan *wire.WindowSize)
		var out bytes.Buffer
		console := &gate{Writer: &out, from: input, opened: make(chan struct{})}
		var sender sync.WaitGroup
		sender.Go(func() {
			<-console.opened
			input.stuck()
			if tty {
				sizes <- &wire.WindowSize{Rows: 33, Columns: 99}
			}
			signals <- "INT"
		})
		text := "trap 'exit 9' INT; echo up; while :; do sleep 0.05; done"
		if tty {
			text = "stty -echo; trap 'stty size; exit 9' INT; echo up; while :; do sleep 0.05; done"
		}
		record, err := c.Run(within(t), &wire.Command{Program: script(text), Stdin: wire.StdinMode_STDIN_MODE_OPEN, Tty: tty},
			client.Streams{Stdin: console, Stdout: console, Signals: signals, Resize: sizes})
		sender.Wait()
		if err != nil || record.GetExitCode() != 9 || tty && !strings.Contains(out.String(), "33 99") {
			t.Errorf("tty=%v: %v, %v, output %q", tty, record, err, out.String())
		}
		if n := input.read.Load(); n < wire.InputWindow || n > 4*wire.InputWindow {
			t.Errorf("tty=%v: %d bytes were read for a command that reads none", tty, n)
		}
	}
}

// Ctrl-C typed behind keys that nobody reads interrupts, as the terminal would if it could read it.
func TestInterruptKeyOvertakesUnreadKeys(t *testing.T) {
	keys, typed := io.Pipe()
	var typist sync.WaitGroup
	typist.Go(func() {
		_, _ = typed.Write(bytes.Repeat([]byte("0123456789abcde\n"), 4000))
		_, _ = typed.Write([]byte{3})
	})
	record, err := newClient(t, serve(t)).Run(within(t), &wire.Command{Program: script("sleep 600"), Tty: true}, client.Streams{Stdin: keys})
	_ = keys.Close()
	typist.Wait()
	if err != nil || record.GetSignal() != "SIGINT" {
		t.Errorf("%v, %v", record, err)
	}
}

// What a command does not want is not sent, and is no error.
func TestInputThatIsNotWanted(t *testing.T) {
	input := &endless{}
	command := &wire.Command{Program: script("exec <&-; sleep 1; exit 4"), Stdin: wire.StdinMode_STDIN_MODE_OPEN}
	record, err := newClient(t, serve(t)).Run(within(t), command, client.Streams{Stdin: input})
	if err != nil || record.GetExitCode() != 4 {
		t.Errorf("%v, %v", record, err)
	}
	if n := input.read.Load(); n > 4*wire.InputWindow {
		t.Errorf("%d bytes were read for a command that closed its input", n)
	}
	// A command that never took any is the caller's mistake, also after a second look.
	_, err = newClient(t, serve(t)).Run(within(t), &wire.Command{Program: script("sleep 600")}, client.Streams{Stdin: input})
	if !errors.Is(err, client.ErrNoExitRecord) || client.Reason(err) != wire.ReasonStdinClosed {
		t.Errorf("got %v", err)
	}
}
