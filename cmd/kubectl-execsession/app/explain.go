package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"execsession.dev/agentd/toolset/codex"
	"execsession.dev/agentd/wire"
)

// explainFlags are the flags of explain.
type explainFlags struct {
	place
	write, execute bool
	output         string
}

func (p *plugin) newExplain() *cobra.Command {
	f := &explainFlags{}
	cmd := &cobra.Command{
		Use:   "explain SESSION (path PATH [--write | --exec] | host HOST[:PORT] | syscall NAME [ARGUMENT...])",
		Short: "Say what a session's sandbox lets commands do, and by which rule",
		Long: `Say whether a command of the session may open a path, reach a host or make a system call,
and by which rule. The session's agent answers, from the rules that it enforces.

A path is absolute or relative to the workspace; with --write it may be missing, with
--exec it is a program. A host is asked about with port 443 unless it has another. A system
call without arguments is told with a case for each kind of arguments that makes a
difference. The exit code is 0 whatever the answer is.`,
		Example: `  kubectl execsession explain hello path /etc/passwd --write
  kubectl execsession explain hello host pypi.org:443
  kubectl execsession explain hello syscall socket 2 1 0`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.output != "text" && f.output != "json" {
				return fmt.Errorf("-o %q: must be text or json", f.output)
			}
			ask := func(ctx context.Context, e *engine, rest []string) error {
				request, err := f.request(rest)
				if err != nil {
					return err
				}
				answer, err := e.Explain(ctx, request)
				if err != nil {
					return e.explain(err, 0)
				}
				if f.output == "json" {
					return printAnswerJSON(p.Out, answer)
				}
				return printAnswer(p.Out, answer)
			}
			return p.askEngine(cmd.Context(), &f.place, args, ask)
		},
	}
	f.addFlags(cmd)
	cmd.Flags().BoolVar(&f.write, "write", false, "the path is to be written, or made")
	cmd.Flags().BoolVar(&f.execute, "exec", false, "the path is to be run")
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "text or json")
	return cmd
}

// askEngine is withEngine for what an agentd of its own knows as well.
func (p *plugin) askEngine(ctx context.Context, at *place, args []string, call func(context.Context, *engine, []string) error) error {
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

var errExplain = errors.New("want path PATH, host HOST[:PORT] or syscall NAME [ARGUMENT...]")

func (f *explainFlags) request(rest []string) (*wire.ExplainRequest, error) {
	if len(rest) < 2 {
		return nil, errExplain
	}
	kind, subject, arguments := rest[0], rest[1], rest[2:]
	if kind != "path" && (f.write || f.execute) {
		return nil, fmt.Errorf("--write and --exec are for a path, not for a %s", kind)
	}
	if kind != "syscall" && len(arguments) > 0 {
		return nil, fmt.Errorf("unexpected argument %q", arguments[0])
	}
	switch kind {
	case "path":
		if f.write && f.execute {
			return nil, errors.New("--write and --exec exclude each other")
		}
		about := &wire.ExplainPath{Path: subject, Access: wire.FileAccess_FILE_ACCESS_READ}
		if f.write {
			about.Access = wire.FileAccess_FILE_ACCESS_WRITE
		} else if f.execute {
			about.Access = wire.FileAccess_FILE_ACCESS_EXECUTE
		}
		return &wire.ExplainRequest{About: &wire.ExplainRequest_Path{Path: about}}, nil
	case "host":
		about, err := hostToExplain(subject)
		return &wire.ExplainRequest{About: &wire.ExplainRequest_Host{Host: about}}, err
	case "syscall":
		about := &wire.ExplainSyscall{Name: subject}
		for _, argument := range arguments {
			value, err := parseArgument(argument)
			if err != nil {
				return nil, err
			}
			about.Arguments = append(about.Arguments, value)
		}
		return &wire.ExplainRequest{About: &wire.ExplainRequest_Syscall{Syscall: about}}, nil
	}
	return nil, errExplain
}

// hostToExplain takes a port off. An IPv6 address without brackets has none.
func hostToExplain(text string) (*wire.ExplainHost, error) {
	if strings.Count(text, ":") != 1 && !strings.HasPrefix(text, "[") {
		return &wire.ExplainHost{Host: text}, nil
	}
	if host, found := strings.CutSuffix(text, "]"); found {
		return &wire.ExplainHost{Host: strings.TrimPrefix(host, "[")}, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return nil, fmt.Errorf("host %q: must be HOST or HOST:PORT", text)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return nil, fmt.Errorf("host %q: the port must be a number from 1 to 65535", text)
	}
	return &wire.ExplainHost{Host: host, Port: uint32(number)}, nil
}

// parseArgument takes what a program would pass: -1 is all bits.
func parseArgument(text string) (uint64, error) {
	if value, err := strconv.ParseUint(text, 0, 64); err == nil {
		return value, nil
	}
	value, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("argument %q: must be a number, such as 2 or 0x10", text)
	}
	return uint64(value), nil
}

// outcomeNames are the words of the output.
var outcomeNames = map[wire.Outcome]string{
	wire.Outcome_OUTCOME_ALLOWED: "Allowed", wire.Outcome_OUTCOME_REFUSED: "Refused", wire.Outcome_OUTCOME_DEPENDS: "Depends",
}

func printAnswer(to io.Writer, answer *wire.ExplainResponse) error {
	lines := []string{outcomeNames[answer.GetOutcome()] + ": " + answer.GetSubject(), answer.GetReason()}
	if answer.GetRule() != "" {
		lines = append(lines, "rule: "+answer.GetRule())
	}
	if answer.GetErrno() != "" {
		lines = append(lines, "fails with: "+answer.GetErrno())
	}
	for _, c := range answer.GetCases() {
		line := "  " + c.GetCondition() + ": " + outcomeNames[c.GetOutcome()]
		if c.GetErrno() != "" {
			line += " with " + c.GetErrno()
		}
		if c.GetRule() != "" {
			line += " by " + c.GetRule()
		}
		lines = append(lines, line)
	}
	for _, line := range answer.GetNotEnforced() {
		lines = append(lines, "not enforced here: "+line)
	}
	for i, line := range lines {
		lines[i] = codex.Escape(line)
	}
	_, err := fmt.Fprintln(to, strings.Join(lines, "\n"))
	return err
}

// answerLine is an answer in the output of explain -o json.
type answerLine struct {
	Outcome     string     `json:"outcome"`
	Subject     string     `json:"subject"`
	Rule        string     `json:"rule,omitempty"`
	Reason      string     `json:"reason"`
	Errno       string     `json:"errno,omitempty"`
	Cases       []caseLine `json:"cases,omitempty"`
	NotEnforced []string   `json:"notEnforced,omitempty"`
}

type caseLine struct {
	Condition string `json:"condition"`
	Outcome   string `json:"outcome"`
	Rule      string `json:"rule,omitempty"`
	Errno     string `json:"errno,omitempty"`
}

func printAnswerJSON(to io.Writer, answer *wire.ExplainResponse) error {
	line := answerLine{
		Outcome: outcomeNames[answer.GetOutcome()], Subject: answer.GetSubject(), Rule: answer.GetRule(), Reason: answer.GetReason(),
		Errno: answer.GetErrno(), NotEnforced: answer.GetNotEnforced(),
	}
	for _, c := range answer.GetCases() {
		line.Cases = append(line.Cases, caseLine{Condition: c.GetCondition(), Outcome: outcomeNames[c.GetOutcome()], Rule: c.GetRule(), Errno: c.GetErrno()})
	}
	return printJSON(to, line)
}
