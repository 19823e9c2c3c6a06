package app

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
)

func (p *plugin) newSignal() *cobra.Command {
	var at place
	cmd := &cobra.Command{
		Use:   "signal SESSION PROCESS SIGNAL",
		Short: "Send a signal to a command and its descendants",
		Long: `Send a signal to a command and all its descendants. INT, QUIT and TSTP go where a terminal's key
goes: to the foreground process group. SIGNAL is a name such as INT or SIGTERM, RTMIN+1 and
RTMAX-1 too, or a number from 1 to 64.`,
		Example: "  kubectl execsession signal hello 1234 HUP",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.withEngine(cmd.Context(), &at, args, func(ctx context.Context, e *engine, rest []string) error {
				if len(rest) != 2 {
					return errors.New("want PROCESS and SIGNAL, as in `signal SESSION 1234 HUP`")
				}
				process, err := processID(rest[0])
				if err != nil {
					return err
				}
				return e.explain(e.Signal(ctx, process, rest[1]), process)
			})
		},
	}
	at.addFlags(cmd)
	return cmd
}
