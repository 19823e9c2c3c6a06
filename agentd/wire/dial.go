package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// fullPause is the time between two attempts at a socket whose queue is full.
const fullPause = time.Millisecond

// Dial connects to the agent's socket and returns once the agent said that it serves this process. The context must
// have a deadline. The error is a *RefusedError when the agent does not serve it.
func Dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	conn, err := connect(ctx, socket)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	err = errors.Join(conn.SetReadDeadline(deadline), ReadVerdict(conn), conn.SetReadDeadline(time.Time{}))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// connect tries again while the socket's queue is full, which the kernel says at once to a caller that does not block: somebody
// connects faster than the agent can look at it.
func connect(ctx context.Context, socket string) (*net.UnixConn, error) {
	for {
		dialled, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err == nil {
			conn, ok := dialled.(*net.UnixConn)
			if !ok {
				return nil, errors.Join(fmt.Errorf("connecting to %q: got a %T", socket, dialled), dialled.Close())
			}
			return conn, nil
		}
		if !errors.Is(err, syscall.EAGAIN) {
			return nil, err
		}
		pause := time.NewTimer(fullPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, errors.Join(ctx.Err(), err)
		}
	}
}
