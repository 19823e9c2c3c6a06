package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// TestTerminal is a person at a terminal: its size is the command's, a new size reaches
// the command, and Ctrl-C is a key that the command's own terminal turns into SIGINT.
func TestTerminal(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "kubectl-execsession", "run", "--local", "-i", "-t", "--", "bash", "-c",
		`stty size; trap 'echo now $(stty size)' WINCH; trap 'exit 3' INT; echo ready; while :; do sleep 0.1; done`)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PATH="+buildAgentd(t)+string(os.PathListSeparator)+os.Getenv("PATH"))
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 30, Cols: 100})
	if err != nil {
		t.Fatalf("starting at a terminal: %v", err)
	}
	defer terminal.Close()
	lines := bufio.NewScanner(terminal)
	expect := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.TrimSpace(lines.Text()) == want {
				return
			}
		}
		t.Fatalf("the terminal ended before it showed %q: %v", want, lines.Err())
	}
	expect("30 100")
	expect("ready")
	if err := pty.Setsize(terminal, &pty.Winsize{Rows: 40, Cols: 120}); err != nil {
		t.Fatalf("resizing: %v", err)
	}
	expect("now 40 120")
	if _, err := terminal.Write([]byte{3}); err != nil {
		t.Fatalf("typing: %v", err)
	}
	for lines.Scan() {
		// The terminal must be read until its end, or the plugin may wait to write.
		continue
	}
	var exited *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exited) || exited.ExitCode() != 3 {
		t.Errorf("got %v, want exit code 3", err)
	}
}
