// Package unifiedexec starts, feeds, observes and ends processes over a terminal or
// pipes, one type for both, and answers the two calls that agents already know:
// exec_command and write_stdin.
//
// # The flow
//
//	Command --policy, shell--> launch (StartFunc) --> Process --pumps--> output log --> readers
//	                                                     |
//	                                    pidfd in the poller --> exit record --> Done, OnExit
//
// An Engine holds the table of processes. Start puts a process into the table and
// returns it; ExecCommand does the same and then waits for the end or for its yield
// time; WriteStdin feeds or polls one that still runs. Everything a process wrote is in
// its log at an absolute offset. A Reader is a cursor into that log: it blocks with a
// context, names the stream of every chunk and tells each byte it could not get as a gap.
//
// # Invariants
//
//   - A process is in the table before the first wait on it, so that giving up a wait
//     never loses a process. Ending a wait does not end the process.
//   - A command that could not be started is an error (StartError), never an exit code,
//     on a terminal and on pipes alike.
//   - Whoever is told a start or an end finds it in the journal, if there is one: an engine that follows one that was
//     killed tells the same (Restore).
//   - What leaves memory goes to a file or is a counted gap, and no failure of a disk is a failure of the command.
//   - The exit record is written once, from what the kernel said about the process. It
//     exists as soon as the process ended and the bytes that were in its pipes by then
//     are in the log. What a surviving descendant writes later is still readable.
//   - With nobody following, a process never waits for a reader. A reader that asked to
//     follow slows the process down instead of losing bytes, until it reads nothing for a
//     second; then it is let go and told its gap.
//   - Input that a process does not read waits in the engine, bounded, and holds up neither a call beyond
//     its yield time nor a signal. A Feed takes each byte of a client's input once, however often it is sent.
//   - No process costs a thread, and nothing polls: pipes, terminals and pidfds wait in the
//     runtime's poller.
//   - No signal is sent to a process id that was not checked to be still the same process.
//
// # Ending things
//
// These are different calls: Interrupt ends the waits of a turn, a context ends one wait, Process.Stop
// ends one process with all that descends from it, StopAll ends all of them, and Close ends the engine.
// Pause stops the clock of the waits, and of the lives of commands with a timeout, while a human is being
// asked. The owner of an orphan is told by a mark that it cannot take off; see docs/design/orphans.md.
//
// Which rule is held by which test is in docs/design/engine-rules.md.
//
// # Errors
//
// A caller branches on: *FieldError (a request's field has a bad value; nothing ran),
// *StartError (the program or its folder could not be used; nothing ran), the error of the
// StartFunc (wrapped, unchanged), *UnknownProcessError (also matches ErrUnknownProcess),
// ErrStdinClosed, ErrNotTerminal, ErrTableFull, ErrClosed and the context's own errors.
package unifiedexec
