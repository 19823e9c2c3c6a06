package app

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"execsession.dev/agentd/wire"
)

// stopFlags are the flags of stop.
type stopFlags struct {
	place
	all, agent bool
	grace      time.Duration
	// given is grace, nil when it was left out.
	given *time.Duration
}

func (p *plugin) newStop() *cobra.Command {
	f := &stopFlags{}
	cmd := &cobra.Command{
		Use:   "stop SESSION (PROCESS | --all | --agent)",
		Short: "End a command and all its descendants",
		Long: `End a command and all its descendants: ask, wait the grace time, kill.

--all ends every command, and what ended ones left behind. --agent ends the agentd that
serves --socket with everything that it runs; in a cluster a session ends with its object.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("grace") {
				f.given = &f.grace
			}
			if f.grace < 0 || f.grace >= listWait {
				return fmt.Errorf("--grace %s: must be from 0 to less than %s", f.grace, listWait)
			}
			return p.withEngine(cmd.Context(), &f.place, args, func(ctx context.Context, e *engine, rest []string) error {
				return p.stopAny(ctx, e, f, rest)
			})
		},
	}
	f.addFlags(cmd)
	cmd.Flags().BoolVar(&f.all, "all", false, "end every command that runs")
	cmd.Flags().BoolVar(&f.agent, "agent", false, "end agentd itself; only with --socket")
	cmd.Flags().DurationVar(&f.grace, "grace", 0, "the time between asking and killing; left out, the engine's own")
	return cmd
}

func (p *plugin) stopAny(ctx context.Context, e *engine, f *stopFlags, rest []string) error {
	if f.all && f.agent || (f.all || f.agent) && len(rest) > 0 || !f.all && !f.agent && len(rest) != 1 {
		return errors.New("want one of PROCESS, --all and --agent")
	}
	switch {
	case f.agent && f.given != nil:
		return errors.New("--grace is not for --agent: its commands end in the agent's own time")
	case f.agent:
		return p.stopAgent(ctx, e)
	case f.all:
		return p.stopAll(ctx, e, f.given)
	}
	process, err := processID(rest[0])
	if err != nil {
		return err
	}
	return e.explain(p.stop(ctx, e, process, f.given), process)
}

func processID(text string) (int32, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 || id > math.MaxInt32 {
		return 0, fmt.Errorf("PROCESS %q: must be the number of a process, as `ps` shows it", text)
	}
	return int32(id), nil
}

func (p *plugin) stop(ctx context.Context, e *engine, process int32, grace *time.Duration) error {
	answer, err := e.Stop(ctx, process, grace)
	if err != nil {
		return err
	}
	verb := "stopped"
	if !answer.GetWasRunning() {
		verb = "had ended"
	}
	line := lineOf(&wire.Process{Id: process, Exit: answer.GetExit()})
	_, err = fmt.Fprintf(p.Out, "process %d %s: %s\n", process, verb, statusOf(line))
	return err
}

func (p *plugin) stopAll(ctx context.Context, e *engine, grace *time.Duration) error {
	stopped, err := e.StopAll(ctx, grace)
	if err != nil {
		return e.explain(err, 0)
	}
	for _, process := range stopped {
		if _, err := fmt.Fprintf(p.Out, "process %d stopped: %s\n", process.GetId(), statusOf(lineOf(process))); err != nil {
			return err
		}
	}
	return nil
}

func (p *plugin) stopAgent(ctx context.Context, e *engine) error {
	answer, err := e.Shutdown(ctx)
	if err != nil {
		return e.explain(err, 0)
	}
	_, err = fmt.Fprintf(p.Out, "%s ended, and with it %d commands that ran\n", e.name, answer.GetRunningProcesses())
	return err
}
