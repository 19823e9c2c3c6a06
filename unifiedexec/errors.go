package unifiedexec

import (
	"errors"
	"fmt"
	"syscall"
)

var (
	// ErrUnknownProcess matches every *UnknownProcessError.
	ErrUnknownProcess = errors.New("unknown process id")
	// ErrStdinClosed says that a process takes no input: it was started without an open
	// stdin, its stdin was closed, or nobody reads it any more.
	ErrStdinClosed = errors.New("stdin is closed for this process; start it with tty=true or with an open stdin to keep stdin open")
	// ErrNotTerminal says that a process has no terminal to resize.
	ErrNotTerminal = errors.New("the process has no terminal")
	// ErrTableFull says that the table holds only processes that must not be ended to make room.
	ErrTableFull = errors.New("too many processes, and none of them may be ended to make room")
	// ErrClosed says that the engine is closing or closed.
	ErrClosed = errors.New("the engine is closed")
)

// UnknownProcessError says that no process has an id, or that its exit was already delivered.
type UnknownProcessError struct {
	ID int32
}

func (e *UnknownProcessError) Error() string { return fmt.Sprintf("Unknown process id %d", e.ID) }

// Is makes errors.Is(err, ErrUnknownProcess) true.
func (e *UnknownProcessError) Is(target error) bool { return target == ErrUnknownProcess }

// FieldError says that a field of a request or of a setting has a bad value.
type FieldError struct {
	// Field is the field's name as requests spell it: yield_time_ms, env.LD_PRELOAD and so on.
	Field string
	// Value is the offending value, shortened; empty when there is none.
	Value string
	// Problem says what is wrong with it.
	Problem string
}

func (e *FieldError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("%s: %s", e.Field, e.Problem)
	}
	return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Problem)
}

// StartError says that a command did not run because the kernel refused its program, its
// folder or the resources that starting it takes.
type StartError struct {
	// Op is what was refused: chdir, exec, fork, pipe, pty or memfd.
	Op string
	// Path is the folder or the program; empty for resources.
	Path string
	// Errno is the kernel's reason.
	Errno syscall.Errno
	// Detail says more when the errno alone would mislead.
	Detail string
}

func (e *StartError) Error() string {
	text := "starting the command: " + e.Op
	if e.Path != "" {
		text += fmt.Sprintf(" %q", e.Path)
	}
	text += ": " + e.Errno.Error()
	if e.Detail != "" {
		text += " (" + e.Detail + ")"
	}
	return text
}

func (e *StartError) Unwrap() error { return e.Errno }

// shorten keeps error texts readable when a value is long.
func shorten(value string) string {
	const most = 80
	if len(value) <= most {
		return value
	}
	return cutText(value[:most]) + "…"
}
