// Package wire is the protocol that agentd and its clients speak: agent.proto, the
// code generated from it (see `make generate`) and the reasons of its errors.
package wire

// ErrorDomain is the domain of every google.rpc.ErrorInfo that agentd sends.
const ErrorDomain = "execsession.dev"

// The bounds of input that is counted (Input in agent.proto).
const (
	// InputWindow is how much of it a client may have sent that input_taken does not tell yet.
	InputWindow = 256 << 10
	// InputAckEvery is by how much it grows before input_taken is told again.
	InputAckEvery = 64 << 10
)

// Reasons of errors that a client may branch on, in google.rpc.ErrorInfo.
const (
	// ReasonUnknownProcess: no process has that id, or its exit was already delivered (NotFound).
	ReasonUnknownProcess = "UNKNOWN_PROCESS"
	// ReasonPolicyInvalid: there is no valid policy, so nothing runs (FailedPrecondition).
	ReasonPolicyInvalid = "POLICY_INVALID"
	// ReasonPermissionDenied: the policy does not allow the call (PermissionDenied).
	ReasonPermissionDenied = "NOT_PERMITTED"
	// ReasonSandboxSetup: the sandbox could not be set up; the command did not run (FailedPrecondition).
	ReasonSandboxSetup = "SANDBOX_SETUP"
	// ReasonStartFailed: the program or its folder could not be used; the command did not run
	// (FailedPrecondition). Metadata: "errno", "path".
	ReasonStartFailed = "START_FAILED"
	// ReasonStdinClosed: the process takes no input (FailedPrecondition).
	ReasonStdinClosed = "STDIN_CLOSED"
	// ReasonNotTerminal: the process has no terminal to resize (FailedPrecondition).
	ReasonNotTerminal = "NOT_TERMINAL"
	// ReasonTooManyProcesses: the table is full of processes that must not be ended (ResourceExhausted).
	ReasonTooManyProcesses = "TOO_MANY_PROCESSES"
	// ReasonStopping: agentd is ending (Unavailable).
	ReasonStopping = "STOPPING"
)
