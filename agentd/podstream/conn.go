package podstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// maxStderr bounds what is kept of the program's standard error.
const maxStderr = 4 << 10

// conn is the near end of a pipe whose far end the executor copies.
type conn struct {
	net.Conn
	// cancel ends the executor; half-closing its streams does not.
	cancel context.CancelCauseFunc
	// done is closed when the executor has returned.
	done   chan struct{}
	stderr tail

	mu  sync.Mutex
	err error
}

// end notes how the executor ended.
func (c *conn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	said := strings.Join(strings.Fields(c.stderr.String()), " ")
	switch {
	case said != "" && err != nil:
		c.err = fmt.Errorf("%s (%w)", said, err)
	case said != "":
		c.err = errors.New(said)
	case err != nil:
		c.err = err
	default:
		c.err = io.EOF
	}
}

func (c *conn) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(c.err, io.EOF) {
		return errEnded
	}
	return c.err
}

// Read returns io.EOF only when the program ended well and in silence.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 && errors.Is(err, io.EOF) {
		<-c.done
		c.mu.Lock()
		defer c.mu.Unlock()
		return 0, c.err
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if errors.Is(err, io.ErrClosedPipe) {
		select {
		case <-c.done:
			return n, c.ended()
		default:
		}
	}
	return n, err
}

// Close ends the executor, and with it the program's input and output, and waits for it.
func (c *conn) Close() error {
	c.cancel(net.ErrClosed)
	err := c.Conn.Close()
	<-c.done
	return err
}

// tail keeps the last bytes written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - maxStderr; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
