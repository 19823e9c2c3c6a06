package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Pings says how often a client asks whether the agent is still there, and how long it waits for the answer.
type Pings struct{ Every, Wait time.Duration }

// Conn carries calls and streams over one connection. It implements grpc.ClientConnInterface.
// Its calls may be made from several goroutines at once.
type Conn struct {
	conn  net.Conn
	pings Pings
	// sending and reading hold an element of whoever writes or reads: waiting for a turn ends with a context.
	sending chan struct{}
	reading chan struct{}
	in      frameReader
	// ended is closed by end, after err is set.
	ended chan struct{}
	err   error
	// idle begins to watch the connection when nobody has used it for a moment, and check asks the agent.
	idle, check *time.Timer
	goroutines  sync.WaitGroup
	// moved is when the last piece went over the connection, in nanoseconds.
	moved atomic.Int64

	mu     sync.Mutex
	closed bool
	lastID uint64
	// waiting are the calls that have no answer yet; each has room for it.
	waiting map[uint64]chan frame
	// streams are those that have no last answer yet.
	streams map[uint64]*clientStream
	// lastUse is when somebody last got what it waited for. The timer that looks for it runs while watched is true.
	lastUse time.Time
	watched bool
}

// idleTime is after what time somebody reads when nobody waits for anything: the connection may end, and the receiver of a
// stream that does something else must not keep other streams waiting. Else who waits reads.
const idleTime = 50 * time.Millisecond

// lastWordsTime bounds how long a connection that takes nothing more is listened to.
const lastWordsTime = time.Second

// longAgo is a deadline that ends what waits at once.
var longAgo = time.Unix(1, 0)

// NewConn begins a connection, and returns once the agent has answered. It owns conn; after an error it has
// closed it.
func NewConn(ctx context.Context, conn net.Conn, pings Pings) (*Conn, error) {
	c := &Conn{
		conn: conn, pings: pings,
		sending: make(chan struct{}, 1), reading: make(chan struct{}, 1),
		ended: make(chan struct{}), waiting: map[uint64]chan frame{}, streams: map[uint64]*clientStream{},
	}
	c.in = frameReader{from: movingReader{c}, most: headBytes + MaxResponseBytes, ahead: keptBuffer}
	c.mu.Lock() // The timers' functions wait for it.
	c.watched = true
	c.idle = time.AfterFunc(idleTime, func() { c.spawn(c.watch) })
	c.check = time.AfterFunc(pings.Every, func() { c.spawn(c.askAgent) })
	c.mu.Unlock()
	err := c.send(ctx, []byte(Preface))
	if err == nil {
		err = c.ping(ctx)
	}
	if err == nil {
		return c, nil
	}
	// What the connection says tells more than that it was waited for in vain.
	if ended := c.Err(); ended != nil {
		err = ended
	} else if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, c.Close())
}

// Close ends the connection; calls that wait fail.
func (c *Conn) Close() error {
	c.end(net.ErrClosed)
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.goroutines.Wait()
	return nil
}

// Err is why the connection ended, or nil while it lives.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// end is for the first error only.
func (c *Conn) end(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
		close(c.ended)
		c.idle.Stop()
		c.check.Stop()
	}
	c.mu.Unlock()
	if first {
		_ = c.conn.Close() // What was wrong with it is known.
	}
}

func (c *Conn) spawn(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.goroutines.Go(f)
	}
}

// Invoke implements grpc.ClientConnInterface. Options change nothing. A call whose context ends while its request is
// half sent takes the connection with it.
func (c *Conn) Invoke(ctx context.Context, method string, request, response any, _ ...grpc.CallOption) error {
	head, err := callHead(timeLeft(ctx), method)
	if err != nil {
		return status.Errorf(codes.Internal, "calling %s: %v", method, err)
	}
	answer, err := c.call(ctx, head, request.(proto.Message)) //nolint:forcetypeassert // generated code calls, with messages
	if err != nil {
		return err
	}
	if answer.kind == frameFailure {
		return failureOf(answer.body)
	}
	if err := unmarshal(answer.body, response.(proto.Message)); err != nil { //nolint:forcetypeassert // generated code calls, with messages
		return status.Errorf(codes.Internal, "reading the answer to %s: %v", method, err)
	}
	return nil
}

