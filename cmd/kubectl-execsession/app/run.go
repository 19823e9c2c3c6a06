package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"execsession.dev/agentd/client"
	"execsession.dev/agentd/toolset/codex"
	"execsession.dev/agentd/wire"
)

// runFlags are the flags of run.
type runFlags struct {
	place
	stdin, tty, detach bool
	workdir            string
	env                []string
	timeout            time.Duration
	// narrowing is what the command does without of what the profile allows.
	narrowing wire.Narrowing
}

func (p *plugin) newRun() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:   "run SESSION -- COMMAND [ARG...]",
		Short: "Run a command and exit with its code",
		Long: `Run a command in a session and exit with its code.

The first Ctrl-C interrupts the command (with -i -t it is the terminal's own), a second
one detaches: the command keeps running. Exit code 254 means that nothing is known about
the command's end, 255 that the call itself failed.`,
		Example: `  kubectl execsession run hello -- sh -c 'echo out; exit 7'
  kubectl execsession run -i -t hello -- bash
  kubectl execsession run --local -- make test`,
		RunE: func(cmd *cobra.Command, args []string) error {
			session, command, err := f.parse(cmd, args)
			if err != nil {
				return err
			}
			return p.run(cmd.Context(), f, session, command)
		},
	}
	f.addFlags(cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&f.stdin, "stdin", "i", false, "pass standard input to the command")
	flags.BoolVarP(&f.tty, "tty", "t", false, "run the command in a terminal")
	flags.StringVarP(&f.workdir, "workdir", "w", "", "the folder to run in; relative to the workspace")
	flags.StringArrayVar(&f.env, "env", nil, "KEY=VALUE for the command; may be given again")
	flags.DurationVar(&f.timeout, "timeout", 0, "end the command after this time")
	flags.StringVar(&f.narrowing.Filesystem, "sandbox-filesystem", "", "run with less than the profile allows: ReadOnly or WorkspaceWrite")
	flags.StringVar(&f.narrowing.Network, "sandbox-network", "", "run with less than the profile allows: None or Loopback")
	flags.BoolVar(&f.detach, "detach", false, "print the process's number and leave it running")
	return cmd
}

// parse gives the session and the command.
func (f *runFlags) parse(cmd *cobra.Command, args []string) (string, *wire.Command, error) {
	dash := cmd.ArgsLenAtDash()
	if dash < 0 || dash == len(args) {
		return "", nil, errors.New("which command? It comes after --, as in `run SESSION -- COMMAND`")
	}
	session, rest, err := f.split(args[:dash])
	if err != nil {
		return "", nil, err
	}
	if len(rest) > 0 {
		return "", nil, fmt.Errorf("unexpected argument %q before --", rest[0])
	}
	if f.detach && (f.stdin || f.tty) {
		return "", nil, errors.New("--detach leaves nobody to type: it excludes -i and -t")
	}
	if f.detach {
		if err := f.noLocal(); err != nil {
			return "", nil, err
		}
	}
	if f.timeout < 0 {
		return "", nil, fmt.Errorf("--timeout %s: must not be negative", f.timeout)
	}
	command := &wire.Command{
		Program: &wire.Command_Argv{Argv: &wire.Argv{Args: args[dash:]}},
		Workdir: f.workdir,
		Tty:     f.tty,
	}
	if command.Env, err = f.environment(); err != nil {
		return "", nil, err
	}
	if f.timeout > 0 {
		command.Timeout = durationpb.New(f.timeout)
	}
	if f.narrowing.GetFilesystem() != "" || f.narrowing.GetNetwork() != "" {
		command.Sandbox = &f.narrowing
	}
	if f.stdin {
		command.Stdin = wire.StdinMode_STDIN_MODE_OPEN
	}
	return session, command, nil
}

// environment is what --env says. With -t it is also what kind of terminal stands here:
// the command writes to that one, and the engine can not know it.
func (f *runFlags) environment() (map[string]string, error) {
	env := map[string]string{}
	if kind := os.Getenv("TERM"); f.tty && kind != "" {
		env["TERM"] = kind
	}
	for _, assignment := range f.env {
		name, value, ok := strings.Cut(assignment, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--env %q: must be KEY=VALUE", assignment)
		}
		env[name] = value
	}
	return env, nil
}

