package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// signalWall stands in for Landlock's scope of signals, which came with ABI 6: the processes of one start signal each other
// and nobody else. A number in a register does not say whose process it is, and may mean another one a moment later. So what
// concerns another process the supervisor does itself, by a pidfd that it opened before it looked at the process; only
// what cannot leave the caller's own process or session, whatever happens meanwhile, the kernel does for the caller.
type signalWall struct {
	// agent is this process.
	agent int
	// mark is the hard RLIMIT_LOCKS of the start's processes; see startMarks.
	mark uint64
	// ownSession says that the start leads a session: whoever is in a group with one of its processes descends from it.
	ownSession bool
	// answerFirst is for Linux before 5.19, where a signal makes a caller that waits call again: it would signal
	// twice, and itself for ever.
	answerFirst bool
}

// errStranger is the answer about a process that is not of the same start.
var errStranger = errors.New("the process is not of this sandbox")

// lastSignal is the kernel's _NSIG.
const lastSignal = 64

// signalCall is one call that waits for the wall's answer.
type signalCall struct {
	*supervisor
	listener int
	asked    *notification
	by       rule
}

// judgeSignal answers a call that would signal somebody.
func (s *supervisor) judgeSignal(listener int, asked *notification, by rule) {
	by.then = refuse(eperm)
	c := signalCall{supervisor: s, listener: listener, asked: asked, by: by}
	first, second := int(int32(asked.args[0])), int(int32(asked.args[1]))
	switch s.names[uint32(asked.number)] {
	case "kill":
		c.kill(first, second)
	case "tkill":
		c.thread(first, second)
	case "tgkill", "rt_tgsigqueueinfo":
		c.ownOnly(first)
	case "rt_sigqueueinfo":
		c.queue(first, second)
	case "pidfd_send_signal":
		c.descriptor(first, second)
	case "fcntl":
		if second == fSetFlags {
			c.asynchronous(first)
			return
		}
		c.ownOnly(int(int32(asked.args[2])))
	default: // ioctl
		c.asynchronous(first)
	}
}

// goOn lets the kernel do it. If the caller is gone, nobody goes on: what was found out about a caller whose call still waits
// was found out about the caller.
func (c signalCall) goOn() {
	_ = reply(c.listener, answer{id: c.asked.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

func (c signalCall) end(err error) {
	switch {
	case err == nil:
		_ = reply(c.listener, answer{id: c.asked.id}) // else it is gone
	case errors.Is(err, errStranger):
		c.refuse(c.listener, c.asked, c.by, "")
	default:
		c.fail(c.listener, c.asked, err)
	}
}

// carryOut delivers a signal that is permitted, and answers.
func (c signalCall) carryOut(signal int, deliver func() error) {
	switch {
	case signal < 0 || signal > lastSignal:
		c.end(unix.EINVAL)
	case c.wall != nil && c.wall.answerFirst:
		if reply(c.listener, answer{id: c.asked.id}) == nil {
			_ = deliver() // the caller has its answer, which a signal that comes too late does not change
		}
	default:
		c.end(deliver())
	}
}

// asynchronous is for signals when a descriptor is ready. Of sockets and pipes they go to an owner that was set, see ownOnly, and
// else to nobody; of a terminal to its foreground group, which may be another command's. The look at the
// descriptor holds if the caller has one thread, because nobody else can put another in its place.
func (c signalCall) asynchronous(fd int) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", c.asked.thread))
	place, linkErr := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.asked.thread, fd))
	switch {
	case errors.Is(linkErr, fs.ErrNotExist):
		c.end(unix.EBADF)
	case err == nil && len(threads) == 1 && (strings.HasPrefix(place, "socket:") || strings.HasPrefix(place, "pipe:")):
		c.goOn()
	default:
		c.end(errStranger)
	}
}

// own says that a number is the caller's process, which keeps it as long as the call waits.
func (c signalCall) own(pid int) bool {
	return pid > 0 && unix.Tgkill(pid, int(c.asked.thread), 0) == nil
}

