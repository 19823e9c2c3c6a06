package codex

import (
	"errors"
	"strings"

	"execsession.dev/agentd/client"
)

// argumentOf says which argument a field of the wire comes from, where the names differ.
var argumentOf = map[string]string{
	"command.script":     "cmd",
	"script":             "cmd",
	"stdin_data":         "stdin",
	"command.stdin_data": "stdin",
	"command.timeout":    "timeout_ms",
	"timeout":            "timeout_ms",
}

// Explain turns the agent's error about a field of the wire into an *ArgumentError about
// the argument that the caller gave; it leaves every other error as it is.
func Explain(err error) error {
	answered, ok := errors.AsType[*client.Error](err)
	if !ok || answered.Field == "" {
		return err
	}
	name := answered.Field
	if argument, ok := argumentOf[name]; ok {
		name = argument
	} else {
		// The rest of a command's fields have the same names in the tool.
		name = strings.TrimPrefix(name, "command.")
	}
	return &ArgumentError{Field: name, Problem: strings.TrimPrefix(answered.Message, answered.Field+": ")}
}
