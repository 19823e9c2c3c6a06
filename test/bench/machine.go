package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what figures depend on beside the product.
type machine struct {
	Cores     int    `json:"cores"`
	Processor string `json:"processor"`
	Kernel    string `json:"kernel"`
	MemoryMiB uint64 `json:"memoryMiB"`
	Go        string `json:"go"`
	Agent     string `json:"agent"`
	// LoadStart and LoadEnd are the load averages of the last minute.
	LoadStart float64 `json:"loadStart"`
	LoadEnd   float64 `json:"loadEnd"`
	// StolenPercent is the share of the run's processor time that the hypervisor gave to others.
	StolenPercent float64 `json:"stolenPercent"`

	atStart processorTime
}

func newMachine() (*machine, error) {
	m := &machine{Cores: runtime.NumCPU(), Go: runtime.Version(), Processor: processorName()}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return m, fmt.Errorf("asking for the kernel's name: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(name.Release[:])
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return m, fmt.Errorf("asking for the machine's memory: %w", err)
	}
	m.MemoryMiB = info.Totalram * uint64(info.Unit) >> 20
	var err error
	if m.LoadStart, err = loadAverage(); err != nil {
		return m, err
	}
	m.atStart, err = readProcessorTime()
	return m, err
}

// end notes what the machine did while the run went on.
func (m *machine) end() error {
	now, err := readProcessorTime()
	if err != nil {
		return err
	}
	if total := now.total - m.atStart.total; total > 0 {
		m.StolenPercent = 100 * float64(now.stolen-m.atStart.stolen) / float64(total)
	}
	m.LoadEnd, err = loadAverage()
	return err
}

func (m *machine) String() string {
	return fmt.Sprintf("%d cores (%s), %d MiB, Linux %s, %s, agentd %s",
		m.Cores, m.Processor, m.MemoryMiB, m.Kernel, m.Go, m.Agent)
}

func processorName() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func loadAverage() (float64, error) {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, fmt.Errorf("reading the load average: %w", err)
	}
	first, _, _ := strings.Cut(string(data), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0, fmt.Errorf("reading the load average: %w", err)
	}
	return load, nil
}

// processorTime counts ticks of all processors.
type processorTime struct{ stolen, total uint64 }

func readProcessorTime() (processorTime, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return processorTime{}, fmt.Errorf("reading the processors' time: %w", err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	var t processorTime
	// user nice system idle iowait irq softirq steal; guests' time is part of user and nice.
	const steal, counted = 7, 8
	for i, field := range strings.Fields(line)[1:] {
		ticks, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return t, fmt.Errorf("reading the processors' time: %w", err)
		}
		if i < counted {
			t.total += ticks
		}
		if i == steal {
			t.stolen = ticks
		}
	}
	return t, nil
}
