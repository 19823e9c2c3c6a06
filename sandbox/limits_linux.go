package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// limiter starts programs under limits that the agent itself does not have, and after the end of the thread that starts
// them, where no supervisor keeps its signals from that thread. Limits belong to a process and not to a thread, so they
// cannot be set before the fork; and set from outside after the exec they would come too late for what the program forked
// first. So the confined thread executes a program of a few instructions instead, which waits until that thread is gone, sets
// its own limits and executes the program that is wanted. See docs/design/limits.md.
type limiter struct {
	// program is a sealed memory file. Landlock has no rule about those, so it can be executed under every policy; no
	// process keeps a descriptor of it.
	program int
}

// newLimiter makes the program and tries it once, so that a kernel which executes no memory files is known early.
func newLimiter(settings []limitSetting) (*limiter, error) {
	image, err := limiterImage(settings)
	if err != nil {
		return nil, err
	}
	program, err := memoryProgram(image)
	if err != nil {
		return nil, err
	}
	l := &limiter{program: program}
	if err := l.try(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// close may be called on nil.
func (l *limiter) close() error {
	if l == nil {
		return nil
	}
	return unix.Close(l.program)
}

// memoryProgram puts an image where it can be executed and never changed.
func memoryProgram(image []byte) (fd int, err error) {
	const name = "limits"
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return -1, fmt.Errorf("making a program in memory: %w", err)
	}
	n, err := unix.Write(fd, image)
	if err == nil && n != len(image) {
		err = unix.ENOSPC
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("writing a program in memory: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// try starts a program that cannot exist: the limiter has to come as far as being told so. That there is no room for
// a process at the moment says nothing about the limiter.
func (l *limiter) try() error {
	s, w, err := l.wrap(start{})
	if err != nil {
		return err
	}
	pid, err := syscall.ForkExec(s.argv0, s.argv, s.attr)
	end := w.finish(started{pid: pid, listener: -1, err: err})
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM), end.err == unix.ENOENT && err == nil: //nolint:errorlint // the contract is a bare errno
		return nil
	case end.err == nil:
		return errors.New("trying the program in memory: it executed nothing and did not say so")
	}
	return fmt.Errorf("trying the program in memory: %w", end.err)
}

// maxFiles is how many descriptors a limited start can pass on: the limiter gets their number in one byte.
const maxFiles = 254

// limitedStart is what a start through the limiter holds until it is finished.
type limitedStart struct {
	// status is closed by the exec of the wanted program; before, the limiter writes to it why there is none.
	read, status int
	pidfd        *int
}

// wrap makes a start go through the limiter. Whatever becomes of the start, finish follows.
func (l *limiter) wrap(s start) (start, *limitedStart, error) {
	var attr syscall.ProcAttr
	if s.attr != nil {
		attr = *s.attr
	}
	files := len(attr.Files)
	if files > maxFiles {
		return s, nil, &SetupError{Stage: StageAttributes, Err: &FieldError{
			Field: "attr.Files", Value: strconv.Itoa(files), Reason: fmt.Sprintf("a start under limits passes at most %d on", maxFiles),
		}}
	}
	if len(s.argv0) >= maxPath {
		return s, nil, unix.ENAMETOOLONG // as an argument it would be called too big instead
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return s, nil, err
	}
	w := &limitedStart{read: ends[0], status: ends[1]}
	if attr.Sys != nil {
		w.pidfd = attr.Sys.PidFD
	}
	// The limiter's own descriptor goes along, because the numbers above the passed ones are not ours to choose.
	attr.Files = append(slices.Clone(attr.Files), uintptr(w.status), uintptr(l.program))
	own := files + 1
	return start{
		argv0: "/proc/self/fd/" + strconv.Itoa(own),
		argv:  append([]string{string(append([]byte{byte(own)}, threadDigits(0)...)) + s.argv0}, s.argv...),
		attr:  &attr, result: s.result, limited: true,
	}, w, nil
}

// after makes the limiter wait until a thread of this process has ended.
func (s *start) after(thread int) {
	if s.limited {
		digits := threadDigits(thread)
		s.argv[0] = s.argv[0][:1] + string(digits) + s.argv[0][1+len(digits):]
	}
}

// threadDigits are the number of a thread as the limiter reads it, or 0 for none: a number of the kernel's has at most 22 bits,
// and an argument must not have a byte that is 0.
func threadDigits(thread int) []byte {
	const used = 0x80
	digits := make([]byte, 4)
	for i := range digits {
		digits[i] = used | byte(thread>>(7*(len(digits)-1-i)))
	}
	return digits
}

// finish waits until the limiter has become the wanted program, or reaps it and returns why it has not.
func (w *limitedStart) finish(end started) started {
	_ = unix.Close(w.status) // the limiter has a copy
	defer func() { _ = unix.Close(w.read) }()
	if end.err != nil {
		return end
	}
	var said [8]byte
	n, err := readOnce(w.read, said[:])
	if n == 0 && err == nil {
		return end
	}
	// It ends by itself, unless it could not be heard.
	_ = unix.Kill(end.pid, unix.SIGKILL)
	reap(end.pid)
	if w.pidfd != nil && *w.pidfd >= 0 {
		_ = unix.Close(*w.pidfd)
		*w.pidfd = -1
	}
	if end.listener >= 0 {
		_ = unix.Close(end.listener) // its only process has ended
	}
	return started{listener: -1, err: heard(said[:n], err)}
}

// What the limiter says: the errno, and in the second half what it is about.
const (
	saidExec = iota
	saidLimit
	saidThread
)

func heard(said []byte, err error) error {
	if err == nil && len(said) != 8 {
		err = fmt.Errorf("it said %q", said)
	}
	if err != nil {
		return &SetupError{Stage: StageLimits, Err: err}
	}
	errno := syscall.Errno(binary.NativeEndian.Uint32(said))
	switch binary.NativeEndian.Uint32(said[4:]) {
	case saidLimit:
		return &SetupError{Stage: StageLimits, Err: errno}
	case saidThread:
		return &SetupError{Stage: StageThread, Err: fmt.Errorf("waiting for its end: %w", errno)}
	}
	return errno
}

func readOnce(fd int, into []byte) (int, error) {
	for {
		n, err := unix.Read(fd, into)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// reap waits for a process that ends. Whoever collects the orphans of this process may have been faster.
func reap(pid int) {
	for {
		if _, err := syscall.Wait4(pid, nil, 0, nil); !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// newLimiter is nil where the plan has no limits to set and no thread to wait for. Where it cannot be made, the limits are gaps.
func (p *plan) newLimiter() (*limiter, error) {
	if len(p.limits) == 0 && !p.openStarter() {
		return nil, nil
	}
	made, err := newLimiter(p.limits)
	if err == nil {
		return made, nil
	}
	for _, s := range p.limits {
		p.gap("process.limits."+s.name, strconv.FormatUint(s.soft, 10), "limits cannot be set here: "+err.Error())
	}
	return nil, err
}

// openStarter is whether nothing but its end keeps signals from the thread that starts a command: without a supervisor there are no starterRules.
func (p *plan) openStarter() bool { return p.abi >= abiScopes && p.agent == 0 }
