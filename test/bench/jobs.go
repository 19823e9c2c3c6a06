package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"execsession.dev/agentd/client"
	"execsession.dev/agentd/wire"
	"execsession.dev/unifiedexec"
)

// job is a command in the three forms in which it is run: bare, in this process, and by an agent.
type job struct {
	name string
	bare []string
	// script is for a shell of the product's own, else it runs bare as it is.
	script string
	login  bool
	tty    bool
}

// The short commands.
var (
	trueJob  = job{name: "/bin/true", bare: []string{"/bin/true"}}
	shellJob = job{name: "bash -c true", bare: []string{"bash", "-c", "true"}, script: "true"}
	loginJob = job{name: "bash -lc true", bare: []string{"bash", "-lc", "true"}, script: "true", login: true}
)

// shellScript is a script and how it is run bare.
func shellScript(name, script string) job {
	return job{name: name, bare: []string{"bash", "-c", script}, script: script}
}

func (j job) onTerminal() job {
	j.tty = true
	return j
}

func (j job) stdio() string {
	if j.tty {
		return "terminal"
	}
	return "pipes"
}

func (j job) command() unifiedexec.Command {
	if j.script == "" {
		return unifiedexec.Command{Argv: j.bare, TTY: j.tty}
	}
	return unifiedexec.Command{Script: j.script, Shell: "bash", Login: &j.login, TTY: j.tty}
}

func (j job) wire() *wire.Command {
	if j.script == "" {
		return &wire.Command{Program: &wire.Command_Argv{Argv: &wire.Argv{Args: j.bare}}, Tty: j.tty}
	}
	return &wire.Command{Program: &wire.Command_Script{Script: j.script}, Shell: "bash", Login: &j.login, Tty: j.tty}
}

// runBare is the floor for this job.
func (j job) runBare(ctx context.Context, session bool) error {
	if j.tty {
		return runOnTerminal(ctx, j.bare...)
	}
	return runOnPipes(ctx, session, j.bare...)
}

// newEngine is an engine in this process with the settings that agentd gives it; a nil start is syscall.ForkExec. Close it.
func (b *bench) newEngine(start unifiedexec.StartFunc) (*unifiedexec.Engine, error) {
	// raise is by how much agentd lets the kernel prefer commands to itself when memory is short.
	const raise = 200
	return unifiedexec.New(unifiedexec.Config{
		OOMScoreAdj: raise,
		Settings: unifiedexec.Settings{
			Start: start, Workdir: b.workspace,
			Environment: unifiedexec.EnvironmentPolicy{Inherit: unifiedexec.InheritAll},
			Shell:       unifiedexec.ShellSettings{Login: unifiedexec.LoginAllowed, Snapshot: true},
		},
	})
}

// closeEngine ends an engine whose commands have ended.
func closeEngine(ctx context.Context, e *unifiedexec.Engine) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), agentEndTime)
	defer cancel()
	return e.Close(ctx)
}

// execIn is the call exec_command on an engine in this process.
func (j job) execIn(ctx context.Context, e *unifiedexec.Engine) error {
	result, err := e.ExecCommand(ctx, unifiedexec.ExecCommandRequest{Command: j.command()})
	if err != nil {
		return err
	}
	if result.Exit == nil || result.Exit.Reason != unifiedexec.ReasonExited || result.Exit.Code != 0 {
		return fmt.Errorf("%s ended as %+v, want the code 0", j.name, result.Exit)
	}
	return nil
}

// readIn starts a command on an engine in this process and reads its output to the end.
func (j job) readIn(ctx context.Context, e *unifiedexec.Engine, output io.Writer) error {
	process, reader, err := e.StartReading(ctx, j.command(), unifiedexec.ReaderOptions{Lossless: true})
	if err != nil {
		return err
	}
	defer reader.Close()
	for {
		chunk, err := reader.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if chunk.GapTo != 0 {
			return fmt.Errorf("%s: a lossless reader lost the bytes %d to %d", j.name, chunk.Offset, chunk.GapTo)
		}
		if _, err := output.Write(chunk.Data); err != nil {
			return err
		}
	}
	if exit, ok := process.Exit(); !ok || exit.Reason != unifiedexec.ReasonExited || exit.Code != 0 {
		return fmt.Errorf("%s ended as %+v, want the code 0", j.name, exit)
	}
	return nil
}

// execBy is the call exec_command through the socket.
func (j job) execBy(ctx context.Context, c *client.Client) error {
	result, err := c.ExecCommand(ctx, &wire.ExecCommandRequest{Command: j.wire()})
	if err != nil {
		return err
	}
	return j.checkRecord(result.GetExit())
}

// runBy starts a command through the socket and streams its output to the end.
func (j job) runBy(ctx context.Context, c *client.Client, output io.Writer) error {
	var lost error
	exit, err := c.Run(ctx, j.wire(), client.Streams{Stdout: output, Stderr: output, OnGap: func(from, to uint64) {
		lost = errors.Join(lost, fmt.Errorf("%s: the client that started it lost the bytes %d to %d", j.name, from, to))
	}})
	if err != nil {
		return err
	}
	return errors.Join(lost, j.checkRecord(exit))
}

func (j job) checkRecord(exit *wire.ExitRecord) error {
	if exit.GetReason() != wire.ExitReason_EXIT_REASON_EXITED || exit.GetExitCode() != 0 {
		return fmt.Errorf("%s ended as %q, want the code 0", j.name, strings.TrimSpace(exit.String()))
	}
	return nil
}

// firstByteClock remembers when the first byte came.
type firstByteClock struct{ came time.Time }

func (w *firstByteClock) Write(p []byte) (int, error) {
	if w.came.IsZero() && len(p) > 0 {
		w.came = time.Now()
	}
	return len(p), nil
}
