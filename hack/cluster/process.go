package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// procFS is the process file system, as a value so that tests can pass another.
var procFS = os.DirFS("/proc")

// processRecord is enough to tell later whether a pid still means the process that was started: pids are reused, the
// start time counts from boot, and the boot has an identity.
type processRecord struct {
	Name      string `json:"name"`
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"`
	BootID    string `json:"bootID"`
}

// processStat is what /proc/PID/stat says about a process.
type processStat struct {
	state     byte
	threads   int
	startTime uint64
}

// parseStat reads a line of /proc/PID/stat. The command's name, in parentheses, may hold anything, parentheses and
// blanks too, so fields are counted from the last closing one.
func parseStat(line string) (processStat, error) {
	end := strings.LastIndexByte(line, ')')
	fields := strings.Fields(line[end+1:])
	// Field 3 of proc(5) is the first one here, so the start time, field 22, has index 19, and field 20 has 17.
	if end < 0 || len(fields) < 20 {
		return processStat{}, fmt.Errorf("parsing process status %q", line)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return processStat{}, fmt.Errorf("parsing process status: %w", err)
	}
	threads, err := strconv.Atoi(fields[17])
	if err != nil {
		return processStat{}, fmt.Errorf("parsing process status: %w", err)
	}
	return processStat{state: fields[0][0], threads: threads, startTime: start}, nil
}

func readStat(proc fs.FS, pid int) (processStat, error) {
	text, err := fs.ReadFile(proc, strconv.Itoa(pid)+"/stat")
	if err != nil {
		return processStat{}, err
	}
	return parseStat(string(text))
}

func bootID(proc fs.FS) (string, error) {
	text, err := fs.ReadFile(proc, "sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the identity of this boot: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// recordProcess describes a running process.
func recordProcess(proc fs.FS, name string, pid int) (processRecord, error) {
	boot, err := bootID(proc)
	if err != nil {
		return processRecord{}, err
	}
	stat, err := readStat(proc, pid)
	if err != nil {
		return processRecord{}, fmt.Errorf("recording %s: %w", name, err)
	}
	return processRecord{Name: name, PID: pid, StartTime: stat.startTime, BootID: boot}, nil
}

// ended says whether nothing of the process is left but its status, which whoever started it may never collect. While
// a killed process still has other threads its first one may be a zombie already, and its sockets are open.
func (s processStat) ended() bool {
	return s.state == 'X' || s.state == 'Z' && s.threads <= 1
}

// Alive says whether the recorded process still runs.
func (r processRecord) Alive(proc fs.FS) bool {
	boot, err := bootID(proc)
	if err != nil || boot != r.BootID || r.PID <= 1 {
		return false
	}
	stat, err := readStat(proc, r.PID)
	return err == nil && stat.startTime == r.StartTime && !stat.ended()
}

// processesFrom are the pids that run an executable below dir, among them those whose executable was removed since.
func processesFrom(dir string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		exe, err := os.Readlink("/proc/" + entry.Name() + "/exe")
		if err == nil && strings.HasPrefix(exe, dir+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// start runs a process of the plan in the background, with its output in a log file.
func start(l layout, p planned) (processRecord, error) {
	log, err := os.OpenFile(filepath.Join(l.Logs, p.Name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return processRecord{}, fmt.Errorf("opening the log of %s: %w", p.Name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(filepath.Join(l.Bin, p.Argv[0]), p.Argv[1:]...) //nolint:noctx // it outlives this program
	cmd.Dir = l.State
	cmd.Env = append(os.Environ(), "PATH="+l.Bin+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	detach(cmd)
	if err := cmd.Start(); err != nil {
		return processRecord{}, fmt.Errorf("starting %s: %w", p.Name, err)
	}
	// Collected only so that it is no zombie should it end while this program runs; how it ended is in its log.
	go func() { _ = cmd.Wait() }()
	return recordProcess(procFS, p.Name, cmd.Process.Pid)
}

// stopTimeout is how long processes get between being asked to end and being killed. Nothing they would still write
// matters: the state is removed afterwards.
const stopTimeout = 3 * time.Second

// stopProcesses asks the recorded processes to end, waits, and kills those that did not.
func stopProcesses(records []processRecord) {
	for _, r := range records {
		if r.Alive(procFS) {
			_ = terminate(r.PID)
		}
	}
	deadline := time.Now().Add(stopTimeout)
	for anyAlive(records) && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond)
	}
	for _, r := range records {
		if r.Alive(procFS) {
			_ = kill(r.PID)
		}
	}
	for deadline := time.Now().Add(stopTimeout); anyAlive(records) && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
}

func anyAlive(records []processRecord) bool {
	for _, r := range records {
		if r.Alive(procFS) {
			return true
		}
	}
	return false
}
