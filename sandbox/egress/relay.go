package egress

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// errCutOff ends a tunnel that the policy ended.
var errCutOff = errors.New("the tunnel was cut off")

// tunnel relays between the client and a host until both directions ended, one failed, or the context ends.
func (c *client) tunnel(ctx context.Context, upstream net.Conn, e Event) {
	shared := newActivity(c.proxy.cfg.Limits.Idle)
	down := c.conn
	down.activity = shared
	up := &endpoint{Conn: upstream, activity: shared}
	defer up.Close()
	stop := context.AfterFunc(ctx, func() { up.Close() })
	defer stop()
	defer c.account(e, up, time.Now())

	// What the client sent right behind its request is in the buffer.
	early, _ := c.reader.Peek(c.reader.Buffered())
	source := io.MultiReader(bytes.NewReader(bytes.Clone(early)), down)
	c.release()

	var back sync.WaitGroup
	back.Go(func() {
		defer c.recover()
		if err := pump(down, up); err != nil {
			up.reset()
			down.reset()
		}
	})
	source, err := c.checkHello(ctx, source, down, e)
	if err == nil {
		err = pump(up, source)
	}
	if err != nil {
		up.reset()
		if errors.Is(err, errCutOff) {
			down.Close() // the alert shall arrive
		} else {
			down.reset()
		}
	}
	back.Wait()
}

// account tells what a connection carried.
func (c *client) account(e Event, up *endpoint, begin time.Time) {
	c.proxy.cfg.OnDone(Usage{Event: e, Sent: up.written.Load(), Received: up.read.Load(), Duration: time.Since(begin)})
}

// pump copies one direction and passes its end on.
func pump(to *endpoint, from io.Reader) error {
	buffer, _ := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buffer)
	for {
		n, err := from.Read(buffer[:])
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return to.CloseWrite()
		}
		if err != nil {
			return err
		}
	}
}
