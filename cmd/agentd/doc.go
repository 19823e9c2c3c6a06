// Command agentd runs the commands of one session. `agentd serve` is process id 1 of
// a session's container or, with --local, a process on somebody's machine; `agentd
// connect` is what the API server's exec runs to reach it; `agentd install` copies the
// program for another container; `agentd sandbox-exec` runs one program in a sandbox.
//
// Exit codes: 0 is success, 1 an error that is told on standard error, 2 a command line
// that cannot be understood. sandbox-exec passes on the program's code, or 128 and the
// number of the signal that ended it; 125 says that the sandbox could not be set up, 126
// that the program could not be run, 127 that it was not found: as env and timeout do.
package main