// timeLeft is what a call's head says of ctx.
func timeLeft(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(time.Until(deadline), 1)
	}
	return 0
}

// call sends a call and waits for its answer.
func (c *Conn) call(ctx context.Context, head []byte, request proto.Message) (frame, error) {
	mine := make(chan frame, 1)
	c.mu.Lock()
	c.lastID++
	id := c.lastID
	c.waiting[id] = mine
	c.mu.Unlock()
	defer c.leave(id)
	encoded, err := newFrame(frameCall, id, head, request)
	if err != nil {
		return frame{}, err
	}
	if err := c.send(ctx, encoded); err != nil {
		return frame{}, err
	}
	for {
		select {
		case answer := <-mine:
			return answer, nil
		case <-c.ended:
			if len(mine) == 0 {
				return frame{}, c.broken()
			}
		case <-ctx.Done():
			c.giveUp(id)
			return frame{}, status.FromContextError(ctx.Err()).Err()
		case c.reading <- struct{}{}:
			c.read(ctx, func() bool { return len(mine) > 0 })
			<-c.reading
		}
	}
}

// ping asks whether the agent is there.
func (c *Conn) ping(ctx context.Context) error {
	head, err := callHead(0, "")
	if err == nil {
		_, err = c.call(ctx, head, nil)
	}
	return err
}

// leave forgets a call.
func (c *Conn) leave(id uint64) {
	c.mu.Lock()
	delete(c.waiting, id)
	c.mu.Unlock()
	c.used()
}

// used is for who does not wait any more: somebody else may have to read.
func (c *Conn) used() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastUse = time.Now()
	c.watchLaterLocked(idleTime)
}

func (c *Conn) broken() error {
	return status.Errorf(codes.Unavailable, "the connection ended: %v", c.err)
}

// giveUp tells the agent that nobody waits for an answer any more.
func (c *Conn) giveUp(id uint64) {
	c.spawn(func() {
		ctx, cancel := context.WithTimeout(context.Background(), c.pings.Wait)
		defer cancel()
		_ = c.send(ctx, bareFrame(frameCancel, id, nil)) // It fails with the connection, and so with the call.
	})
}

// send writes a frame, when it is its turn. One that is written only half leaves nothing to go on with.
func (c *Conn) send(ctx context.Context, encoded []byte) error {
	select {
	case c.sending <- struct{}{}:
		defer func() { <-c.sending }()
	case <-c.ended:
		return c.broken()
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	release := until(ctx, c.conn.SetWriteDeadline)
	written, err := writePieces(c.conn, encoded, c.move)
	release()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		if written > 0 {
			c.end(fmt.Errorf("a call was given up while it was sent: %w", ctx.Err()))
		}
		return status.FromContextError(ctx.Err()).Err()
	}
	c.hearWhy(fmt.Errorf("writing: %w", err))
	return c.broken()
}

// move notes that the connection is alive.
func (c *Conn) move() error {
	c.moved.Store(time.Now().UnixNano())
	return nil
}

// hearWhy ends a connection that takes nothing more: what can still be read says why, else it was the writing.
func (c *Conn) hearWhy(writing error) {
	ctx, cancel := context.WithTimeout(context.Background(), lastWordsTime)
	defer cancel()
	select {
	case c.reading <- struct{}{}:
		c.read(ctx, func() bool { return false })
		<-c.reading
	case <-c.ended: // Whoever reads has heard it.
	case <-ctx.Done():
	}
	c.end(writing)
}

