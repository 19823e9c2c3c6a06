package app

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"execsession.dev/agentd/toolset/codex"
)

func (p *plugin) newVersion() *cobra.Command {
	var at place
	cmd := &cobra.Command{
		Use:   "version [SESSION]",
		Short: "Print the plugin's version and, with SESSION or --socket, the agent's",
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := fmt.Fprintln(p.Out, "kubectl-execsession", p.version); err != nil {
				return err
			}
			if len(args) == 0 && !at.here() {
				return nil
			}
			return p.withEngine(cmd.Context(), &at, args, func(ctx context.Context, e *engine, _ []string) error {
				status, err := e.GetStatus(ctx)
				if err != nil {
					return e.explain(err, 0)
				}
				_, err = fmt.Fprintln(p.Out, "agentd", codex.Escape(status.GetVersion()))
				return err
			})
		},
	}
	at.addFlags(cmd)
	return cmd
}

// moduleVersion is for `go install`, which knows the version of the module and no linker
// flag of ours.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "dev"
	}
	return info.Main.Version
}
