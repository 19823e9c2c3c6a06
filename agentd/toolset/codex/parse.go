package codex

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"execsession.dev/agentd/wire"
)

// permissionsDefault asks for what the profile allows.
const permissionsDefault = "use_default"

// sandboxPermissions are the values of the field of that name.
var sandboxPermissions = []string{permissionsDefault, "require_escalated", "with_additional_permissions"}

// filesystemModes and networkModes are the profile's.
var (
	filesystemModes = []string{"ReadOnly", "WorkspaceWrite", "FullAccess"}
	networkModes    = []string{"None", "Loopback", "Proxy", "Open"}
)

// ParseExecCommand reads the arguments of exec_command:
//
//	cmd                  string, shell text; the only one that must be given
//	workdir              string, relative to the workspace; empty is the workspace
//	tty                  bool, a terminal instead of pipes
//	yield_time_ms        whole number of milliseconds to wait for the end
//	max_output_tokens    whole number
//	shell, login         string, bool: which shell, and whether as a login shell
//	environment_id       string
//	sandbox_permissions  use_default, require_escalated or with_additional_permissions
//	justification        string; only with sandbox_permissions
//	prefix_rule          array of strings
//
// and these, which the tool does not have elsewhere:
//
//	stdin                string, piped in and then closed
//	stdin_open           bool, pipes whose input stays open for write_stdin
//	env                  object of strings
//	timeout_ms           whole number of milliseconds that the command may live
//	sandbox              object: what the command does without of what the profile allows,
//	                     {filesystem: ReadOnly, WorkspaceWrite or FullAccess,
//	                     network: None, Loopback, Proxy or Open}, each of which may be left out
//
// Its errors are *ArgumentError.
func ParseExecCommand(arguments []byte) (*wire.ExecCommandRequest, error) {
	a := newCommandArguments()
	request := &wire.ExecCommandRequest{Command: a.command}
	a.fields["tty"] = asBool(func(b bool) { a.command.Tty = b })
	a.fields["stdin_open"] = asBool(func(b bool) { a.open = b })
	a.fields["yield_time_ms"] = asWhole(0, math.MaxInt64, func(n int64) { request.YieldTimeMs = &n })
	a.fields["max_output_tokens"] = asWhole(0, math.MaxInt64, func(n int64) { request.MaxOutputTokens = &n })
	if err := a.parse(arguments); err != nil {
		return nil, err
	}
	request.EnvironmentId, request.SandboxPermissions, request.Justification, request.PrefixRule = a.environment, a.permissions, a.justification, a.prefixRule
	return request, nil
}

// ParseOneShot reads the arguments of exec_command where there is no write_stdin: the
// command runs to its end or until timeout_ms (10000) is over. So there is no tty, no
// stdin_open and no yield_time_ms; the rest is as in ParseExecCommand. Its errors are
// *ArgumentError.
func ParseOneShot(arguments []byte) (*wire.ExecCommandRequest, error) {
	a := newCommandArguments()
	request := &wire.ExecCommandRequest{Command: a.command, OneShot: true}
	a.fields["max_output_tokens"] = asWhole(0, math.MaxInt64, func(n int64) { request.MaxOutputTokens = &n })
	if err := a.parse(arguments); err != nil {
		return nil, err
	}
	request.EnvironmentId, request.SandboxPermissions, request.Justification, request.PrefixRule = a.environment, a.permissions, a.justification, a.prefixRule
	return request, nil
}

// aggregateBytes is how much both streams together may have in a buffered run.
const aggregateBytes = 1 << 20

// ParseBuffered reads the arguments of a run whose streams are wanted apart: those of
// ParseOneShot without max_output_tokens, and
//
//	stream_bytes  whole number of bytes that are kept of each stream (1 MiB)
//	user_shell    bool: a person's own command, which has an hour when timeout_ms is left out
//
// Its errors are *ArgumentError.
func ParseBuffered(arguments []byte) (*wire.RunRequest, error) {
	a := newCommandArguments()
	request := &wire.RunRequest{Command: a.command, AggregateBytes: new(int64(aggregateBytes))}
	a.fields["stream_bytes"] = asWhole(1, math.MaxInt64, func(n int64) { request.StreamBytes = &n })
	a.fields["user_shell"] = asBool(func(b bool) { request.UserShell = b })
	if err := a.parse(arguments); err != nil {
		return nil, err
	}
	request.EnvironmentId, request.SandboxPermissions, request.Justification, request.PrefixRule = a.environment, a.permissions, a.justification, a.prefixRule
	return request, nil
}