// ownOnly is for what nobody can do on another's behalf without a race: a signal to a single thread, and to the owner of a descriptor.
func (c signalCall) ownOnly(pid int) {
	switch {
	case c.own(pid):
		c.goOn()
	case pid > 0:
		c.end(c.wall.stranger(pid))
	default:
		c.end(errStranger)
	}
}

func (c signalCall) kill(pid, signal int) {
	switch {
	case pid == 0 && c.wall.ownSession || c.own(pid):
		c.goOn()
	case pid > 0:
		c.one(pid, signal, nil)
	case pid == 0:
		group, err := unix.Getpgid(int(c.asked.thread))
		if err != nil || !stillWaits(c.listener, c.asked.id) {
			return // it is gone
		}
		c.many(crowd{group: group}, signal)
	case pid == -1:
		caller := processOf(c.asked.thread)
		if !stillWaits(c.listener, c.asked.id) {
			return
		}
		c.many(crowd{all: true, but: caller}, signal)
	default:
		c.many(crowd{group: -pid}, signal)
	}
}

// one signals a process of the same start.
func (c signalCall) one(pid, signal int, info *unix.Siginfo) {
	pidfd, err := c.wall.open(pid)
	if err != nil {
		c.end(err)
		return
	}
	defer unix.Close(pidfd)
	c.carryOut(signal, func() error { return unix.PidfdSendSignal(pidfd, unix.Signal(signal), info, 0) })
}

// thread signals a thread of the caller's process. There is no pidfd for a thread before Linux 6.9; but the kernel looks whether
// the thread is of the process, and the process keeps its number as long as its call waits.
func (c signalCall) thread(thread, signal int) {
	if thread == int(c.asked.thread) {
		c.goOn()
		return
	}
	process := processOf(c.asked.thread)
	if thread <= 0 || unix.Tgkill(process, thread, 0) != nil {
		c.end(c.wall.stranger(thread))
		return
	}
	if stillWaits(c.listener, c.asked.id) {
		c.carryOut(signal, func() error { return unix.Tgkill(process, thread, unix.Signal(signal)) })
	}
}

// queue signals a process and tells it what the caller has written for it.
func (c signalCall) queue(pid, signal int) {
	if c.own(pid) {
		c.goOn()
		return
	}
	info, err := c.information(c.asked.args[2])
	if err != nil {
		c.end(err)
		return
	}
	info.Signo = int32(signal) // as the kernel does
	c.one(pid, signal, info)
}

// descriptor signals the process that a pidfd of the caller's stands for. The caller may put another one in its place
// meanwhile; what it stood for when it was looked at is signalled, if it is of the same start.
func (c signalCall) descriptor(fd, signal int) {
	pid, err := pidOfDescriptor(c.asked.thread, fd)
	var info *unix.Siginfo
	switch {
	case err != nil:
	case uint32(c.asked.args[3]) != 0:
		err = unix.EINVAL // as before Linux 6.9
	case c.asked.args[2] != 0:
		if info, err = c.information(c.asked.args[2]); err == nil && int(info.Signo) != signal {
			err = unix.EINVAL
		}
	}
	if err != nil {
		c.end(err)
		return
	}
	if stillWaits(c.listener, c.asked.id) {
		c.one(pid, signal, info)
	}
}

// siTkill is the code of a signal to a thread.
const siTkill = -6

// information reads what a caller tells with a signal. As the kernel does, it lets nobody pretend to another that it was sent
// by the kernel, or by kill or tgkill.
func (c signalCall) information(from uint64) (*unix.Siginfo, error) {
	var info unix.Siginfo
	raw, err := readCaller(c.asked.thread, from, int(unsafe.Sizeof(info)))
	switch {
	case errors.Is(err, unix.EPERM):
		return nil, errStranger // a program that may not be looked at
	case err != nil || len(raw) < int(unsafe.Sizeof(info)) || !stillWaits(c.listener, c.asked.id):
		return nil, unix.EFAULT
	}
	info = *(*unix.Siginfo)(unsafe.Pointer(&raw[0]))
	if info.Code >= 0 || info.Code == siTkill {
		return nil, unix.EPERM
	}
	return &info, nil
}

