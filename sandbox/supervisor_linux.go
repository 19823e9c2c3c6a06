package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Watch is who wants to know what one start's processes are refused.
type Watch struct {
	// OnDenial is called from one goroutine at a time, in order. The next caller waits for
	// its answer meanwhile, so it must not block.
	OnDenial func(Denial)
	// Refusals, if there is one, counts them for whoever asks.
	Refusals *Refusals
	// OnEnd is called once, after the last OnDenial, when no process is left that this
	// start made, or when it made none.
	OnEnd func()
}

// supervisor answers the calls of one start's processes. Its goroutine waits in Go's
// poller, so that it takes no thread while nothing is asked, and ends when the kernel says that
// nobody has the filter any more. Whoever outlives this process gets ENOSYS: nothing opens.
type supervisor struct {
	// listener is closed by run.
	listener *os.File
	rules    ruleIndex
	names    map[uint32]string
	access   broker
	// wall is what signals meet; nil where Landlock is their wall.
	wall  *signalWall
	watch Watch
	tally tally
	// processes remembers whose the threads are within a window.
	processes map[uint32]int
	asked     int
}

// caller is who made a call.
type caller struct {
	pid     int
	program string
}

// manyCalls is how many calls in a window are looked into afresh. Behind it, calls of which only the rule is kept are looked
// into no more.
const manyCalls = 64

// newSupervisor takes the listener over.
func newSupervisor(listener int, l *Launcher, wall *signalWall, watch Watch) *supervisor {
	_ = unix.SetNonblock(listener, true) // it cannot fail on a descriptor that was just made
	s := &supervisor{
		listener: os.NewFile(uintptr(listener), "seccomp listener"), rules: l.decisions, names: l.names, access: l.access, wall: wall, watch: watch,
	}
	s.tally.tell = func(Denial) {}
	if watch.OnDenial != nil {
		s.tally.tell = watch.OnDenial
	}
	return s
}

// run answers until nobody is left to ask.
func (s *supervisor) run() {
	conn, err := s.listener.SyscallConn()
	for err == nil {
		if err = conn.Read(s.serve); err == nil {
			break
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.endWindow(time.Now())
			err = s.listener.SetReadDeadline(time.Time{})
		}
	}
	_ = s.listener.Close() // whoever still waits gets ENOSYS
	s.tally.flush(time.Now())
	if s.watch.OnEnd != nil {
		s.watch.OnEnd()
	}
}

// serve answers all that wait. It returns true when nobody can ask any more, and false
// to wait for the poller.
func (s *supervisor) serve(fd uintptr) bool {
	listener := int(fd)
	for {
		// Receiving blocks when nothing waits, so it must be known before. A caller that is gone
		// in between leaves its place in the kernel's count: receiving then answers ENOENT.
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, 0); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return true
		}
		switch {
		case ready[0].Revents&unix.POLLIN != 0:
			s.answerNext(listener)
		case ready[0].Revents != 0:
			return true
		default:
			// Only what was refused needs an end of its window.
			if !s.tally.due.IsZero() {
				_ = s.listener.SetReadDeadline(s.tally.due) // it fails only for a closed file
			}
			return false
		}
		if now := time.Now(); !s.tally.due.IsZero() && now.After(s.tally.due) {
			s.endWindow(now)
		}
	}
}

func (s *supervisor) endWindow(now time.Time) {
	s.tally.flush(now)
	s.asked = 0
	clear(s.processes)
}

func (s *supervisor) answerNext(listener int) {
	var asked notification
	if receive(listener, &asked) != nil {
		return // it is gone, and whoever made it calls again if it can
	}
	decided, found := s.rules.decide(uint32(asked.number), &asked.args)
	if !found {
		// The filter asks only about what a rule refuses.
		decided.then = refuse(eperm)
	}
	if decided.then == askOwner {
		s.broker(listener, &asked, decided)
		return
	}
	s.refuse(listener, &asked, decided, "")
}

// refuse answers first and counts then: the caller waits.
func (s *supervisor) refuse(listener int, asked *notification, by rule, address string) {
	name := s.names[uint32(asked.number)]
	denial := Denial{
		Rule: by.id, Syscall: name, Errno: syscall.Errno(by.then.errno()),
		Arguments: describeArguments(name, &asked.args), Address: address,
	}
	known := true
	if s.watch.OnDenial != nil || s.watch.Refusals != nil {
		who, certain := s.whoAsked(listener, asked)
		denial.PID, denial.Program, known = who.pid, who.program, certain
	}
	refused := s.watch.Refusals.count(denial, func() bool {
		return reply(listener, answer{id: asked.id, errno: -int32(denial.Errno)}) == nil && known
	})
	if !refused {
		return // the call ended without an answer of ours, so it was not refused by us
	}
	s.tally.add(denial, time.Now())
}

// whoAsked looks the caller up while it waits. It answers false when the caller is
// gone, and its number perhaps somebody else's.
func (s *supervisor) whoAsked(listener int, asked *notification) (caller, bool) {
	s.asked++
	if s.asked > manyCalls && s.tally.full() && s.watch.Refusals.full() {
		return caller{}, true // only the rule will be kept
	}
	who := caller{pid: s.processOf(asked.thread), program: programOf(asked.thread)}
	if !stillWaits(listener, asked.id) {
		return caller{}, false
	}
	return who, true
}

// programOf is the program that a thread which waits for an answer runs; it can start no other meanwhile. It is read for each call,
// because a thread keeps its number when it starts another program. A program that may not be read keeps its name to itself.
func programOf(thread uint32) string {
	var path [unix.PathMax]byte
	n, err := unix.Readlink("/proc/"+strconv.Itoa(int(thread))+"/exe", path[:])
	if err != nil {
		return ""
	}
	return string(path[:n])
}

// processOf is the process of a thread. What is remembered costs a tenth, and holds if the kernel still finds the thread in it.
func (s *supervisor) processOf(thread uint32) int {
	pid, known := s.processes[thread]
	if known && unix.Tgkill(pid, int(thread), 0) == nil {
		return pid
	}
	pid = processOf(thread)
	if s.processes == nil {
		s.processes = make(map[uint32]int)
	}
	if known || len(s.processes) < 4*maxKinds {
		s.processes[thread] = pid
	}
	return pid
}

// processOf is the process of a thread.
func processOf(thread uint32) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return int(thread)
	}
	_, rest, _ := strings.Cut(string(status), "\nTgid:")
	value, _, _ := strings.Cut(rest, "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(value))
	if err != nil {
		return int(thread)
	}
	return pid
}

// syscallNames are the names of the calls that rules decide about.
func syscallNames(arch architecture, rules []rule) map[uint32]string {
	names := make(map[uint32]string)
	for _, r := range rules {
		for _, name := range r.calls {
			if number := arch.number(syscalls[name]); number != absent {
				names[uint32(number)] = name
			}
		}
	}
	return names
}