// commandArguments are the arguments that every way to run a command has.
type commandArguments struct {
	fields  map[string]setter
	command *wire.Command

	script                                  string
	environment, permissions, justification string
	prefixRule                              []string
	// open is stdin_open, given stdin.
	open, given bool
}

func newCommandArguments() *commandArguments {
	a := &commandArguments{command: &wire.Command{}}
	a.fields = map[string]setter{
		"cmd":                 asString(&a.script),
		"workdir":             asString(&a.command.Workdir),
		"shell":               asString(&a.command.Shell),
		"login":               asBool(func(b bool) { a.command.Login = &b }),
		"environment_id":      asString(&a.environment),
		"sandbox_permissions": asOneOf(&a.permissions, sandboxPermissions),
		"justification":       asString(&a.justification),
		"prefix_rule":         asStrings(&a.prefixRule),
		"sandbox":             asNarrowing(&a.command.Sandbox),
		"stdin":               a.takeInput,
		"env":                 asStringMap(&a.command.Env),
		"timeout_ms": asWhole(1, math.MaxInt64/int64(time.Millisecond), func(n int64) {
			a.command.Timeout = durationpb.New(time.Duration(n) * time.Millisecond)
		}),
	}
	return a
}

func (a *commandArguments) takeInput(field string, value json.RawMessage) error {
	var text string
	if err := asString(&text)(field, value); err != nil {
		return err
	}
	a.given, a.command.StdinData = true, []byte(text)
	return nil
}

// parse reads the arguments and checks what they say together.
func (a *commandArguments) parse(arguments []byte) error {
	if err := parseObject(arguments, a.fields, "cmd"); err != nil {
		return err
	}
	switch {
	case a.script == "":
		return &ArgumentError{Field: "cmd", Problem: "is empty: there is nothing to run"}
	case a.justification != "" && a.permissions == "":
		return &ArgumentError{Field: "justification", Problem: "needs sandbox_permissions: set it to require_escalated, or leave the justification out"}
	case a.command.Sandbox != nil && a.permissions != "" && a.permissions != permissionsDefault:
		return &ArgumentError{Field: "sandbox", Problem: "asks for less than the profile allows, and sandbox_permissions " + a.permissions + " for more: leave one of them out"}
	case a.open && a.given:
		return &ArgumentError{Field: "stdin_open", Problem: "contradicts stdin, which is closed after its text: leave one of them out"}
	case a.open:
		a.command.Stdin = wire.StdinMode_STDIN_MODE_OPEN
	case a.given:
		a.command.Stdin = wire.StdinMode_STDIN_MODE_DATA
	}
	a.command.Program = &wire.Command_Script{Script: a.script}
	return nil
}

// ParseWriteStdin reads the arguments of write_stdin:
//
//	session_id         whole number that exec_command gave; must be given
//	chars              string; empty only polls
//	yield_time_ms      whole number of milliseconds to wait for output or the end
//	max_output_tokens  whole number
//	close_stdin        bool, ends the input after chars; the tool does not have it elsewhere
//
// Its errors are *ArgumentError.
func ParseWriteStdin(arguments []byte) (*wire.WriteStdinRequest, error) {
	request := &wire.WriteStdinRequest{}
	err := parseObject(arguments, map[string]setter{
		"session_id":        asWhole(math.MinInt32, math.MaxInt32, func(n int64) { request.SessionId = int32(n) }),
		"chars":             asString(&request.Chars),
		"yield_time_ms":     asWhole(0, math.MaxInt64, func(n int64) { request.YieldTimeMs = &n }),
		"max_output_tokens": asWhole(0, math.MaxInt64, func(n int64) { request.MaxOutputTokens = &n }),
		"close_stdin":       asBool(func(b bool) { request.CloseStdin = b }),
	}, "session_id")
	if err != nil {
		return nil, err
	}
	return request, nil
}

func asOneOf(into *string, values []string) setter {
	return func(field string, value json.RawMessage) error {
		var given string
		if err := asString(&given)(field, value); err != nil {
			return err
		}
		if !slices.Contains(values, given) {
			return wrong(field, value, "must be one of %s", strings.Join(values, ", "))
		}
		*into = given
		return nil
	}
}

func asNarrowing(into **wire.Narrowing) setter {
	return func(field string, value json.RawMessage) error {
		narrowing := &wire.Narrowing{}
		fields := map[string]setter{
			"filesystem": asOneOf(&narrowing.Filesystem, filesystemModes),
			"network":    asOneOf(&narrowing.Network, networkModes),
		}
		*into = narrowing
		return parseFields(field, value, fields)
	}
}
