package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"execsession.dev/agentd/client"
	"execsession.dev/agentd/toolset/codex"
	"execsession.dev/agentd/wire"
)

const (
	// callSlack is how much longer than its yield time a call may take.
	callSlack = time.Minute
	// longestYield is above what any profile allows.
	longestYield = 15 * time.Minute
	// maxArguments bounds JSON that is read from a file.
	maxArguments = 64 << 20
)

// toolFlags are the flags of exec and stdin.
type toolFlags struct {
	place
	output string
}

func (f *toolFlags) addFlags(cmd *cobra.Command) {
	f.place.addFlags(cmd)
	cmd.Flags().StringVarP(&f.output, "output", "o", "json", "json for the structured result, text for what a model reads")
}

// parse gives the session and the JSON arguments.
func (f *toolFlags) parse(p *plugin, args []string) (string, []byte, error) {
	if f.output != "json" && f.output != "text" {
		return "", nil, fmt.Errorf("-o %q: must be json or text", f.output)
	}
	session, rest, err := f.split(args)
	if err != nil {
		return "", nil, err
	}
	if len(rest) != 1 {
		return "", nil, fmt.Errorf("want the call's JSON arguments, - for standard input or @FILE, as one argument; got %d arguments", len(rest))
	}
	arguments, err := p.arguments(rest[0])
	return session, arguments, err
}

// arguments reads - from standard input and @FILE from a file.
func (p *plugin) arguments(given string) ([]byte, error) {
	name, isFile := strings.CutPrefix(given, "@")
	var from io.Reader
	switch {
	case given == "-":
		name, from = "standard input", p.In
	case isFile:
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("reading the arguments: %w", err)
		}
		defer file.Close()
		from = file
	default:
		return []byte(given), nil
	}
	data, err := io.ReadAll(io.LimitReader(from, maxArguments+1))
	if err != nil {
		return nil, fmt.Errorf("reading the arguments from %s: %w", name, err)
	}
	if len(data) > maxArguments {
		return nil, fmt.Errorf("reading the arguments from %s: more than %d bytes", name, maxArguments)
	}
	return bytes.TrimSpace(data), nil
}

// The ways in which exec runs a command.
const (
	modeInteractive = "interactive"
	modeOneShot     = "one-shot"
	modeBuffered    = "buffered"
)

