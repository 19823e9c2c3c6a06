package app

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"execsession.dev/agentd/client"
	"execsession.dev/agentd/toolset/codex"
	"execsession.dev/agentd/wire"
)

// logsFlags are the flags of logs.
type logsFlags struct {
	place
	follow bool
	since  uint64
	stream string
}

func (p *plugin) newLogs() *cobra.Command {
	f := &logsFlags{}
	cmd := &cobra.Command{
		Use:   "logs SESSION PROCESS",
		Short: "Print what a command wrote",
		Long: `Print what a command wrote, byte for byte, both streams in the order in which they came;
also of one that ended and is still kept. Bytes that are not kept any more are counted on
standard error, and so is what a broken connection left out, with the offset to go on at.

With -f it goes on until nobody can write any more: a descendant may outlive its command.
Exit code 254 means that not all of it was seen, and that is not counted: also when agentd
was killed while the command ran, with which its output is lost.`,
		Example: `  kubectl execsession logs hello 1234
  kubectl execsession logs hello 1234 -f --since-offset 65536`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.noLocal(); err != nil {
				return err
			}
			session, rest, err := f.split(args)
			if err != nil {
				return err
			}
			if len(rest) != 1 {
				return errors.New("want one PROCESS, as `ps` shows it")
			}
			process, err := processID(rest[0])
			if err != nil {
				return err
			}
			if f.stream != "all" && f.stream != "stdout" && f.stream != "stderr" {
				return fmt.Errorf("--stream %q: must be all, stdout or stderr", f.stream)
			}
			return p.connected(cmd.Context(), &f.place, session, func(ctx context.Context, e *engine) error {
				return p.logs(ctx, f, e, process)
			})
		},
	}
	f.addFlags(cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&f.follow, "follow", "f", false, "wait for more until nobody can write any more")
	flags.Uint64Var(&f.since, "since-offset", 0, "the byte of the whole output to begin at; both streams count")
	flags.StringVar(&f.stream, "stream", "all", "all, stdout (a terminal's output too) or stderr")
	return cmd
}

func (p *plugin) logs(ctx context.Context, f *logsFlags, e *engine, process int32) error {
	at := &position{offset: f.since}
	open := &wire.AttachOpen{ProcessId: process, FromOffset: f.since, NoFollow: !f.follow, UntilClosed: f.follow}
	_, err := e.Attach(ctx, open, client.Streams{
		Stdout:  at.through(p.Out, f.stream != "stderr"),
		Stderr:  at.through(p.Out, f.stream != "stdout"),
		OnStart: func(*wire.Process) { at.known = true },
		OnLost:  func() { at.lost = true },
		OnGap: func(from, to uint64) {
			at.offset = to
			fmt.Fprintf(p.Err, "warning: %d bytes of the output (from byte %d) are lost: they were no longer kept\n", to-from, from)
		},
		OnBreak: func(err error) {
			fmt.Fprintln(p.Err, codex.Escape(fmt.Sprintf("warning: %s: %v; trying again", e.name, err)))
		},
		OnResume: func() { fmt.Fprintln(p.Err, "connected again") },
	})
	switch {
	case err == nil && at.lost:
		return &codeError{exitNoRecord, fmt.Errorf("what process %d wrote is lost, and nobody knows how much: agentd was killed while it ran", process)}
	case err == nil:
		return nil
	case !at.known:
		return e.explain(err, process)
	case errors.Is(err, context.Canceled):
		err = errors.New("interrupted")
	}
	return &codeError{exitNoRecord, fmt.Errorf("%w; go on with --since-offset %d", e.explain(err, process), at.offset)}
}

// position is how far an output was read.
type position struct {
	offset uint64
	// known is set once the command was found.
	known bool
	// lost is set when nobody can have what follows.
	lost bool
}

// through counts what is written, and passes it on if it is wanted.
func (at *position) through(to io.Writer, wanted bool) io.Writer {
	if !wanted {
		to = io.Discard
	}
	return &countingWriter{to: to, at: at}
}

type countingWriter struct {
	to io.Writer
	at *position
}

func (w *countingWriter) Write(b []byte) (int, error) {
	n, err := w.to.Write(b)
	w.at.offset += uint64(n)
	return n, err
}
