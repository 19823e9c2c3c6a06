// Package workspacepod builds the pod of a session and verifies it.
//
// Build starts from what the session asks for and puts the operator's part over it,
// so that the operator's part wins. Verify then looks at the finished pod as if it
// came from a stranger: agentd must be process 1 with our command, its files must be
// ours, nothing may run beside it or be started in it by the kubelet, and the pod must
// pass the restricted pod security standard. A pod that does not pass is never created.
package workspacepod
