// Package app is the plugin: one file per command, all of them over one engine, which is
// agentd in a session's pod, an agentd that serves a socket on this machine (--socket), or
// one that the plugin starts for the time of the call (--local).
//
// Exit codes. `run` exits with the command's own code: what its exit record says, 128 and
// the signal's number after a signal, and a message on standard error when something other
// than the command itself ended it. 254 means that no exit record could be had, so that
// nothing is known about the command's end; detaching is one such case, and so is `logs -f`
// that did not come to the end of the output. 255 is an error of
// the plugin or of the call, told in one line; every command uses it. A command may itself
// exit with 254 or 255; then nothing is written to standard error by the plugin. A code
// from the transport is never passed on.
//
// What is written for people is text: whatever a command chose of it, its own text among it, is shown with everything
// that does not print spelt out, so that no command steers the terminal of who looks at it. Only a command's
// output is passed on as it is.
package app