// pidOfDescriptor is the process that a thread's pidfd stands for.
func pidOfDescriptor(thread uint32, fd int) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", thread, fd))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, unix.EBADF
	case err != nil:
		return 0, errStranger // a program that may not be looked at
	}
	_, rest, _ := strings.Cut("\n"+string(data), "\nPid:")
	value, _, _ := strings.Cut(rest, "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(value))
	switch {
	case err != nil:
		return 0, unix.EBADF // it is something else
	case pid < 0:
		return 0, unix.ESRCH
	}
	return pid, nil
}

// open returns a pidfd of a process of the same start. A process that can be signalled by it afterwards was not reaped until then, so
// that its number was its own when it was looked at.
func (w *signalWall) open(pid int) (int, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		// kill takes the number of any thread for its process.
		pid = processOf(uint32(pid))
		pidfd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		return -1, err
	}
	if !w.member(pid) {
		return -1, errors.Join(errStranger, unix.Close(pidfd))
	}
	return pidfd, nil
}

// member leaves the agent itself out: while it starts a process it has that one's mark.
func (w *signalWall) member(pid int) bool {
	mark, err := lockLimit(pid)
	return err == nil && mark == w.mark && pid != w.agent
}

// stranger says why a process is not signalled.
func (w *signalWall) stranger(pid int) error {
	if _, err := lockLimit(pid); pid > 0 && errors.Is(err, unix.ESRCH) {
		return unix.ESRCH
	}
	return errStranger
}

// crowd is whom one call signals at once: a group, or everybody but the caller.
type crowd struct {
	group int
	all   bool
	but   int
}

func (t crowd) has(pid int) bool {
	if t.all {
		return pid != 1 && pid != t.but
	}
	group, err := unix.Getpgid(pid)
	return err == nil && group == t.group
}

// many answers what the kernel answers: success if one could be signalled, and for "everybody" even if none could.
func (c signalCall) many(to crowd, signal int) {
	members, strangers := c.wall.pass(to, func(int) bool { return true })
	switch {
	case members > 0:
		c.carryOut(signal, func() error {
			c.wall.signalAll(to, unix.Signal(signal))
			return nil
		})
	case strangers == 0:
		c.end(unix.ESRCH)
	case to.all:
		c.end(nil)
	default:
		c.end(errStranger)
	}
}

// manyPasses bounds how often a crowd that grows is gone through again.
const manyPasses = 8

// signalAll signals each once. The kernel lets nobody fork meanwhile; here it is gone through again until nobody is new.
func (w *signalWall) signalAll(to crowd, signal syscall.Signal) {
	done := make(map[int]bool)
	for range manyPasses {
		before := len(done)
		w.pass(to, func(pid int) bool {
			if done[pid] {
				return true
			}
			pidfd, err := w.open(pid)
			if err != nil {
				return false
			}
			defer unix.Close(pidfd)
			done[pid] = true
			return to.has(pid) && unix.PidfdSendSignal(pidfd, signal, nil, 0) == nil
		})
		if len(done) == before {
			return
		}
	}
}

// pass goes once through the processes of a crowd, and calls visit with those of the same start.
func (w *signalWall) pass(to crowd, visit func(pid int) bool) (members, strangers int) {
	for _, pid := range processes() {
		switch {
		case !to.has(pid):
		case w.member(pid) && visit(pid):
			members++
		default:
			strangers++
		}
	}
	return members, strangers
}

// processes are the numbers of all processes; those that cannot be seen cannot be signalled either.
func processes() []int {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // what came before an error counts
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
