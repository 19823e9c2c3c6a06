package main

import (
	"context"
	"errors"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execsession.dev/agentd"
	"execsession.dev/agentd/wire"
)

// connectOn connects to a path as fast as one thread can, and never waits.
func connectOn(path string) {
	for {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			continue
		}
		for errors.Is(unix.Connect(fd, &unix.SockaddrUnix{Name: path}), unix.EAGAIN) {
		}
		_ = unix.Close(fd)
	}
}

// TestCommandFloodsTheSocket lets a command connect over and over. Who may control agentd gets through each time, and the log has a
// line a second.
func TestCommandFloodsTheSocket(t *testing.T) {
	l := startLocal(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	flood := argv(program, "connections", l.socket, "8")
	flood.Env = map[string]string{actAsVariable: actAsHog}
	process, err := l.Start(t.Context(), &wire.StartRequest{Command: flood})
	if err != nil {
		t.Fatal(err)
	}
	refused := regexp.MustCompile(`msg="refused connections" count=([0-9]+)`)
	eventually(t, "many connections are refused", func() bool {
		for _, line := range refused.FindAllStringSubmatch(l.stderr.String(), -1) {
			if n, err := strconv.Atoi(line[1]); err == nil && n > 500 {
				return true
			}
		}
		return false
	})
	for range 20 {
		conn, err := agentd.Dial(t.Context(), l.socket)
		if err != nil {
			t.Fatalf("connecting during the flood: %v", err)
		}
		_ = conn.Close()
	}
	again := client(t, func(ctx context.Context) (net.Conn, error) { return agentd.Dial(ctx, l.socket) })
	if _, err := again.Stop(t.Context(), &wire.StopRequest{ProcessId: process.GetId()}); err != nil {
		t.Errorf("stopping the command: %v", err)
	}
	lines := strings.Count(l.stderr.String(), "refused")
	if most := int(time.Since(began)/time.Second) + 2; lines > most {
		t.Errorf("the log has %d lines about it, want %d at most", lines, most)
	}
}
