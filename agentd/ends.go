package agentd

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"

	"execsession.dev/agentd/wire"
)

// The calls that end something: a turn's waits, one command, all of them, the agent. Ending one wait is
// ending its call.

// engineGrace stands for the engine's own grace time.
const engineGrace = -1

// Interrupt implements wire.AgentServer.
func (s *service) Interrupt(context.Context, *wire.InterruptRequest) (*wire.InterruptResponse, error) {
	s.reporter.active()
	return &wire.InterruptResponse{Waits: int32(s.engine.Interrupt())}, nil
}

// Stop implements wire.AgentServer.
func (s *service) Stop(ctx context.Context, r *wire.StopRequest) (*wire.StopResponse, error) {
	s.reporter.active()
	grace, err := durationFrom("grace", r.GetGrace(), engineGrace)
	if err != nil {
		return nil, err
	}
	process, err := s.engine.Process(r.GetProcessId())
	if err != nil {
		return nil, err
	}
	record, wasRunning, err := process.Stop(ctx, grace)
	if err != nil {
		return nil, err
	}
	return &wire.StopResponse{WasRunning: wasRunning, Exit: exitTo(&record)}, nil
}

// StopAll implements wire.AgentServer.
func (s *service) StopAll(ctx context.Context, r *wire.StopAllRequest) (*wire.StopAllResponse, error) {
	s.reporter.active()
	grace, err := durationFrom("grace", r.GetGrace(), engineGrace)
	if err != nil {
		return nil, err
	}
	stopped, err := s.engine.StopAll(ctx, grace)
	if err != nil {
		return nil, err
	}
	var answer wire.StopAllResponse
	for _, info := range stopped {
		answer.Processes = append(answer.Processes, s.processTo(info))
	}
	return &answer, nil
}

// ending is the end of an agent that a client asks for.
type ending struct {
	// allowed is false where somebody else decides how long the agent lives.
	allowed bool
	once    sync.Once
	// asked is closed by the first who asks; commandsEnded once nothing runs any more.
	asked         chan struct{}
	commandsEnded chan struct{}
}

func newEnding(allowed bool) *ending {
	return &ending{allowed: allowed, asked: make(chan struct{}), commandsEnded: make(chan struct{})}
}

// Shutdown implements wire.AgentServer.
func (s *service) Shutdown(ctx context.Context, _ *wire.ShutdownRequest) (*wire.ShutdownResponse, error) {
	if !s.ending.allowed {
		return nil, reasonError(codes.PermissionDenied, wire.ReasonPermissionDenied,
			"this agent lives as long as its session: delete or suspend the session's object instead", nil)
	}
	running := int32(s.reporter.snapshot().Processes.Running)
	s.ending.once.Do(func() { close(s.ending.asked) })
	select {
	case <-s.ending.commandsEnded:
		return &wire.ShutdownResponse{RunningProcesses: running}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