func (p *plugin) run(ctx context.Context, f *runFlags, session string, command *wire.Command) (err error) {
	console := p.newConsole(f.stdin, f.tty)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer console.watch(cancel)()
	e, err := p.open(ctx, &f.place, session)
	if err != nil {
		return err
	}
	defer func() {
		if closing := e.close(); err == nil {
			err = closing
		}
	}()
	if f.detach {
		return p.runDetached(ctx, e, command)
	}
	command.Size = console.size()
	if err := console.raw(); err != nil {
		return err
	}
	var denials []*wire.Denial
	streams := console.streams(e)
	streams.OnDenials = func(refused []*wire.Denial) { denials = refused }
	record, err := e.Run(ctx, command, streams)
	console.restore()
	if err != nil {
		return p.noRecord(e, console, err)
	}
	if hint := denialHint(record, denials); hint != "" {
		console.say("%s", hint)
	}
	return ending(record)
}

// denialHint is what to say after a command that failed and was refused something. Whether one is the other's reason,
// nobody knows.
func denialHint(record *wire.ExitRecord, denials []*wire.Denial) string {
	if record.GetExitCode() == 0 || len(denials) == 0 {
		return ""
	}
	hint := "note: the sandbox refused " + codex.DenialText(denials[0])
	if more := deniedCalls(denials[1:]); more > 0 {
		hint += fmt.Sprintf("; and %d more, see ps -o json", more)
	}
	return hint
}

func (p *plugin) runDetached(ctx context.Context, e *engine, command *wire.Command) error {
	process, err := e.Start(ctx, command)
	if err != nil {
		return e.explain(err, 0)
	}
	fmt.Fprintf(p.Err, "stop it with: kubectl execsession stop %s %d\n", e.flags, process.GetId())
	_, err = fmt.Fprintln(p.Out, process.GetId())
	return err
}

// noRecord chooses between 254, when a command may be left behind, and 255.
func (p *plugin) noRecord(e *engine, console *console, err error) error {
	process := console.process.Load()
	switch {
	case errors.Is(err, errDetached) && process != 0 && e.local == nil:
		err = fmt.Errorf("%w: process %d keeps running; stop it with: kubectl execsession stop %s %d", errDetached, process, e.flags, process)
		return &codeError{exitNoRecord, err}
	case errors.Is(err, errDetached) && process != 0:
		return &codeError{exitNoRecord, errors.New("left: the command ends with its agentd")}
	case errors.Is(err, client.ErrNoExitRecord), process != 0:
		return &codeError{exitNoRecord, e.explain(err, process)}
	}
	return e.explain(err, 0)
}

// endings say why a command ended that something other than itself ended.
var endings = map[wire.ExitReason]string{
	wire.ExitReason_EXIT_REASON_TIMED_OUT:      "the command was ended: its timeout was over",
	wire.ExitReason_EXIT_REASON_STOPPED:        "the command was stopped on request",
	wire.ExitReason_EXIT_REASON_OUT_OF_MEMORY:  "the command was ended: memory ran out",
	wire.ExitReason_EXIT_REASON_POLICY:         "the policy ended the command",
	wire.ExitReason_EXIT_REASON_ENGINE_STOPPED: "engine stopped: the command was ended with it",
}

// ending is how the plugin ends after the command did. The code is the record's. Were it 0
// after an end that was not the command's own, a script would take it for success.
func ending(record *wire.ExitRecord) error {
	code := int(record.GetExitCode())
	reason, forced := endings[record.GetReason()]
	if !forced {
		if code == 0 && record.GetReason() == wire.ExitReason_EXIT_REASON_EXITED {
			return nil
		}
		if code < 0 {
			return &codeError{exitNoRecord, fmt.Errorf("the command's exit code is not known: %s", record.GetMessage())}
		}
		if code == 0 {
			return &codeError{exitNoRecord, fmt.Errorf("the command ended in a way that this version does not know: %v", record.GetReason())}
		}
		return &codeError{code: code}
	}
	switch message := record.GetMessage(); {
	case message == "":
	case record.GetReason() == wire.ExitReason_EXIT_REASON_TIMED_OUT:
		// The engine's words say which timeout it was, and so all that ours do.
		reason = "the command was ended: " + message
	default:
		reason += ": " + message
	}
	if record.GetSignal() != "" {
		reason += " (" + record.GetSignal() + ")"
	}
	if code <= 0 {
		// Negative is a code that nobody knows, as after a kill of agentd.
		code = exitNoRecord
	}
	return &codeError{code, errors.New(reason)}
}
