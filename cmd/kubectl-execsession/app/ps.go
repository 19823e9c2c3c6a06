package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"execsession.dev/agentd/toolset/codex"
	"execsession.dev/agentd/wire"
)

// listWait bounds a call that waits for no command.
const listWait = time.Minute

func (p *plugin) newPs() *cobra.Command {
	var at place
	var output string
	cmd := &cobra.Command{
		Use:   "ps SESSION",
		Short: "List the commands that run, and those that ended and are still kept",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{"table", "json", "wide"}, output) {
				return fmt.Errorf("-o %q: must be table, json or wide", output)
			}
			return p.withEngine(cmd.Context(), &at, args, func(ctx context.Context, e *engine, rest []string) error {
				if len(rest) > 0 {
					return fmt.Errorf("unexpected argument %q", rest[0])
				}
				processes, err := e.ListProcesses(ctx)
				if err != nil {
					return e.explain(err, 0)
				}
				slices.SortFunc(processes, func(a, b *wire.Process) int {
					return cmp.Or(a.GetStartTime().AsTime().Compare(b.GetStartTime().AsTime()), cmp.Compare(a.GetId(), b.GetId()))
				})
				if output == "json" {
					return printProcessesJSON(p.Out, processes)
				}
				return printProcesses(p.Out, processes, output == "wide", time.Now())
			})
		},
	}
	at.addFlags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, wide or json")
	return cmd
}

// withEngine connects, makes one short call and closes; --local is refused, because an
// agentd that was just started has nothing to tell.
func (p *plugin) withEngine(ctx context.Context, at *place, args []string, call func(context.Context, *engine, []string) error) error {
	if err := at.noLocal(); err != nil {
		return err
	}
	session, rest, err := at.split(args)
	if err != nil {
		return err
	}
	return p.connected(ctx, at, session, func(ctx context.Context, e *engine) error {
		ctx, cancel := context.WithTimeout(ctx, listWait)
		defer cancel()
		return call(ctx, e, rest)
	})
}

// connected connects, does f until it ends or a signal comes, and closes.
func (p *plugin) connected(ctx context.Context, at *place, session string, f func(context.Context, *engine) error) (err error) {
	ctx, stop := interruptible(ctx)
	defer stop()
	e, err := p.open(ctx, at, session)
	if err != nil {
		return err
	}
	defer func() {
		if closing := e.close(); err == nil {
			err = closing
		}
	}()
	return f(ctx, e)
}

// processLine is a process in the output of ps -o json.
type processLine struct {
	ID           int32     `json:"id"`
	State        string    `json:"state"`
	Command      string    `json:"command"`
	Workdir      string    `json:"workdir"`
	TTY          bool      `json:"tty"`
	PID          int32     `json:"pid"`
	StartTime    time.Time `json:"startTime"`
	OutputBytes  uint64    `json:"outputBytes"`
	DroppedBytes uint64    `json:"droppedBytes"`
	// OutputLost says that agentd was killed while the command ran: outputBytes is not known.
	OutputLost  bool       `json:"outputLost,omitempty"`
	Descendants int32      `json:"descendants"`
	ExitCode    *int32     `json:"exitCode,omitempty"`
	Reason      string     `json:"reason,omitempty"`
	Signal      string     `json:"signal,omitempty"`
	Message     string     `json:"message,omitempty"`
	EndTime     *time.Time `json:"endTime,omitempty"`
	// Denied counts the calls that the sandbox refused, and Denials tells them by their kind.
	Denied  uint64         `json:"denied"`
	Denials []codex.Denial `json:"denials,omitempty"`
}

// reasonNames are the ledger's words.
var reasonNames = map[wire.ExitReason]string{
	wire.ExitReason_EXIT_REASON_EXITED:         "Exited",
	wire.ExitReason_EXIT_REASON_SIGNALED:       "Signaled",
	wire.ExitReason_EXIT_REASON_TIMED_OUT:      "TimedOut",
	wire.ExitReason_EXIT_REASON_STOPPED:        "Stopped",
	wire.ExitReason_EXIT_REASON_OUT_OF_MEMORY:  "OutOfMemory",
	wire.ExitReason_EXIT_REASON_POLICY:         "Policy",
	wire.ExitReason_EXIT_REASON_ENGINE_STOPPED: "EngineStopped",
}