func (p *plugin) newExec() *cobra.Command {
	f := &toolFlags{}
	var mode string
	cmd := &cobra.Command{
		Use:   "exec SESSION JSON",
		Short: "Make one exec_command call",
		Long: `Make one exec_command call: the tool's JSON arguments in (- reads standard input, @FILE a
file), its result out. Exits with 0 whatever the command's code is, with 255 when the call
failed. With --local a command that still runs when the call is over is ended with it.

Beside the tool's own arguments there are stdin (text that is piped in), stdin_open (pipes
whose input stays open for write_stdin), env (an object), timeout_ms (the command's own
life, apart from the wait) and sandbox (an object with filesystem and network: modes that
allow less than the profile's). Beside the tool's own results there are denials: what the
sandbox refused the command since its previous result.

With --mode one-shot the call waits for the command's end, and timeout_ms (10000 when it is
left out) bounds it; there is no tty, no yield_time_ms and no write_stdin. With --mode
buffered it does the same and keeps the two streams apart.`,
		Example: `  kubectl execsession exec hello '{"cmd":"make test","yield_time_ms":1000}'
  kubectl execsession exec hello --mode buffered '{"cmd":"make test","timeout_ms":600000}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{modeInteractive, modeOneShot, modeBuffered}, mode) {
				return fmt.Errorf("--mode %q: must be %s, %s or %s", mode, modeInteractive, modeOneShot, modeBuffered)
			}
			session, arguments, err := f.parse(p, args)
			if err != nil {
				return err
			}
			call, err := execCall(mode, arguments)
			if err != nil {
				return fmt.Errorf("exec_command: %w", err)
			}
			return p.callTool(cmd.Context(), f, session, call)
		},
	}
	f.addFlags(cmd)
	cmd.Flags().StringVar(&mode, "mode", modeInteractive, "interactive, one-shot (to the end) or buffered (to the end, with the streams apart)")
	return cmd
}

// toolCall is one call of a tool: how long the engine may take for it, and what gives its result.
type toolCall struct {
	wait time.Duration
	do   func(context.Context, *engine) (renderer, error)
}

// limit is how long the call may take. A wait can be as long as there are durations, to which nothing can be added.
func (c toolCall) limit() time.Duration {
	return min(max(c.wait, callSlack), math.MaxInt64-callSlack) + callSlack
}

// renderer gives a result's two forms.
type renderer struct {
	json func() ([]byte, error)
	text func() string
}

func renderTool(result *wire.ToolResult) renderer {
	return renderer{
		json: func() ([]byte, error) { return codex.RenderJSON(result) },
		text: func() string { return codex.RenderText(result) },
	}
}

func execCall(mode string, arguments []byte) (toolCall, error) {
	if mode == modeBuffered {
		request, err := codex.ParseBuffered(arguments)
		return toolCall{wait: lifetime(request.GetCommand(), request.GetUserShell()), do: func(ctx context.Context, e *engine) (renderer, error) {
			result, err := e.RunBuffered(ctx, request)
			return renderer{
				json: func() ([]byte, error) { return codex.RenderBufferedJSON(result) },
				text: func() string { return codex.RenderBufferedText(result) },
			}, e.lostCommand(err)
		}}, err
	}
	parse := codex.ParseExecCommand
	if mode == modeOneShot {
		parse = codex.ParseOneShot
	}
	request, err := parse(arguments)
	wait := yieldTime(request.GetYieldTimeMs())
	if mode == modeOneShot {
		wait = lifetime(request.GetCommand(), false)
	}
	return toolCall{wait: wait, do: func(ctx context.Context, e *engine) (renderer, error) {
		result, err := e.ExecCommand(ctx, request)
		err = e.lostCommand(err)
		if err == nil && mode == modeOneShot && result.SessionId != nil {
			// It passed over a word that it does not know.
			err = fmt.Errorf("%s is older than this plugin and does not wait for a command's end; process %d keeps running", e.name, result.GetSessionId())
		}
		if err == nil && e.local != nil {
			err = e.endWithCall(ctx, result)
		}
		return renderTool(result), err
	}}, err
}

// lostCommand says of a broken connection what it may have left.
func (e *engine) lostCommand(err error) error {
	var lost *client.ConnectionError
	if errors.As(err, &lost) && !lost.Dialing {
		return fmt.Errorf("%s: %w; the command may or may not run, see `ps`", e.name, err)
	}
	return e.explain(err, 0)
}

func yieldTime(ms int64) time.Duration {
	return time.Duration(min(ms, longestYield.Milliseconds())) * time.Millisecond
}

// lifetime is how long a command that runs to its end may live; the agent's defaults are known.
func lifetime(command *wire.Command, userShell bool) time.Duration {
	switch {
	case command.GetTimeout() != nil:
		return command.GetTimeout().AsDuration()
	case userShell:
		return time.Hour
	}
	return 10 * time.Second
}

func (p *plugin) newStdin() *cobra.Command {
	f := &toolFlags{}
	cmd := &cobra.Command{
		Use:   "stdin SESSION JSON",
		Short: "Make one write_stdin call",
		Long: `Make one write_stdin call, which feeds or polls a command that exec started: the tool's
JSON arguments in (- reads standard input, @FILE a file), its result out. Exits with 0
whatever the command's code is, with 255 when the call failed. Beside the tool's own
arguments there is close_stdin, which ends the input after chars.`,
		Example: `  kubectl execsession stdin hello '{"session_id":1234,"chars":"y\n"}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.noLocal(); err != nil {
				return err
			}
			session, arguments, err := f.parse(p, args)
			if err != nil {
				return err
			}
			request, err := codex.ParseWriteStdin(arguments)
			if err != nil {
				return fmt.Errorf("write_stdin: %w", err)
			}
			return p.callTool(cmd.Context(), f, session, toolCall{
				wait: yieldTime(request.GetYieldTimeMs()),
				do: func(ctx context.Context, e *engine) (renderer, error) {
					result, err := e.WriteStdin(ctx, request)
					return renderTool(result), e.explain(err, request.GetSessionId())
				},
			})
		},
	}
	f.addFlags(cmd)
	return cmd
}

// callTool makes one call and prints the result.
func (p *plugin) callTool(ctx context.Context, f *toolFlags, session string, call toolCall) error {
	return p.connected(ctx, &f.place, session, func(ctx context.Context, e *engine) error {
		ctx, cancel := context.WithTimeout(ctx, call.limit())
		defer cancel()
		result, err := call.do(ctx, e)
		if errors.Is(err, context.Canceled) {
			return errors.New("interrupted: the wait ended; a command that was not to run to its end keeps running")
		}
		if err != nil {
			return codex.Explain(err)
		}
		return p.printResult(result, f.output)
	})
}

func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
}

func (p *plugin) printResult(result renderer, format string) error {
	if format == "text" {
		_, err := fmt.Fprintln(p.Out, strings.TrimSuffix(result.text(), "\n"))
		return err
	}
	rendered, err := result.json()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.Out, "%s\n", rendered)
	return err
}

// endWithCall ends a command that still runs: its agentd ends with the call, so the result
// must not say that there is something to come back to.
func (e *engine) endWithCall(ctx context.Context, result *wire.ToolResult) error {
	if result.SessionId == nil {
		return nil
	}
	stopped, err := e.Stop(ctx, result.GetSessionId(), nil)
	if err != nil {
		return err
	}
	record := stopped.GetExit()
	code := record.GetExitCode()
	result.SessionId, result.ExitCode, result.Exit = nil, &code, record
	result.Notices = append(result.Notices, "the command still ran when the call was over and was ended with it: "+
		"--local keeps nothing between calls; run `agentd serve --local` and use --socket")
	return nil
}
