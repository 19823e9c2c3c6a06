// Package podstream gives a net.Conn to a program in a pod: the API server's exec, over a
// WebSocket or, where the server does not speak that, over SPDY.
//
//	client <-- net.Pipe --> executor of client-go <-- API server, kubelet, runtime --> `agentd connect`
//
// The connection ends when the program does. What the program wrote to its standard
// error, up to a bound, is part of the error that Read and Write then return, so that a
// refusal explains itself. A transport that ended well ends a Read with io.EOF only when
// the program said nothing: the exit code of the transport is never a command's.
package podstream
