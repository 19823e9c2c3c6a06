// Package conformance holds the two tools, exec_command and write_stdin, to their rules, as a user sees them:
// through `kubectl execsession exec|stdin|... --socket` and a real `agentd serve --local`.
//
// The scripts in testdata/script are for reading. Beside what testscript has anyway they use:
//
//	serve [ARG...]                       starts agentd on $WORK/ws with the socket $SOCKET
//	exec_command [-mode M] JSON CHECK... makes the call, which must succeed; $ID becomes the session id, if there is one
//	write_stdin JSON CHECK...            likewise; $ID in the JSON is the session id
//	poll CHECK...                        polls $ID until the command ended, and checks all of its output together
//	! exec_command JSON REGEXP...        the call must fail with one line on standard error that matches
//	plugin ARG...                        kubectl-execsession with --socket $SOCKET after the command's name
//	waitfile FILE                        waits until the file is there
//	gone REGEXP                          no process has such a command line
//
// NAP1 to NAP9 are numbers of seconds that nothing else on the machine sleeps for ($NAP and a digit in an ordinary
// command), so that gone tells this script's processes.
//
// A CHECK is FIELD=REGEXP (the whole value must match; exit.signal is a field of a field, notices are joined
// with "; "), FIELD<NUMBER, FIELD (it is there) or !FIELD (it is not).
//
// docs/design/conformance.md lists the rules and says where each is held, and a test here keeps it true.
package conformance
