package app

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func (p *plugin) newInterrupt() *cobra.Command {
	var at place
	cmd := &cobra.Command{
		Use:   "interrupt SESSION",
		Short: "End the waits of the exec and stdin calls that are being made; the commands go on",
		Long: `End the waits of all exec and stdin calls that are being made, also other people's, as the
end of an agent's turn does. They answer with what there is so far. The commands go on,
except those of --mode one-shot and --mode buffered, which nobody could come back to: they
are stopped, and their results say so. See signal for what a Ctrl-C does to one, and stop
for ending them.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.withEngine(cmd.Context(), &at, args, func(ctx context.Context, e *engine, rest []string) error {
				if len(rest) > 0 {
					return fmt.Errorf("unexpected argument %q", rest[0])
				}
				waits, err := e.Interrupt(ctx)
				if err != nil {
					return e.explain(err, 0)
				}
				_, err = fmt.Fprintf(p.Out, "%d waits ended\n", waits)
				return err
			})
		},
	}
	at.addFlags(cmd)
	return cmd
}
