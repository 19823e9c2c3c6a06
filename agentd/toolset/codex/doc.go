// Package codex is the dialect of exec_command and write_stdin: it turns the tools' JSON
// arguments into requests of the wire, and results of the wire into the tools' structured
// form or into the text that a model reads.
//
// Parsing is strict. A field that the tool does not have, one that is given twice, a value
// of another type, a number with a fraction, half a character and anything after the object are errors that
// name the field and show the value, or its place, because a model can mend only what it is told. Two
// things are let pass: null for a field that may be left out means that it was, and a
// whole number may be written with a decimal point (250.0). Limits such as the shortest
// yield time are the agent's: it keeps to them and says so in the result's notices.
//
// Beside the two tools there are the forms in which a command runs to its end: the tool
// without write_stdin (ParseOneShot) and a run whose two streams are kept apart
// (ParseBuffered).
//
// What the sandbox refused a command is in its results, as facts that the sandbox itself
// reports: nothing is read out of the command's words or code.
package codex
