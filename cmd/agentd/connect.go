package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"execsession.dev/agentd"
)

func newConnect() *cobra.Command {
	socket := agentd.DefaultSocket
	cmd := &cobra.Command{
		Use:   "connect",
		Short: "Join standard input and output to agentd's socket",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := agentd.Dial(cmd.Context(), socket)
			if err != nil {
				return err
			}
			// agentd looked at our executable before its verdict, which it could not have
			// done to a process that is not dumpable. From here on nobody of the same user
			// may write into the client's stream.
			if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
				return errors.Join(err, conn.Close())
			}
			return agentd.Splice(conn, os.Stdin, os.Stdout)
		},
	}
	cmd.Flags().StringVar(&socket, "socket", socket, "agentd's socket: a path, or @ and an abstract name")
	return cmd
}
