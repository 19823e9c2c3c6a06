package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/creack/pty"
)

// A floor starts a program, reads everything that it writes and waits for its end, with
// nothing but os/exec and creack/pty. The engine makes every command the leader of a session of its
// own, because signals and terminals need that; the kernel then makes a scheduling group for it
// too. So the floor on pipes comes in two: plain, and with a session. A terminal
// has one anyway.

// bareCommand has no watcher for ctx: a floor shall not pay for what it does not need.
func bareCommand(ctx context.Context, argv ...string) *exec.Cmd {
	return exec.CommandContext(context.WithoutCancel(ctx), argv[0], argv[1:]...) //nolint:gosec // it is for whoever starts a bench to say what
}

// runOnPipes drains two pipes, as the engine does.
func runOnPipes(ctx context.Context, session bool, argv ...string) error {
	var stdout, stderr writeCounter
	cmd := bareCommand(ctx, argv...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if session {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("running %q: %w", argv, err)
	}
	return nil
}

// runOnTerminal reads the terminal to its end, which the kernel tells as EIO.
func runOnTerminal(ctx context.Context, argv ...string) error {
	cmd := bareCommand(ctx, argv...)
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		return fmt.Errorf("starting %q on a terminal: %w", argv, err)
	}
	defer terminal.Close()
	if _, err := io.Copy(io.Discard, terminal); err != nil && !errors.Is(err, syscall.EIO) {
		return fmt.Errorf("reading the terminal of %q: %w", argv, err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("running %q on a terminal: %w", argv, err)
	}
	return nil
}

// writeCounter counts and forgets. Unlike io.Discard it is not known to os/exec and io, which
// therefore really read what it gets.
type writeCounter struct{ bytes int64 }

func (w *writeCounter) Write(p []byte) (int, error) {
	w.bytes += int64(len(p))
	return len(p), nil
}

// unixSocketPair is a connected pair of stream sockets.
func unixSocketPair() (ours, theirs *os.File, err error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a socket pair: %w", err)
	}
	return os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket"), nil
}

// readBare copies what a bare command writes, as it comes.
func (j job) readBare(ctx context.Context, output io.Writer) error {
	cmd := bareCommand(ctx, j.bare...)
	var from *os.File
	var err error
	if j.tty {
		from, err = pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	} else {
		from, err = startOnPipe(cmd)
	}
	if err != nil {
		return fmt.Errorf("starting %q: %w", j.bare, err)
	}
	defer from.Close()
	if err := copyPlainly(output, from); err != nil && !errors.Is(err, syscall.EIO) {
		return fmt.Errorf("reading %q: %w", j.bare, err)
	}
	return cmd.Wait()
}

// startOnPipe is os.Pipe and not cmd.StdoutPipe, whose reader has to be done before Wait closes it.
func startOnPipe(cmd *exec.Cmd) (*os.File, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = write
	if err := errors.Join(cmd.Start(), write.Close()); err != nil {
		return nil, errors.Join(err, read.Close())
	}
	return read, nil
}

// copyPlainly reads and writes, where io.Copy may know shorter ways.
func copyPlainly(to io.Writer, from io.Reader) error {
	buf := make([]byte, copyBuffer)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