func lineOf(process *wire.Process) processLine {
	line := processLine{
		ID: process.GetId(), State: "Running", Command: process.GetCommand(), Workdir: process.GetWorkdir(),
		TTY: process.GetTty(), PID: process.GetPid(), StartTime: process.GetStartTime().AsTime(),
		OutputBytes: process.GetOutputBytes(), DroppedBytes: process.GetDroppedBytes(), OutputLost: process.GetOutputLost(), Descendants: process.GetDescendants(),
		Denied: deniedCalls(process.GetDenials()), Denials: codex.Denials(process.GetDenials()),
	}
	if record := process.GetExit(); record != nil {
		code, end := record.GetExitCode(), record.GetEndTime().AsTime()
		line.State, line.ExitCode, line.EndTime = "Exited", &code, &end
		line.Reason, line.Signal, line.Message = reasonNames[record.GetReason()], record.GetSignal(), record.GetMessage()
	}
	return line
}

func deniedCalls(denials []*wire.Denial) (calls uint64) {
	for _, denial := range denials {
		calls += denial.GetCount()
	}
	return calls
}

func printProcessesJSON(to io.Writer, processes []*wire.Process) error {
	lines := make([]processLine, len(processes))
	for i, process := range processes {
		lines[i] = lineOf(process)
	}
	return printJSON(to, map[string]any{"processes": lines})
}

func printJSON(to io.Writer, form any) error {
	encoded, err := codex.EncodeJSON(form, "  ")
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	_, err = fmt.Fprintf(to, "%s\n", encoded)
	return err
}

func printProcesses(to io.Writer, processes []*wire.Process, wide bool, now time.Time) error {
	table := tabwriter.NewWriter(to, 0, 8, 3, ' ', 0)
	columns := []string{"ID", "STATUS", "AGE", "TTY", "OUTPUT", "DENIED", "COMMAND"}
	if wide {
		columns = []string{"ID", "STATUS", "AGE", "TTY", "OUTPUT", "DENIED", "DROPPED", "PID", "DESCENDANTS", "WORKDIR", "COMMAND"}
	}
	fmt.Fprintln(table, strings.Join(columns, "\t"))
	for _, process := range processes {
		line := lineOf(process)
		cells := []any{line.ID, statusOf(line), now.Sub(line.StartTime).Round(time.Second), yesNo(line.TTY), outputOf(line), line.Denied}
		if wide {
			cells = append(cells, line.DroppedBytes, line.PID, line.Descendants, codex.Quote(line.Workdir))
		}
		command := codex.Quote(strings.Join(strings.Fields(line.Command), " "))
		if !wide {
			command = cutRunes(command, 60)
		}
		for _, cell := range append(cells, command) {
			fmt.Fprintf(table, "%v\t", cell)
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

func statusOf(line processLine) string {
	switch {
	case line.ExitCode == nil:
		return line.State
	case line.Reason == "Exited" || line.Reason == "":
		return fmt.Sprintf("Exited(%d)", *line.ExitCode)
	case line.Signal != "":
		return fmt.Sprintf("%s(%s)", line.Reason, codex.Quote(line.Signal))
	}
	return fmt.Sprintf("%s(%d)", line.Reason, *line.ExitCode)
}

// outputOf is how much was written, if anybody knows.
func outputOf(line processLine) string {
	if line.OutputLost {
		return "lost"
	}
	return strconv.FormatUint(line.OutputBytes, 10)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func cutRunes(s string, limit int) string {
	runes := []rune(s)
	if len(runes) <= limit {
		return s
	}
	return string(runes[:limit-1]) + "…"
}
