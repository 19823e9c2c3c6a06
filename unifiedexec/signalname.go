package unifiedexec

import (
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The real-time signals, counted as shells and C libraries do: the two before the first are the library's own.
const (
	firstRealTime = 34
	lastRealTime  = 64
)

// otherSignalNames are second names.
var otherSignalNames = map[string]unix.Signal{"SIGIOT": unix.SIGABRT, "SIGCLD": unix.SIGCHLD, "SIGPOLL": unix.SIGIO}

// parseSignal reads INT, SIGTERM, 15, RTMIN, RTMAX-1 and so on.
func parseSignal(name string) (unix.Signal, error) {
	if n, err := strconv.ParseUint(name, 10, 8); err == nil && n >= 1 && n <= lastRealTime {
		return unix.Signal(n), nil
	}
	full := strings.ToUpper(name)
	if !strings.HasPrefix(full, "SIG") {
		full = "SIG" + full
	}
	if sig := unix.SignalNum(full); sig != 0 {
		return sig, nil
	}
	if sig := otherSignalNames[full]; sig != 0 {
		return sig, nil
	}
	if sig := realTime(full); sig != 0 {
		return sig, nil
	}
	return 0, &FieldError{Field: "signal", Value: shorten(name), Problem: "is no signal: want a name such as INT or RTMIN+1, or a number from 1 to 64"}
}

// realTime finds the signal of one of its two names, or gives 0.
func realTime(full string) unix.Signal {
	for sig := unix.Signal(firstRealTime); sig <= lastRealTime; sig++ {
		if full == afterFirst(sig) || full == beforeLast(sig) {
			return sig
		}
	}
	return 0
}

func afterFirst(sig syscall.Signal) string { return distance("SIGRTMIN", "+", int(sig)-firstRealTime) }
func beforeLast(sig syscall.Signal) string { return distance("SIGRTMAX", "-", lastRealTime-int(sig)) }

func distance(from, direction string, steps int) string {
	if steps == 0 {
		return from
	}
	return from + direction + strconv.Itoa(steps)
}

// signalName is SIGKILL, SIGRTMIN+1 and so on, or a number where there is no name.
func signalName(sig syscall.Signal) string {
	switch name := unix.SignalName(sig); {
	case name != "":
		return name
	case sig < firstRealTime || sig > lastRealTime:
		return sig.String()
	case sig <= (firstRealTime+lastRealTime)/2:
		return afterFirst(sig)
	}
	return beforeLast(sig)
}
