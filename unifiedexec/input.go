package unifiedexec

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxQueuedInput is how much may wait for a process that does not read before whoever feeds it is held up.
	maxQueuedInput = 512 << 10
	// keyPatience is how long an interrupt key waits behind input that moves not a byte.
	keyPatience = 200 * time.Millisecond
)

// errGivenUp ends a piece whose owner does not want the rest of it written.
var errGivenUp = errors.New("given up")

// input is the writing side of a process's stdin: a pipe or its terminal. What can not be written at once waits in
// a queue, and one goroutine writes while there is any: a process that does not read costs nobody's time.
type input struct {
	file *os.File
	// spawn runs the goroutine.
	spawn func(func())
	// terminal is set when file belongs to the pump, which closes it.
	terminal bool
	// fed is set for a pipe that carries StdinData and nothing else.
	fed bool
	// press does what the terminal's interrupt key does, if that key means it at the moment.
	press func() bool

	mu    sync.Mutex
	queue []*piece
	// bytes counts what the queue holds, moved what was ever written from it.
	bytes int
	moved uint64
	// ending is set once the end was put: nothing comes after it.
	ending bool
	// err is why nothing can be written any more.
	err error
	// hurried is set when a deadline woke the write that is on its way.
	hurried bool
	// stuckKey asks the goroutine to press the interrupt key that stands in the queue.
	stuckKey bool
	keyTimer *time.Timer
	// room is closed when there is room again; nil while nobody waits for it.
	room chan struct{}
}

// piece is data on its way, or the end of the input.
type piece struct {
	data []byte
	end  bool
	// written is how much of data the process has; err is why it has no more.
	written int
	err     error
	// unwanted is set when the rest need not be written.
	unwanted bool
	// done is closed when nothing more happens to the piece; nil when that was so at once.
	done chan struct{}
	// told is called after done was closed, without a lock held.
	told func(*piece)
}

func newInput(f *os.File, terminal, fed bool, spawn func(func())) *input {
	return &input{file: f, terminal: terminal, fed: fed, spawn: spawn, press: func() bool { return false }}
}

// open is whether anything more can be put.
func (in *input) open() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.err == nil && !in.ending
}

// queued is how much waits to be read.
func (in *input) queued() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.bytes
}

// put writes data or queues it; data then belongs to the input.
func (in *input) put(data []byte, told func(*piece)) *piece {
	p := &piece{data: data, told: told}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ending {
		p.err = ErrStdinClosed
		return p
	}
	in.putLocked(p)
	return p
}

// putEnd closes a pipe, or types the terminal's end-of-file character, after everything that was put before. A
// second end of a pipe is none, and neither is one that nobody would read.
func (in *input) putEnd() *piece {
	in.mu.Lock()
	defer in.mu.Unlock()
	p := &piece{end: true}
	switch {
	case in.terminal:
		p = &piece{data: []byte{endOfFile}}
		in.putLocked(p)
	case !in.ending && in.err == nil:
		in.ending = true
		in.putLocked(p)
	}
	return p
}

func (in *input) putLocked(p *piece) {
	if in.err != nil {
		p.err = in.err
		return
	}
	if len(in.queue) == 0 && in.tryLocked(p) {
		return
	}
	p.done = make(chan struct{})
	in.queue = append(in.queue, p)
	in.bytes += len(p.data) - p.written
	if in.terminal && bytes.IndexByte(p.data, interruptByte) >= 0 {
		in.watchKeyLocked()
	}
	if len(in.queue) == 1 {
		in.spawn(in.deliver)
	}
}

// tryLocked writes what can be written without waiting, and tells whether that was all.
func (in *input) tryLocked(p *piece) bool {
	if p.end {
		p.err = in.endLocked()
		return true
	}
	conn, err := in.file.SyscallConn()
	if err != nil {
		in.err, p.err = ErrStdinClosed, ErrStdinClosed
		return true
	}
	var n int
	var failed error
	err = conn.Write(func(fd uintptr) bool {
		n, failed = writeNow(int(fd), p.data)
		return true
	})
	p.written = n
	if failed = inputError(errors.Join(err, failed)); failed != nil {
		in.err, p.err = failed, failed
	}
	return p.err != nil || p.written == len(p.data)
}

// writeNow writes as much as fits.
func writeNow(fd int, data []byte) (written int, err error) {
	for written < len(data) {
		n, err := unix.Write(fd, data[written:])
		written += max(n, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return written, nil
		case err != nil:
			return written, err
		}
	}
	return written, nil
}

// inputError says which errors mean that nobody reads any more.
func inputError(err error) error {
	if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EIO) {
		return ErrStdinClosed
	}
	return err
}

