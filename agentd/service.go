package agentd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"execsession.dev/agentd/wire"
	"execsession.dev/approval"
	"execsession.dev/unifiedexec"
)

// service answers the protocol: approval, then the engine, whose starts pass the
// policy's gate.
type service struct {
	wire.UnimplementedAgentServer
	engine   *unifiedexec.Engine
	policy   *policy
	reporter *reporter
	// feeds are the goroutines that read what clients send on Attach.
	feeds sync.WaitGroup
	// ending is how a client ends the agent.
	ending *ending
}

// GetStatus implements wire.AgentServer.
func (s *service) GetStatus(context.Context, *wire.GetStatusRequest) (*wire.AgentStatus, error) {
	now := s.reporter.snapshot()
	return &wire.AgentStatus{
		Version: now.AgentVersion, BootId: s.reporter.boot,
		StartTime: timestamppb.New(now.StartTime),
		Sandbox: &wire.SandboxStatus{
			LandlockAbi: int32(now.Sandbox.LandlockABI),
			Seccomp:     now.Sandbox.Seccomp, Enforced: now.Sandbox.Enforced,
			NotEnforced: now.Sandbox.NotEnforced, Denials: now.Sandbox.Denials,
		},
		Policy: &wire.PolicyStatus{
			Valid: now.Policy.Valid, Reason: now.Policy.Reason, Message: valid(now.Policy.Message),
			ProfileHash: now.Policy.ProfileHash, SessionRevision: now.Policy.SessionRevision,
		},
		RunningProcesses: int32(now.Processes.Running),
		ExitedProcesses:  int32(now.Processes.Exited),
	}, nil
}

