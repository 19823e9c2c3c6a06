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

func (p procEntry) dead() bool { return p.state == 'Z' || p.state == 'X' }

// readProcEntry reads /proc/PID/stat and the process's mark; false when there is no such process.
func readProcEntry(pid int) (procEntry, bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procEntry{}, false
	}
	entry, ok := parseStat(data)
	if !ok {
		return procEntry{}, false
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_LOCKS, nil, &limit); err == nil {
		entry.mark = limit.Max
	}
	return entry, true
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

// liveProcesses walks /proc.
func liveProcesses() []procEntry {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var all []procEntry
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if entry, ok := readProcEntry(pid); ok && !entry.dead() {
			all = append(all, entry)
		}
	}
	return all
}
