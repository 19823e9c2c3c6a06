package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"execsession.dev/agentd"
)

// The main goroutine keeps the main thread for itself. A launcher locks its thread and
// lets it die confined; the main thread cannot die, and would stay confined for good.
func init() { runtime.LockOSThread() }

// exitError carries an exit code that is not 1.
type exitError struct {
	code int
	err  error // nil when there is nothing to say
}

// Error implements error.
func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

// Unwrap returns what there is to say.
func (e *exitError) Unwrap() error { return e.err }

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	code := exitFailed
	if exit, ok := errors.AsType[*exitError](err); ok {
		code = exit.code
		if exit.err == nil {
			return code
		}
	}
	fmt.Fprintln(stderr, "agentd:", err)
	return code
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "agentd",
		Short:         "Runs the commands of one session",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return &exitError{exitUsage, fmt.Errorf("which command? See %q", cmd.CommandPath()+" --help")}
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitError{exitUsage, err} })
	root.AddCommand(newServe(), newConnect(), newInstall(), newSandboxExec(), newVersion())
	return root
}

// usage makes an error of a command line exit with the code for it.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &exitError{exitUsage, err}
		}
		return nil
	}
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), agentd.Version)
			return err
		},
	}
}

func newInstall() *cobra.Command {
	return &cobra.Command{
		Use:   "install DIR",
		Short: "Copy this program into a folder",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			_, err := agentd.Install(args[0])
			return err
		},
	}
}
