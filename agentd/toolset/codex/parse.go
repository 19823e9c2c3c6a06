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

// sandboxPermissions are the values of the field of that name.
var sandboxPermissions = []string{"use_default", "require_escalated", "with_additional_permissions"}

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
//	stdin                string, piped in and then closed
//	env                  object of strings
//	timeout_ms           whole number of milliseconds that the command may live
//
// Its errors are *ArgumentError.
func ParseExecCommand(arguments []byte) (*wire.ExecCommandRequest, error) {
	command := &wire.Command{}
	request := &wire.ExecCommandRequest{Command: command}
	var script string
	err := parseObject(arguments, map[string]setter{
		"cmd":                 asString(&script),
		"workdir":             asString(&command.Workdir),
		"tty":                 asBool(func(b bool) { command.Tty = b }),
		"yield_time_ms":       asWhole(0, math.MaxInt64, func(n int64) { request.YieldTimeMs = &n }),
		"max_output_tokens":   asWhole(0, math.MaxInt64, func(n int64) { request.MaxOutputTokens = &n }),
		"shell":               asString(&command.Shell),
		"login":               asBool(func(b bool) { command.Login = &b }),
		"environment_id":      asString(&request.EnvironmentId),
		"sandbox_permissions": asPermissions(&request.SandboxPermissions),
		"justification":       asString(&request.Justification),
		"prefix_rule":         asStrings(&request.PrefixRule),
		"stdin":               asInput(command),
		"env":                 asStringMap(&command.Env),
		"timeout_ms": asWhole(1, math.MaxInt64/int64(time.Millisecond), func(n int64) {
			command.Timeout = durationpb.New(time.Duration(n) * time.Millisecond)
		}),
	}, "cmd")
	if err != nil {
		return nil, err
	}
	if request.Justification != "" && request.SandboxPermissions == "" {
		return nil, &ArgumentError{Field: "justification", Problem: "needs sandbox_permissions: set it to require_escalated, or leave the justification out"}
	}
	command.Program = &wire.Command_Script{Script: script}
	return request, nil
}

// ParseWriteStdin reads the arguments of write_stdin:
//
//	session_id         whole number that exec_command gave; must be given
//	chars              string; empty only polls
//	yield_time_ms      whole number of milliseconds to wait for output or the end
//	max_output_tokens  whole number
//
// Its errors are *ArgumentError.
func ParseWriteStdin(arguments []byte) (*wire.WriteStdinRequest, error) {
	request := &wire.WriteStdinRequest{}
	err := parseObject(arguments, map[string]setter{
		"session_id":        asWhole(math.MinInt32, math.MaxInt32, func(n int64) { request.SessionId = int32(n) }),
		"chars":             asString(&request.Chars),
		"yield_time_ms":     asWhole(0, math.MaxInt64, func(n int64) { request.YieldTimeMs = &n }),
		"max_output_tokens": asWhole(0, math.MaxInt64, func(n int64) { request.MaxOutputTokens = &n }),
	}, "session_id")
	if err != nil {
		return nil, err
	}
	return request, nil
}

func asPermissions(into *string) setter {
	return func(field string, value json.RawMessage) error {
		var given string
		if err := asString(&given)(field, value); err != nil {
			return err
		}
		if !slices.Contains(sandboxPermissions, given) {
			return wrong(field, value, "must be one of %s", strings.Join(sandboxPermissions, ", "))
		}
		*into = given
		return nil
	}
}

func asInput(command *wire.Command) setter {
	return func(field string, value json.RawMessage) error {
		var text string
		if err := asString(&text)(field, value); err != nil {
			return err
		}
		command.Stdin, command.StdinData = wire.StdinMode_STDIN_MODE_DATA, []byte(text)
		return nil
	}
}
