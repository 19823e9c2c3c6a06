// Package client speaks to agentd over any connection that a Dial function gives.
//
// A Client keeps up to three channels, each over one net.Conn that it dials when it is
// first needed and again when it broke: one for calls, one for terminals, and one for the
// output of commands on pipes. On one connection a keystroke would queue behind whatever
// output fills its buffers.
//
//	Dial --> net.Conn --> calls ------------> GetStatus, ExecCommand, Stop, ...
//	Dial --> net.Conn --> terminals, bulk --> Run, Attach: a command's output, input and end
//
// Run and Attach survive a broken connection: they dial again within a bounded time and
// continue at the offset that they had reached, so no byte is written twice, and what
// can no longer be had is reported as a gap. Input is counted on both sides: after a break
// the agent says how much of it the command took, the rest is sent again, and each byte is
// taken once. So at most a window of it is on its way, and signals and sizes never queue
// behind input that a command does not read. These things are never done: an exit is never
// concluded from anything but the agent's ExitRecord (ErrNoExitRecord says that there is
// none), a start whose answer was lost is never sent again, and input that an agent does
// not count is never sent twice.
//
// Three kinds of error look different: *Error is what the agent answered, with the
// field or the reason that it named; *ConnectionError says that there was no answer;
// *NoExitRecordError says that a command was, or may have been, left without its end.
package client
