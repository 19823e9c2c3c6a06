package app

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"execsession.dev/agentd/client"
	"execsession.dev/agentd/wire"
)

func (p *plugin) newStop() *cobra.Command {
	var at place
	var all bool
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "stop SESSION (PROCESS | --all)",
		Short: "End a command and all its descendants",
		Long:  "End a command and all its descendants: ask, wait the grace time, kill.",
		RunE: func(cmd *cobra.Command, args []string) error {
			var given *time.Duration
			if cmd.Flags().Changed("grace") {
				given = &grace
			}
			if grace < 0 || grace >= listWait {
				return fmt.Errorf("--grace %s: must be from 0 to less than %s", grace, listWait)
			}
			return p.withEngine(cmd.Context(), &at, args, func(ctx context.Context, e *engine, rest []string) error {
				if all && len(rest) == 0 {
					return p.stopAll(ctx, e, given)
				}
				if all || len(rest) != 1 {
					return errors.New("want one PROCESS, or --all instead")
				}
				process, err := processID(rest[0])
				if err != nil {
					return err
				}
				return e.explain(p.stop(ctx, e, process, given), process)
			})
		},
	}
	at.addFlags(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "end every command that runs")
	cmd.Flags().DurationVar(&grace, "grace", 0, "the time between asking and killing; left out, the engine's own")
	return cmd
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

// stopAll goes on after an error and tells all of them. A process that ended between the
// list and its turn is no error.
func (p *plugin) stopAll(ctx context.Context, e *engine, grace *time.Duration) error {
	processes, err := e.ListProcesses(ctx)
	if err != nil {
		return e.explain(err, 0)
	}
	var problems []error
	for _, process := range processes {
		if process.GetExit() != nil && process.GetDescendants() == 0 {
			continue
		}
		err := p.stop(ctx, e, process.GetId(), grace)
		if err != nil && client.Reason(err) != wire.ReasonUnknownProcess {
			problems = append(problems, fmt.Errorf("process %d: %w", process.GetId(), e.explain(err, process.GetId())))
		}
	}
	return errors.Join(problems...)
}
