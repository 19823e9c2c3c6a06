package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// output runs a command to its end and returns its standard output. The error carries the last lines of what it
// complained about.
func output(ctx context.Context, stdin []byte, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // every caller names a program of its own
	cmd.Stdin = bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", fmt.Errorf("running %s: %w: %s", strings.Join(append([]string{name}, args...), " "), err, lastLines(stderr.String(), 4))
	}
	return stdout.String(), nil
}

// run is output for a command whose output does not matter.
func run(ctx context.Context, name string, args ...string) error {
	_, err := output(ctx, nil, name, args...)
	return err
}

// lastLines are the last n lines of text.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

// logTail is the end of a log file, for an error message.
func logTail(name string, n int) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return lastLines(string(text), n)
}

// writeFile replaces a file so that a reader sees the old content or the new, never a part.
func writeFile(name string, content []byte, mode os.FileMode) error {
	temp := name + ".new"
	if err := os.WriteFile(temp, content, mode); err != nil { //nolint:gosec // every caller names a file of its own
		return err
	}
	// WriteFile leaves the mode of a file that was there alone.
	if err := os.Chmod(temp, mode); err != nil {
		return err
	}
	return os.Rename(temp, name)
}
