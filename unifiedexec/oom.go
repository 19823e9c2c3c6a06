package unifiedexec

import (
	"bytes"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// memoryEvents are where a container finds the counters of its own memory group, in the unified hierarchy and in the older one.
var memoryEvents = []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

// openMemoryEvents opens the one that is there; -1 if none is. It stays open, for every start reads it, and the kernel
// counts anew for whoever reads from the beginning.
func openMemoryEvents(given string) (fd int) {
	candidates := memoryEvents
	if given != "" {
		candidates = []string{given}
	}
	for _, path := range candidates {
		if fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			return fd
		}
	}
	return -1
}

// oomKills counts the processes that the out-of-memory killer ended in the engine's memory group;
// 0 where the kernel does not tell.
func (e *Engine) oomKills() uint64 {
	if e.memoryEvents < 0 {
		return 0
	}
	var buf [1024]byte
	buf[0] = '\n' // so that every line follows one
	read, _ := unix.Pread(e.memoryEvents, buf[1:], 0)
	_, rest, _ := bytes.Cut(buf[:1+max(read, 0)], []byte("\noom_kill "))
	number, _, _ := bytes.Cut(rest, []byte{'\n'})
	n, _ := strconv.ParseUint(string(number), 10, 64) // What cannot be read counts nothing.
	return n
}

// blameMemory corrects a record whose process was killed while the out-of-memory killer was at work. The kernel
// tells only that it killed in this group, so the process itself must have got a SIGKILL that nobody here sent.
func (p *Process) blameMemory(rec *ExitRecord) {
	itself := rec.Reason == ReasonSignaled && rec.Signal == "SIGKILL"
	child := rec.Reason == ReasonExited && rec.Code == 128+int(unix.SIGKILL)
	switch {
	case !itself && !child || p.engine.oomKills() <= p.oomBefore:
	case itself:
		rec.Reason = ReasonOutOfMemory
		rec.Message = "the container was out of memory"
	case child:
		rec.Message = "the container was out of memory meanwhile, and a child of the command may have been killed for it"
	}
}

// raiseOOMScore makes the kernel prefer a command to the engine when memory is short. What the command started in its
// first moment may have missed it. It answers true when the kernel does not let us: a program that may not be read belongs to
// root in /proc, also when it is ours.
func (e *Engine) raiseOOMScore(pid int) (kept bool) {
	if e.oomScoreAdj == 0 {
		return false
	}
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(strconv.Itoa(e.oomScoreAdj)))
		_ = unix.Close(fd)
	}
	// It is a preference: where it may not be set, commands run all the same. One that ended already needs none.
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}
