package unifiedexec

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// input is the writing side of a process's stdin: a pipe or its terminal.
type input struct {
	file *os.File
	// turn is held by the one who writes or closes.
	turn chan struct{}
	// terminal is set when file belongs to the pump, which closes it.
	terminal bool
	// fed is set for a pipe that carries StdinData and nothing else.
	fed bool
}

func newInput(f *os.File, terminal, fed bool) *input {
	return &input{file: f, turn: make(chan struct{}, 1), terminal: terminal, fed: fed}
}

func (in *input) write(ctx context.Context, data []byte) (int, error) {
	select {
	case in.turn <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { <-in.turn }()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = in.file.SetWriteDeadline(time.Unix(1, 0)) // A closed file ends the write by itself.
	})
	n, err := in.file.Write(data)
	if !stop() {
		<-interrupted
		_ = in.file.SetWriteDeadline(time.Time{}) // As above.
	}
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, ctx.Err()
	case errors.Is(err, os.ErrClosed), errors.Is(err, unix.EPIPE), errors.Is(err, unix.EIO):
		return n, ErrStdinClosed
	default:
		return n, err
	}
}

// close ends a pipe; a writer that waits in it is ended too.
func (in *input) close() {
	if !in.terminal {
		in.file.Close()
	}
}
