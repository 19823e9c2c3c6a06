package unifiedexec

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// procEntry is what the kernel tells about a process. Together with the start time (in clock
// ticks since boot) a process id names one process for good.
type procEntry struct {
	pid, ppid, pgrp, session int
	state                    byte
	start                    uint64
	// mark is the hard RLIMIT_LOCKS, 0 when it could not be read.
	mark uint64
}

func (p procEntry) dead() bool    { return p.state == 'Z' || p.state == 'X' }
func (p procEntry) stopped() bool { return p.state == 'T' || p.state == 't' }

// readProcEntry reads /proc/PID/stat and the process's mark; false when there is no such process.
func readProcEntry(pid int) (procEntry, bool) {
	var buf [1024]byte
	n := readSmall("/proc/"+strconv.Itoa(pid)+"/stat", buf[:])
	entry, ok := parseStat(buf[:n])
	if !ok {
		return procEntry{}, false
	}
	entry.mark = markOf(pid)
	return entry, true
}

// markOf is a process's hard RLIMIT_LOCKS, 0 when it cannot be read.
func markOf(pid int) uint64 {
	var limit unix.Rlimit
	err := unix.Prlimit(pid, unix.RLIMIT_LOCKS, nil, &limit)
	switch err {
	case nil:
		return limit.Max
	case unix.EPERM:
		// A process of another user shows it only in text.
		var buf [4096]byte
		return parseLimits(buf[:readSmall("/proc/"+strconv.Itoa(pid)+"/limits", buf[:])])
	default:
		return 0
	}
}

// parseLimits finds the hard limit of file locks; an unlimited one counts as 0.
func parseLimits(data []byte) uint64 {
	for line := range bytes.Lines(data) {
		if rest, ok := bytes.CutPrefix(line, []byte("Max file locks")); ok {
			if fields := bytes.Fields(rest); len(fields) >= 2 {
				n, _ := strconv.ParseUint(string(fields[1]), 10, 64)
				return n
			}
		}
	}
	return 0
}

// readSmall reads a file that is made on reading, without what package os does for files that may block.
func readSmall(path string, buf []byte) int {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return 0
	}
	return n
}

// parseStat reads the fields that count. The program's name stands in parentheses and may hold
// anything, parentheses too, so everything is counted from the last one.
func parseStat(data []byte) (procEntry, bool) {
	const (
		state, ppid, pgrp, session, start = 0, 1, 2, 3, 19
	)
	open, end := bytes.IndexByte(data, ' '), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return procEntry{}, false
	}
	fields := bytes.Fields(data[end+1:])
	if len(fields) <= start || len(fields[state]) != 1 {
		return procEntry{}, false
	}
	number := func(b []byte) int {
		n, _ := strconv.Atoi(string(b))
		return n
	}
	ticks, err := strconv.ParseUint(string(fields[start]), 10, 64)
	if err != nil {
		return procEntry{}, false
	}
	return procEntry{
		pid:     number(data[:open]),
		ppid:    number(fields[ppid]),
		pgrp:    number(fields[pgrp]),
		session: number(fields[session]),
		state:   fields[state][0],
		start:   ticks,
	}, true
}

// processIDs lists the processes that there are.
func processIDs() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// liveProcesses walks /proc.
func liveProcesses() []procEntry {
	var all []procEntry
	for _, pid := range processIDs() {
		if entry, ok := readProcEntry(pid); ok && !entry.dead() {
			all = append(all, entry)
		}
	}
	return all
}

// marksInUse is the quick look: which of the engine's marks living processes have.
func marksInUse() map[uint64]bool {
	used := make(map[uint64]bool)
	for _, pid := range processIDs() {
		mark := markOf(pid)
		if used[mark] || !marks.issued(mark) {
			continue
		}
		if entry, ok := readProcEntry(pid); ok && !entry.dead() {
			used[entry.mark] = true
		}
	}
	return used
}
