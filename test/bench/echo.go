package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/creack/pty"

	"execsession.dev/agentd/client"
	"execsession.dev/agentd/wire"
	"execsession.dev/unifiedexec"
)

// echoBar is in milliseconds.
const echoBar = 0.25

// inRow is how many bytes a terminal gets in a row: the bar stands beside figures of a peer that were taken in rows.
const inRow = 50

// measureEcho is one byte to a terminal and back, again and again, on terminals that stay open. A client is timed from having
// the byte to giving it out: what somebody does to get it there and to be told is not the client's.
func (b *bench) measureEcho(ctx context.Context, engine *unifiedexec.Engine, bare, confined *agent) error {
	for _, kind := range []struct{ title, script string }{
		{"echoed by the terminal", "stty raw echo; printf r; exec cat >/dev/null"},
		{"read and written by cat", "stty raw -echo; printf r; exec cat"},
	} {
		j := shellScript(kind.title, kind.script).onTerminal()
		var echoes echoes
		err := errors.Join(
			echoes.open("floor: creack/pty", func() (*terminal, error) { return j.openBare(ctx) }),
			echoes.open("floor: Unix socket, copier, creack/pty", func() (*terminal, error) { return j.openRelayed(ctx, b.self) }),
			echoes.open("in process", func() (*terminal, error) { return j.openIn(ctx, engine) }),
			echoes.open("socket", func() (*terminal, error) { return j.openBy(ctx, bare.Client) }),
			echoes.open("socket, "+sandboxed, func() (*terminal, error) { return j.openBy(ctx, confined.Client) }),
		)
		var rows, alone []row
		if err == nil {
			rows, err = echoes.measure(ctx, b.share(10, 2), inRow)
		}
		if err == nil {
			alone, err = echoes.measure(ctx, 5*b.runs, 1)
		}
		if err := errors.Join(err, echoes.close()); err != nil {
			return err
		}
		for i := 3; i < len(rows); i++ {
			rows[i] = rows[i].medianAtMost(echoBar)
		}
		b.section("engine", "a byte to a terminal and back, "+kind.title, rows...)
		b.section("engine", "the same, on another terminal each time", alone...)
	}
	return nil
}

// measure takes rounds times so many bytes in a row from each terminal.
func (e *echoes) measure(ctx context.Context, rounds, inRow int) ([]row, error) {
	taken, err := interleaveRows(ctx, rounds, inRow, e.variants...)
	if err != nil {
		return nil, err
	}
	return rowsOf("ms", taken, 1), nil
}

// echoes are terminals that are open side by side.
type echoes struct {
	variants []variant
	opened   []*terminal
}

// open opens a terminal and waits until its command says that it is ready.
func (e *echoes) open(name string, open func() (*terminal, error)) error {
	opened, err := open()
	if err != nil {
		return fmt.Errorf("opening a terminal for %q: %w", name, err)
	}
	e.opened = append(e.opened, opened)
	var one [1]byte
	if _, err := io.ReadFull(opened, one[:]); err != nil {
		return fmt.Errorf("waiting for the command of %q: %w", name, err)
	}
	if one[0] != 'r' {
		return fmt.Errorf("the command of %q says %q, want that it is ready", name, one)
	}
	sent := byte('a')
	e.variants = append(e.variants, variant{name, func(context.Context) (float64, error) {
		sent = 'a' + (sent-'a'+1)%26
		began := time.Now()
		if _, err := opened.write([]byte{sent}); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(opened, one[:]); err != nil {
			return 0, err
		}
		took := time.Since(began)
		if opened.took != nil {
			took = opened.took()
		}
		if one[0] != sent {
			return 0, fmt.Errorf("%q came back for %q", one, sent)
		}
		return milliseconds(took), nil
	}})
	return nil
}

func (e *echoes) close() error {
	var err error
	for _, opened := range e.opened {
		err = errors.Join(err, opened.close())
	}
	return err
}

