package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"execsession.dev/agentd/client"
	"execsession.dev/agentd/toolset/codex"
	"execsession.dev/agentd/wire"
)

// errDetached is the end of a run that somebody left.
var errDetached = errors.New("detached")

const interruptByte = 3

// console is the user's side of a running command: terminal, signals and streams.
type console struct {
	*plugin
	stdin, tty bool
	// requested is set once the command may run; process is what runs, 0 before it is known.
	requested atomic.Bool
	process   atomic.Int32
	signals   chan string
	resize    chan *wire.WindowSize
	// broken is true while there is no connection: then Ctrl-C in a raw terminal can only
	// mean the plugin.
	broken atomic.Bool

	mu    sync.Mutex
	saved *term.State // of the raw terminal, nil when it is not raw
}

func (p *plugin) newConsole(stdin, tty bool) *console {
	// Room for what nobody takes while there is no connection; more of the same says
	// nothing new.
	return &console{plugin: p, stdin: stdin, tty: tty, signals: make(chan string, 4), resize: make(chan *wire.WindowSize, 1)}
}

// watch takes the process's signals until the returned function is called. The first
// interrupt goes to the command, the second one, or one without a command, ends the run.
func (c *console) watch(leave context.CancelCauseFunc) (stop func()) {
	taken := make(chan os.Signal, 8)
	// SIGPIPE is taken so that a broken pipe is an error of a write, not the plugin's death.
	signal.Notify(taken, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGWINCH, unix.SIGPIPE)
	ended, joined := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(joined)
		interrupted := false
		for {
			select {
			case <-ended:
				return
			case got := <-taken:
				interrupted = c.take(got, interrupted, leave)
			}
		}
	}()
	return func() {
		signal.Stop(taken)
		close(ended)
		<-joined
		c.restore()
	}
}

func (c *console) take(got os.Signal, interrupted bool, leave context.CancelCauseFunc) bool {
	switch got {
	case unix.SIGWINCH:
		c.resized()
	case unix.SIGPIPE:
	case unix.SIGINT:
		if interrupted || !c.requested.Load() || c.broken.Load() {
			leave(errDetached)
			return true
		}
		c.send("INT")
		return true
	default:
		leave(errDetached)
	}
	return interrupted
}

func (c *console) send(name string) {
	select {
	case c.signals <- name:
	default:
	}
}

// size is the local terminal's, or nil when there is none or the command needs none.
func (c *console) size() *wire.WindowSize {
	if !c.tty {
		return nil
	}
	files := []any{c.In, c.Out, c.Err}
	for _, candidate := range files {
		file, ok := candidate.(*os.File)
		if !ok {
			continue
		}
		columns, rows, err := term.GetSize(int(file.Fd()))
		if err == nil && columns > 0 && rows > 0 && columns <= 0xffff && rows <= 0xffff {
			return &wire.WindowSize{Rows: uint32(rows), Columns: uint32(columns)}
		}
	}
	return nil
}

func (c *console) resized() {
	size := c.size()
	if size == nil {
		return
	}
	// Only the newest size counts.
	select {
	case <-c.resize:
	default:
	}
	select {
	case c.resize <- size:
	default:
	}
}

// raw gives the terminal's keys to the command, when they are passed on at all.
func (c *console) raw() error {
	fd := int(c.In.Fd())
	if !c.tty || !c.stdin || !term.IsTerminal(fd) {
		return nil
	}
	saved, err := term.MakeRaw(fd)
	if err != nil {
		return fmt.Errorf("switching the terminal to raw mode: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.saved = saved
	return nil
}

// restore gives the terminal back; it may be called again.
func (c *console) restore() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.saved == nil {
		return
	}
	_ = term.Restore(int(c.In.Fd()), c.saved)
	c.saved = nil
}

func (c *console) isRaw() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.saved != nil
}

// say writes a message of the plugin's own; a raw terminal needs the carriage return.
func (c *console) say(format string, args ...any) {
	end := "\n"
	if c.isRaw() {
		end = "\r\n"
	}
	fmt.Fprint(c.Err, codex.Escape(fmt.Sprintf(format, args...))+end)
}

func (c *console) streams(e *engine) client.Streams {
	streams := client.Streams{
		Stdout: &pipeWriter{Writer: c.Out, console: c}, Stderr: &pipeWriter{Writer: c.Err, console: c},
		Signals:   c.signals,
		OnRequest: func() { c.requested.Store(true) },
		OnStart:   func(p *wire.Process) { c.process.Store(p.GetId()) },
		OnGap: func(from, to uint64) {
			c.say("warning: %d bytes of the output (from byte %d) are lost: they were no longer kept", to-from, from)
		},
		OnBreak: func(err error) {
			c.broken.Store(true)
			c.say("warning: %s: %v; trying again", e.name, err)
		},
		OnResume: func() {
			c.broken.Store(false)
			c.say("connected again")
		},
	}
	if c.tty {
		streams.Resize = c.resize
	}
	if c.stdin {
		streams.Stdin = &keyReader{Reader: c.In, console: c}
	}
	return streams
}

// keyReader reads the user's input. While the connection is broken nobody but the plugin
// can act on a Ctrl-C typed into a raw terminal, so it becomes the signal that it was not.
type keyReader struct {
	io.Reader
	console *console
}

func (k *keyReader) Read(p []byte) (int, error) {
	n, err := k.Reader.Read(p)
	if !k.console.broken.Load() || !k.console.isRaw() {
		return n, err
	}
	for _, key := range p[:n] {
		if key == interruptByte {
			_ = syscall.Kill(os.Getpid(), unix.SIGINT)
		}
	}
	return n, err
}

// pipeWriter hands a broken pipe on to the command, as a shell's pipeline would: the
// command gets SIGPIPE, and how it ends is still told by its record.
type pipeWriter struct {
	io.Writer
	console *console
	broken  bool
}

func (w *pipeWriter) Write(p []byte) (int, error) {
	if w.broken {
		return len(p), nil
	}
	n, err := w.Writer.Write(p)
	if errors.Is(err, unix.EPIPE) {
		w.broken = true
		w.console.send("PIPE")
		return len(p), nil
	}
	return n, err
}
