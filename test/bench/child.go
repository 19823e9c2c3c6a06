package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// The helpers that this program is started again as; the first argument names one.
const (
	childCopy   = "child-copy"
	childRelay  = "child-relay"
	childWrite  = "child-write"
	childNoWall = "child-without-sandbox"
)

var children = map[string]func(args []string) error{
	childCopy:   func([]string) error { return copyToSocket(os.Stdin, os.NewFile(copySocket, "socket")) },
	childRelay:  func(args []string) error { return relayTerminal(os.NewFile(copySocket, "socket"), args) },
	childWrite:  writeNumbers,
	childNoWall: withoutSandbox,
}

// copySocket is the descriptor of a copier's socket.
const copySocket = 3

// copyBuffer is what plain copiers use.
const copyBuffer = 64 << 10

// copyToSocket is the middle of the raw hop: what comes from a pipe goes into a socket.
func copyToSocket(from io.Reader, to io.WriteCloser) error {
	return errors.Join(copyPlainly(to, from), to.Close())
}

// relayTerminal runs a program on a terminal of which the other side is a socket, until it is killed.
func relayTerminal(socket *os.File, argv []string) error {
	terminal, err := pty.StartWithSize(bareCommand(context.Background(), argv...), &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- copyPlainly(terminal, socket) }()
	go func() { failed <- copyPlainly(socket, terminal) }()
	return errors.Join(<-failed, <-failed)
}

// wordBytes is the size of one number in the stream of writeNumbers: the word at offset 8n is n.
const wordBytes = 8

// writerReport is what writeNumbers says at its end.
const writerReport = "bytes %d longest %d\n"

// writeNumbers writes a stream whose every byte tells its own offset, for as many seconds as it
// is told, and then reports on stderr how much that was and how long the longest write took.
func writeNumbers(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s %q: want the seconds", childWrite, args)
	}
	seconds, err := strconv.ParseFloat(args[0], 64)
	if err != nil {
		return fmt.Errorf("%s %q: want a number of seconds", childWrite, args)
	}
	buf := make([]byte, copyBuffer)
	var written uint64
	var longest time.Duration
	for end := time.Now().Add(time.Duration(seconds * float64(time.Second))); time.Now().Before(end); {
		for at := 0; at < len(buf); at += wordBytes {
			binary.LittleEndian.PutUint64(buf[at:], (written+uint64(at))/wordBytes)
		}
		began := time.Now()
		if _, err := os.Stdout.Write(buf); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
		longest = max(longest, time.Since(began))
		written += uint64(len(buf))
	}
	_, err = fmt.Fprintf(os.Stderr, writerReport, written, longest.Nanoseconds())
	return err
}

// withoutSandbox executes a program for which the kernel offers neither Landlock nor filters. That
// is how the real agent can be measured without a sandbox: it has no switch for that. What
// stands in the way of the two calls costs other calls nothing that could be measured, because the
// kernel remembers which calls a filter always allows.
func withoutSandbox(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("%s: want a program", childNoWall)
	}
	refuse := uint32(unix.SECCOMP_RET_ERRNO | unix.ENOSYS)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_LANDLOCK_CREATE_RULESET, Jt: 2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SECCOMP, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: refuse},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// The filter belongs to this thread, which becomes the program.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return fmt.Errorf("installing the filter: %w", err)
	}
	err := syscall.Exec(args[0], args, os.Environ()) //nolint:gosec // it is for whoever starts a bench to say what
	return fmt.Errorf("executing %q: %w", args[0], err)
}
