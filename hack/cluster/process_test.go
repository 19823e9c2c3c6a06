package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

// statLine is a line of /proc/PID/stat with the fields that matter filled in.
func statLine(name, state, threads, startTime string) string {
	fields := make([]string, 50)
	for i := range fields {
		fields[i] = "0"
	}
	fields[0], fields[17], fields[19] = state, threads, startTime
	return "4321 (" + name + ") " + strings.Join(fields, " ")
}

func TestParseStat(t *testing.T) {
	tests := map[string]struct {
		reason string
		line   string
		want   processStat
		fails  bool
	}{
		"plain":       {reason: "the usual case", line: statLine("etcd", "S", "1", "77"), want: processStat{'S', 1, 77}},
		"parentheses": {reason: "a process names itself as it likes", line: statLine("a) R 1 (b", "Z", "1", "78"), want: processStat{'Z', 1, 78}},
		"short":       {reason: "a truncated line is no answer", line: "4321 (etcd) S 1 2", fails: true},
		"empty":       {reason: "so is none", line: "", fails: true},
		"not number":  {reason: "nor is a start time that is no number", line: statLine("etcd", "S", "1", "x"), fails: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat(tt.line)
			if (err != nil) != tt.fails || got != tt.want {
				t.Errorf("%s: got %v, %v", tt.reason, got, err)
			}
		})
	}
}

func TestRecordAlive(t *testing.T) {
	record := processRecord{Name: "etcd", PID: 4321, StartTime: 77, BootID: "boot-1"}
	tests := map[string]struct {
		reason     string
		boot, stat string
		want       bool
	}{
		"same":     {reason: "nothing changed", boot: "boot-1", stat: statLine("etcd", "S", "1", "77"), want: true},
		"reused":   {reason: "the pid belongs to a later process", boot: "boot-1", stat: statLine("etcd", "S", "1", "99")},
		"rebooted": {reason: "after a restart even the start time may agree by chance", boot: "boot-2", stat: statLine("etcd", "S", "1", "77")},
		"zombie":   {reason: "it ended and nobody collected it", boot: "boot-1", stat: statLine("etcd", "Z", "1", "77")},
		"dying":    {reason: "killed, but other threads still hold its sockets", boot: "boot-1", stat: statLine("etcd", "Z", "9", "77"), want: true},
		"gone":     {reason: "there is no such process", boot: "boot-1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			proc := fstest.MapFS{"sys/kernel/random/boot_id": {Data: []byte(tt.boot + "\n")}}
			if tt.stat != "" {
				proc["4321/stat"] = &fstest.MapFile{Data: []byte(tt.stat)}
			}
			if got := record.Alive(proc); got != tt.want {
				t.Errorf("%s: alive is %v", tt.reason, got)
			}
		})
	}
}

// A record that lost its pid must never be taken for the whole machine (0) or its first process (1).
func TestRecordOfNoProcess(t *testing.T) {
	proc := fstest.MapFS{
		"sys/kernel/random/boot_id": {Data: []byte("boot-1")},
		"0/stat":                    {Data: []byte(statLine("x", "S", "1", "0"))},
		"1/stat":                    {Data: []byte(statLine("init", "S", "1", "0"))},
	}
	for _, pid := range []int{-1, 0, 1} {
		if (processRecord{PID: pid, BootID: "boot-1"}).Alive(proc) {
			t.Errorf("pid %d counts as ours", pid)
		}
	}
}