// ExecCommand implements wire.AgentServer.
func (s *service) ExecCommand(ctx context.Context, r *wire.ExecCommandRequest) (*wire.ToolResult, error) {
	if r.GetOneShot() && r.YieldTimeMs != nil {
		return nil, fieldError("yield_time_ms", "is not for a command that runs to its end: command.timeout bounds it")
	}
	var result unifiedexec.Result
	launched, err := s.launchTool(ctx, r, func(command unifiedexec.Command) (err error) {
		if r.GetOneShot() {
			result, err = s.engine.ExecOneShot(ctx, command, r.MaxOutputTokens)
			return err
		}
		result, err = s.engine.ExecCommand(ctx, unifiedexec.ExecCommandRequest{
			Command: command, YieldTimeMS: r.YieldTimeMs, MaxOutputTokens: r.MaxOutputTokens,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	if result.Exit == nil {
		s.reporter.denials.name(launched, result.ProcessID)
	}
	return resultTo(result, launched.refusals.Take()), nil
}

// toolRequest is a command of an agent's tool, with what it says about where and with which rights to run.
type toolRequest interface {
	GetCommand() *wire.Command
	GetEnvironmentId() string
	GetSandboxPermissions() string
	GetJustification() string
	GetPrefixRule() []string
}

// launchTool launches what a tool asks for by means of start.
func (s *service) launchTool(ctx context.Context, r toolRequest, start func(unifiedexec.Command) error) (*launch, error) {
	if id := r.GetEnvironmentId(); id != "" {
		return nil, fieldError("environment_id", "%q is not this agent's: it has one environment and no name for it", id)
	}
	return s.launch(ctx, r.GetCommand(), approval.Request{
		SandboxPermissions: r.GetSandboxPermissions(), Justification: r.GetJustification(), PrefixRule: r.GetPrefixRule(),
	}, start)
}

// Run implements wire.AgentServer.
func (s *service) Run(ctx context.Context, r *wire.RunRequest) (*wire.RunResponse, error) {
	keep, err := runBytes("stream_bytes", r.StreamBytes, defaultStreamBytes)
	if err != nil {
		return nil, err
	}
	aggregate, err := runBytes("aggregate_bytes", r.AggregateBytes, 0)
	if err != nil {
		return nil, err
	}
	var result unifiedexec.RunResult
	launched, err := s.launchTool(ctx, r, func(command unifiedexec.Command) (err error) {
		result, err = s.engine.Run(ctx, unifiedexec.RunRequest{
			Command: command, NoTimeout: r.GetNoTimeout(), UserShell: r.GetUserShell(), StreamBytes: keep,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return runTo(result, aggregate, launched.refusals.Take()), nil
}

// WriteStdin implements wire.AgentServer.
func (s *service) WriteStdin(ctx context.Context, r *wire.WriteStdinRequest) (*wire.ToolResult, error) {
	s.reporter.active()
	result, err := s.engine.WriteStdin(ctx, unifiedexec.WriteStdinRequest{
		ProcessID: r.GetSessionId(), Chars: r.GetChars(), CloseStdin: r.GetCloseStdin(),
		YieldTimeMS: r.YieldTimeMs, MaxOutputTokens: r.MaxOutputTokens,
	})
	if err != nil {
		return nil, err
	}
	return resultTo(result, s.reporter.denials.of(r.GetSessionId()).Take()), nil
}

// Start implements wire.AgentServer.
func (s *service) Start(ctx context.Context, r *wire.StartRequest) (*wire.Process, error) {
	var process *unifiedexec.Process
	launched, err := s.launch(ctx, r.GetCommand(), approval.Request{}, func(command unifiedexec.Command) (err error) {
		process, err = s.engine.Start(ctx, command)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.reporter.denials.name(launched, process.ID())
	return s.processTo(process.Info()), nil
}

// processTo is a process with what it was refused.
func (s *service) processTo(info unifiedexec.Info) *wire.Process {
	return processTo(info, s.reporter.denials.of(info.ID).All())
}

// launch is the one way to a start: approval under the policy in force, then the
// start, which fails when that policy is not in force any more.
func (s *service) launch(ctx context.Context, c *wire.Command, wanted approval.Request, start func(unifiedexec.Command) error) (*launch, error) {
	command, err := commandFrom(c)
	if err != nil {
		return nil, err
	}
	s.reporter.active()
	var launched *launch
	err = s.policy.launch(ctx, func(state *policyState) error {
		narrowing, beyond, err := state.narrowing(narrowingFrom(c.GetSandbox()))
		if err != nil {
			return err
		}
		wanted.Beyond = beyond
		decision := approval.Decide(state.policy.Approval, wanted)
		switch {
		case decision.Err != nil:
			return decision.Err
		case decision.Verdict != approval.Run:
			return reasonError(codes.PermissionDenied, wire.ReasonPermissionDenied, decision.Message,
				map[string]string{"reason": string(decision.Reason)})
		}
		launcher, err := state.launcherFor(narrowing)
		if err != nil {
			return err
		}
		launched = &launch{}
		command.Start = s.policy.starter(state, launcher, launched)
		return start(command)
	})
	err = toStatus(err)
	// A caller's own mistake is told to the caller; what the session refused is on record.
	if reason := reasonIn(err); reason != "" && reason != wire.ReasonStopping {
		s.reporter.refused(reason, err, digestOf(command))
	}
	return launched, err
}

// digestOf is the digest that the command would have had in the ledger. How arguments
// are shown is the engine's matter, so it is told for scripts only.
func digestOf(command unifiedexec.Command) string {
	if command.Script == "" {
		return ""
	}
	return digest(command.Script)
}

// digest is of a command as ListProcesses shows it.
func digest(command string) string {
	sum := sha256.Sum256([]byte(command))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ListProcesses implements wire.AgentServer.
func (s *service) ListProcesses(context.Context, *wire.ListProcessesRequest) (*wire.ListProcessesResponse, error) {
	var list wire.ListProcessesResponse
	for _, info := range s.engine.List() {
		list.Processes = append(list.Processes, s.processTo(info))
	}
	return &list, nil
}

// Signal implements wire.AgentServer.
func (s *service) Signal(_ context.Context, r *wire.SignalRequest) (*wire.SignalResponse, error) {
	s.reporter.active()
	process, err := s.engine.Process(r.GetProcessId())
	if err != nil {
		return nil, err
	}
	if err := process.Signal(r.GetSignal()); err != nil {
		return nil, err
	}
	return &wire.SignalResponse{}, nil
}

// isStdinClosed is a process that reads no more, which is its right.
func isStdinClosed(err error) bool { return errors.Is(err, unifiedexec.ErrStdinClosed) }
