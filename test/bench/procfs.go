package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// memory is a process's own, in bytes.
type memory struct {
	resident int64
	// private pages are those that nobody else has mapped, the program's own text included.
	private int64
}

// memoryOf reads smaps_rollup. agentd is not dumpable, so that only root may read it.
func memoryOf(pid int) (memory, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if errors.Is(err, fs.ErrPermission) {
		return memory{}, fmt.Errorf("reading the agent's memory, which only root may: %w", err)
	}
	if err != nil {
		return memory{}, fmt.Errorf("reading the agent's memory: %w", err)
	}
	var m memory
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || fields[2] != "kB" {
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return m, fmt.Errorf("reading the agent's memory: %w", err)
		}
		switch name := fields[0]; {
		case name == "Rss:":
			m.resident = kib << 10
		case strings.HasPrefix(name, "Private_"):
			m.private += kib << 10
		}
	}
	return m, nil
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// sampleEvery is how often memory is looked at. Reading it holds up the process's own page
// faults for about 0.1 ms.
const sampleEvery = 20 * time.Millisecond

// memorySampler keeps the most private memory that it saw.
type memorySampler struct {
	stop   context.CancelFunc
	joined sync.WaitGroup
	// These belong to the sampling goroutine until it is joined.
	most    int64
	samples int
	err     error
}

// sampleMemory looks at a process's memory until peak is called.
func sampleMemory(ctx context.Context, pid int) *memorySampler {
	ctx, stop := context.WithCancel(ctx)
	s := &memorySampler{stop: stop}
	s.joined.Go(func() {
		ticker := time.NewTicker(sampleEvery)
		defer ticker.Stop()
		for s.err == nil {
			var m memory
			m, s.err = memoryOf(pid)
			s.most = max(s.most, m.private)
			s.samples++
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
	return s
}

// peak ends the sampling.
func (s *memorySampler) peak() (bytes int64, samples int, err error) {
	s.stop()
	s.joined.Wait()
	return s.most, s.samples, s.err
}

// holdings are what a process must give back.
type holdings struct {
	descriptors, threads int
	// children are all that the process is the parent of, zombies those that it has not collected.
	children, zombies int
}

func holdingsOf(pid int) (holdings, error) {
	var h holdings
	for _, part := range []struct {
		folder string
		count  *int
	}{{"fd", &h.descriptors}, {"task", &h.threads}} {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", pid, part.folder))
		if err != nil {
			return h, fmt.Errorf("counting what the agent holds: %w", err)
		}
		*part.count = len(entries)
	}
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return h, err
	}
	for _, path := range all {
		// What ended meanwhile is nobody's child.
		stat, err := readStat(path)
		if err != nil || stat.parent != pid {
			continue
		}
		h.children++
		if stat.state == "Z" {
			h.zombies++
		}
	}
	return h, nil
}

// stat is the part of /proc/PID/stat that is wanted here.
type stat struct {
	state  string
	parent int
	// ticks are those in user and kernel mode.
	ticks uint64
}

func readStat(path string) (stat, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return stat{}, err
	}
	// The name stands in brackets and may hold anything.
	end := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[end+1:]))
	const state, parent, user, system = 0, 1, 11, 12
	if end < 0 || len(fields) <= system {
		return stat{}, fmt.Errorf("reading %q: it has too few fields", path)
	}
	s := stat{state: fields[state]}
	var errs [3]error
	s.parent, errs[0] = strconv.Atoi(fields[parent])
	userTicks, err := strconv.ParseUint(fields[user], 10, 64)
	errs[1] = err
	systemTicks, err := strconv.ParseUint(fields[system], 10, 64)
	errs[2] = err
	s.ticks = userTicks + systemTicks
	return s, errors.Join(errs[:]...)
}

// processorUse is a process's own time on processors, by two clocks: ticks are what
// everybody's tools show, the scheduler's clock misses nothing.
type processorUse struct {
	ticks, scheduled time.Duration
}

// tick is USER_HZ, which has been 100 on every architecture that agentd is built for.
const tick = 10 * time.Millisecond

func processorUseOf(pid int) (processorUse, error) {
	s, err := readStat(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return processorUse{}, fmt.Errorf("reading the agent's processor time: %w", err)
	}
	use := processorUse{ticks: time.Duration(s.ticks) * tick}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return use, err
	}
	for _, path := range threads {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // A thread that ended.
		}
		if err != nil {
			return use, fmt.Errorf("reading the agent's processor time: %w", err)
		}
		first, _, _ := strings.Cut(string(data), " ")
		nanoseconds, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return use, fmt.Errorf("reading the agent's processor time: %w", err)
		}
		use.scheduled += time.Duration(nanoseconds)
	}
	return use, nil
}