// read reads answers until enough, the end of ctx or that of the connection. The caller has the turn.
func (c *Conn) read(ctx context.Context, enough func() bool) {
	release := until(ctx, c.conn.SetReadDeadline)
	defer release()
	for !enough() && ctx.Err() == nil {
		f, err := c.in.next()
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && ctx.Err() != nil {
			return
		}
		if err == nil {
			err = c.dispatch(f)
		}
		switch {
		case errors.Is(err, io.EOF):
			c.end(errors.New("the other end closed it"))
			return
		case err != nil:
			c.end(fmt.Errorf("reading: %w", err))
			return
		}
	}
}

// dispatch gives a frame to whom it is for; nobody may want it any more.
func (c *Conn) dispatch(f frame) error {
	c.mu.Lock()
	call, stream := c.waiting[f.call], c.streams[f.call]
	last := f.kind == frameResponse || f.kind == frameFailure
	if last {
		delete(c.waiting, f.call)
		delete(c.streams, f.call)
	}
	c.mu.Unlock()
	switch {
	case last && call != nil:
		f.body = bytes.Clone(f.body)
		call <- f // It has room for its one answer.
	case last && stream != nil:
		stream.finish(f)
	case f.kind == frameOutput && stream != nil:
		if !stream.in.put(f.body) {
			return errors.New("a stream has more messages than there is room for")
		}
	case f.kind == frameRoom && stream != nil:
		if !stream.room.giveBack(f.body) {
			return errors.New("a stream was given back more room than it took")
		}
	case !last && f.kind != frameOutput && f.kind != frameRoom:
		return fmt.Errorf("a frame of kind %d is no answer", f.kind)
	}
	return nil
}

// movingReader reads from a connection and notes that it is alive.
type movingReader struct{ conn *Conn }

func (r movingReader) Read(p []byte) (int, error) {
	n, err := r.conn.conn.Read(p)
	if n > 0 {
		_ = r.conn.move() // It never fails.
	}
	return n, err
}

// until ends what a connection waits for once ctx ends, by its deadline; release takes that back.
func until(ctx context.Context, setDeadline func(time.Time) error) (release func()) {
	set := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = setDeadline(longAgo) // It fails only for a closed connection, which waits for nothing.
		close(set)
	})
	return func() {
		if !stop() {
			<-set
			_ = setDeadline(time.Time{}) // As above.
		}
	}
}

// watch reads while nobody waits, so that the end of the connection is known before the next call. After a frame it
// leaves the reading to who waits by then.
func (c *Conn) watch() {
	c.mu.Lock()
	c.watched = false
	quiet := time.Since(c.lastUse)
	if quiet < idleTime {
		c.watchLaterLocked(idleTime - quiet)
	}
	c.mu.Unlock()
	if quiet < idleTime {
		return
	}
	select {
	case c.reading <- struct{}{}:
	default:
		return // Somebody else reads.
	}
	answered := false
	c.read(context.Background(), func() (enough bool) {
		enough, answered = answered, true
		return enough
	})
	<-c.reading
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchLaterLocked(idleTime)
}

// watchLaterLocked is for when no call waits for an answer, and so nobody may be reading. One timer is for many calls.
func (c *Conn) watchLaterLocked(after time.Duration) {
	if len(c.waiting) == 0 && c.err == nil && !c.watched {
		c.watched = true
		c.idle.Reset(after)
	}
}

// askAgent ends a connection on which the agent does not answer. While something large moves, its answer may be late.
func (c *Conn) askAgent() {
	ctx, cancel := context.WithTimeout(context.Background(), c.pings.Wait)
	defer cancel()
	asked := time.Now()
	if err := c.ping(ctx); err != nil && c.moved.Load() <= asked.Add(c.pings.Wait/2).UnixNano() {
		c.end(fmt.Errorf("the agent said nothing for %s", c.pings.Wait))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.check.Reset(c.pings.Every)
	}
}
