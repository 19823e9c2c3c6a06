package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"execsession.dev/agentd/client"
	"execsession.dev/agentd/wire"
)

// soakPatience bounds one command of the soak: a command that hangs is told and does not stop the rest.
const soakPatience = time.Minute

// soakCommand runs the command with a number and checks how it ends. Every other one is on a
// terminal; a third is killed, with a child of its own.
func soakCommand(ctx context.Context, a *agent, number int) error {
	ctx, cancel := context.WithTimeout(ctx, soakPatience)
	defer cancel()
	say := shellScript("say", fmt.Sprintf("echo %d", number))
	linger := shellScript("linger", "sleep 1000 & sleep 1000")
	said := fmt.Sprintf("%d\n", number)
	if number%2 == 1 {
		say, linger, said = say.onTerminal(), linger.onTerminal(), fmt.Sprintf("%d\r\n", number)
	}
	var err error
	switch number % 6 {
	case 0, 1:
		err = say.soakCall(ctx, a, said)
	case 2, 3:
		err = say.soakStream(ctx, a, said)
	case 4:
		err = linger.soakKill(ctx, a, wire.ExitReason_EXIT_REASON_STOPPED, func(id int32) error {
			grace := time.Duration(0)
			_, err := a.Stop(ctx, id, &grace)
			return err
		})
	case 5:
		err = linger.soakKill(ctx, a, wire.ExitReason_EXIT_REASON_SIGNALED, func(id int32) error { return a.Signal(ctx, id, "KILL") })
	}
	if err != nil {
		return fmt.Errorf("command %d on %s: %w", number, say.stdio(), err)
	}
	return nil
}

// soakCall is the call exec_command.
func (j job) soakCall(ctx context.Context, a *agent, said string) error {
	result, err := a.ExecCommand(ctx, &wire.ExecCommandRequest{Command: j.wire()})
	if err != nil {
		return err
	}
	if result.GetOutput() != said {
		return fmt.Errorf("exec_command says %q, want %q", result.GetOutput(), said)
	}
	return j.checkRecord(result.GetExit())
}

// soakStream is start and stream.
func (j job) soakStream(ctx context.Context, a *agent, said string) error {
	var output strings.Builder
	if err := j.runBy(ctx, a.Client, &output); err != nil {
		return err
	}
	if output.String() != said {
		return fmt.Errorf("the stream says %q, want %q", output.String(), said)
	}
	return nil
}

// soakKill ends a command that would not end by itself.
func (j job) soakKill(ctx context.Context, a *agent, reason wire.ExitReason, kill func(id int32) error) error {
	killed := make(chan error, 1)
	exit, err := a.Run(ctx, j.wire(), client.Streams{OnStart: func(p *wire.Process) {
		go func() { killed <- kill(p.GetId()) }()
	}})
	if err != nil {
		return err
	}
	if err := <-killed; err != nil {
		return fmt.Errorf("killing it: %w", err)
	}
	if exit.GetReason() != reason || exit.GetSignal() == "" {
		return errors.New("it ended as " + exit.String() + ", want " + reason.String())
	}
	return nil
}