func (in *input) endLocked() error {
	in.err = ErrStdinClosed
	if err := in.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// deliver writes what is queued until nothing is.
func (in *input) deliver() {
	for {
		finished, more := in.deliverOne()
		for _, p := range finished {
			if p.told != nil {
				p.told(p)
			}
		}
		if !more {
			return
		}
	}
}

// deliverOne writes the first piece, and returns those that nothing more happens to.
func (in *input) deliverOne() (finished []*piece, more bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	p := in.queue[0]
	n, err := 0, error(nil)
	if p.end {
		err = in.endLocked()
	} else if !p.unwanted {
		rest := p.data[p.written:]
		in.mu.Unlock()
		n, err = in.file.Write(rest)
		in.mu.Lock()
	}
	p.written += n
	in.bytes -= n
	in.moved += uint64(n)
	if in.hurried {
		in.hurried = false
		_ = in.file.SetWriteDeadline(time.Time{}) // A closed file ends the next write by itself.
	}
	if in.stuckKey {
		in.stuckKey = false
		in.pressLocked()
	}
	switch {
	case p.end:
		p.err = err
		finished = in.popLocked(1)
	case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		in.err = inputError(err)
		finished = in.failLocked()
	case p.unwanted && p.written < len(p.data):
		p.err = errGivenUp
		finished = in.popLocked(1)
	default:
		finished = in.popLocked(in.completeLocked())
	}
	in.makeRoomLocked()
	return finished, len(in.queue) > 0
}

// completeLocked counts the pieces at the beginning of the queue that are written.
func (in *input) completeLocked() int {
	for i, p := range in.queue {
		if p.end || p.written < len(p.data) {
			return i
		}
	}
	return len(in.queue)
}

// popLocked takes the first pieces off the queue.
func (in *input) popLocked(n int) []*piece {
	finished := in.queue[:n:n]
	in.queue = in.queue[n:]
	for _, p := range finished {
		in.bytes -= len(p.data) - p.written
		close(p.done)
	}
	if len(in.queue) == 0 {
		in.queue = nil
	}
	return finished
}

// failLocked ends everything that is queued.
func (in *input) failLocked() []*piece {
	for _, p := range in.queue {
		p.err = in.err
	}
	return in.popLocked(len(in.queue))
}

// hurryLocked wakes the write that is on its way.
func (in *input) hurryLocked() {
	in.hurried = true
	_ = in.file.SetWriteDeadline(time.Unix(1, 0)) // A closed file ends the write by itself.
}

// write puts data and waits until the process has it or ctx ends.
func (in *input) write(ctx context.Context, data []byte) (int, error) {
	p := in.put(data, nil)
	if p.done == nil {
		return p.written, p.err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		in.giveUp(p)
		<-p.done
	}
	if p.err == errGivenUp { //nolint:errorlint // it is never wrapped
		return p.written, ctx.Err()
	}
	return p.written, p.err
}

// giveUp takes back what was not written of a piece.
func (in *input) giveUp(p *piece) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch i := slices.Index(in.queue, p); i {
	case -1:
	case 0:
		p.unwanted = true
		in.hurryLocked()
	default:
		p.err = errGivenUp
		in.queue = slices.Delete(in.queue, i, i+1)
		in.bytes -= len(p.data) - p.written
		close(p.done)
	}
}

// awaitRoom waits while too much is queued.
func (in *input) awaitRoom(ctx context.Context) error {
	for {
		room := in.full()
		if room == nil {
			return nil
		}
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// full returns what is closed when there is room again, or nil when there is.
func (in *input) full() <-chan struct{} {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.bytes < maxQueuedInput || in.err != nil {
		return nil
	}
	if in.room == nil {
		in.room = make(chan struct{})
	}
	return in.room
}

func (in *input) makeRoomLocked() {
	if in.room != nil && (in.bytes < maxQueuedInput || in.err != nil) {
		close(in.room)
		in.room = nil
	}
}

// close ends a pipe at once, with what waits in it; the pump ends a terminal.
func (in *input) close() {
	in.mu.Lock()
	if in.err == nil {
		in.err = ErrStdinClosed
	}
	in.mu.Unlock()
	if !in.terminal {
		in.file.Close()
	}
}

// watchKeyLocked looks after an interrupt key in the queue: its terminal can not act on what it has no room for.
func (in *input) watchKeyLocked() {
	if in.keyTimer != nil {
		return
	}
	seen := in.moved
	in.keyTimer = time.AfterFunc(keyPatience, func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.keyTimer = nil
		switch at, _ := in.keyLocked(); {
		case at < 0:
		case in.moved != seen:
			in.watchKeyLocked()
		default:
			in.stuckKey = true
			in.hurryLocked()
		}
	})
}

// keyLocked finds the last interrupt key that is queued, or -1.
func (in *input) keyLocked() (at, offset int) {
	for i, p := range slices.Backward(in.queue) {
		if k := bytes.LastIndexByte(p.data, interruptByte); k >= p.written {
			return i, k
		}
	}
	return -1, 0
}

// pressLocked presses the interrupt key that stands in the queue. Like a terminal that reads the key it drops the
// input before it.
func (in *input) pressLocked() {
	at, offset := in.keyLocked()
	if at < 0 || !in.press() {
		return
	}
	for i, p := range in.queue[:at+1] {
		dropped := len(p.data)
		if i == at {
			dropped = offset + 1
		}
		in.bytes -= dropped - p.written
		p.written = dropped
	}
}

// terminalInterrupt does what the terminal's interrupt key does: it drops unread input and interrupts the foreground
// group. False when the key means something else at the moment, as in an editor.
func (p *Process) terminalInterrupt() bool {
	meant := false
	err := p.terminalIoctl(func(fd int) error {
		mode, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return err
		}
		meant = mode.Lflag&unix.ISIG != 0 && mode.Cc[unix.VINTR] == interruptByte
		if !meant || mode.Lflag&unix.NOFLSH != 0 {
			return nil
		}
		return flushPeer(fd)
	})
	if err != nil || !meant {
		return false
	}
	return p.signalKey(unix.SIGINT) == nil
}

// flushPeer drops what was written to a terminal's master and not read. Only the slave's own descriptor reaches what
// its line discipline holds.
func flushPeer(master int) error {
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(slave))
	return unix.IoctlSetInt(int(slave), unix.TCFLSH, unix.TCIFLUSH)
}