// terminal is the outer side of a command's terminal.
type terminal struct {
	read, write func([]byte) (int, error)
	// took is the time of the last byte, for who knows it better than somebody who writes and reads; nil for others.
	took func() time.Duration
	// close also ends the command.
	close func() error
}

func (t *terminal) Read(p []byte) (int, error) { return t.read(p) }

// openBare opens a terminal of creack/pty.
func (j job) openBare(ctx context.Context) (*terminal, error) {
	cmd := bareCommand(ctx, j.bare...)
	file, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		return nil, err
	}
	return &terminal{read: file.Read, write: file.Write, close: func() error {
		err := file.Close()
		_ = cmd.Wait() // It says only that the command was hung up.
		return err
	}}, nil
}

// openRelayed opens a terminal of creack/pty in another process, behind a Unix socket.
func (j job) openRelayed(ctx context.Context, self string) (*terminal, error) {
	ours, theirs, err := unixSocketPair()
	if err != nil {
		return nil, err
	}
	cmd := bareCommand(ctx, append([]string{self, childRelay}, j.bare...)...)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{theirs}, os.Stderr
	if err := errors.Join(cmd.Start(), theirs.Close()); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return &terminal{read: ours.Read, write: ours.Write, close: func() error {
		err := errors.Join(ours.Close(), cmd.Process.Kill())
		_ = cmd.Wait() // It says only that it was killed.
		return err
	}}, nil
}

// openIn opens a terminal of an engine in this process.
func (j job) openIn(ctx context.Context, e *unifiedexec.Engine) (*terminal, error) {
	process, reader, err := e.StartReading(ctx, j.command(), unifiedexec.ReaderOptions{Lossless: true})
	if err != nil {
		return nil, err
	}
	var rest []byte
	return &terminal{
		read: func(p []byte) (int, error) {
			if len(rest) == 0 {
				chunk, err := reader.Next(ctx)
				if err != nil {
					return 0, err
				}
				rest = chunk.Data
			}
			n := copy(p, rest)
			rest = rest[n:]
			return n, nil
		},
		write: func(p []byte) (int, error) { return process.Write(ctx, p) },
		close: func() error {
			reader.Close()
			_, _, err := process.Stop(context.WithoutCancel(ctx), 0)
			return err
		},
	}, nil
}

// openBy opens a terminal of an agent.
func (j job) openBy(ctx context.Context, c *client.Client) (*terminal, error) {
	keys, typed, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	seen, screen, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making a pipe: %w", err), keys.Close(), typed.Close())
	}
	in, out := &clockedReader{from: keys}, &clockedWriter{to: screen}
	ended := make(chan error, 1)
	started := make(chan int32, 1)
	go func() {
		_, err := c.Run(ctx, j.wire(), client.Streams{
			Stdin: in, Stdout: out, OnStart: func(p *wire.Process) { started <- p.GetId() },
		})
		ended <- errors.Join(err, screen.Close())
	}()
	var id int32
	select {
	case id = <-started:
	case err := <-ended:
		return nil, errors.Join(errors.New("the command did not start"), err, keys.Close(), typed.Close(), seen.Close())
	}
	took := func() time.Duration { return out.last.Load().Sub(*in.last.Load()) }
	return &terminal{read: seen.Read, write: typed.Write, took: took, close: func() error {
		atOnce := time.Duration(0)
		_, err := c.Stop(context.WithoutCancel(ctx), id, &atOnce)
		// Its stream ends with its record.
		return errors.Join(err, <-ended, typed.Close(), keys.Close(), seen.Close())
	}}, nil
}

// clockedReader notes when it last gave something.
type clockedReader struct {
	from io.Reader
	last atomic.Pointer[time.Time]
}

// Read implements io.Reader.
func (c *clockedReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	now := time.Now()
	c.last.Store(&now)
	return n, err
}

// clockedWriter notes when it last got something.
type clockedWriter struct {
	to   io.Writer
	last atomic.Pointer[time.Time]
}

// Write implements io.Writer.
func (c *clockedWriter) Write(p []byte) (int, error) {
	now := time.Now()
	c.last.Store(&now)
	return c.to.Write(p)
}
