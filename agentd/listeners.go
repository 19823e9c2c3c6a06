package agentd

import (
	"context"
	"fmt"
	"log/slog"
	"net"
)

// ListenPod listens on the abstract socket of a pod for what the container runtime
// starts. It fails unless this process is process id 1, on which the check relies.
func ListenPod(name string, log *slog.Logger) (net.Listener, error) {
	check, err := podPeers()
	if err != nil {
		return nil, fmt.Errorf("refusing to serve: %w", err)
	}
	socket, err := listenAbstract(name)
	if err != nil {
		return nil, err
	}
	return newGateListener(socket, check, log)
}

// ListenLocal listens on a pathname socket for this user's processes, except commands.
func ListenLocal(ctx context.Context, path string, log *slog.Logger) (net.Listener, error) {
	socket, err := listenPath(ctx, path)
	if err != nil {
		return nil, err
	}
	return newGateListener(socket, localPeers(), log)
}

// ListenPair serves one connection that exists already, and whose end is the agent's.
func ListenPair(conn net.Conn) net.Listener { return newPairListener(conn) }
