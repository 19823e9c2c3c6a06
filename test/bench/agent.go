package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"execsession.dev/agentd"
	"execsession.dev/agentd/client"
	"execsession.dev/agentd/config"
	"execsession.dev/agentd/wire"
	"execsession.dev/sandbox"
)

const (
	// agentUpTime and agentEndTime bound an agent's start and its end.
	agentUpTime  = 20 * time.Second
	agentEndTime = 25 * time.Second
)

// agent is an agentd that this program started, and a client of it.
type agent struct {
	*client.Client
	name    string
	socket  string
	logFile string
	cmd     *exec.Cmd
	ended   chan error
}

// The agents that are measured: as the product starts it, and on a kernel without sandboxes.
const (
	sandboxed   = "default profile"
	unsandboxed = "no sandbox"
)

// startAgent starts bin/agentd as `agentd serve --local --socket` and waits until it answers. Stop it.
func (b *bench) startAgent(ctx context.Context, kind string) (*agent, error) {
	dir, err := os.MkdirTemp(b.private, "agent-")
	if err != nil {
		return nil, fmt.Errorf("starting an agent: %w", err)
	}
	a := &agent{
		name: kind, socket: filepath.Join(dir, "run", "agentd.sock"), logFile: filepath.Join(dir, "log"),
		ended: make(chan error, 1),
	}
	args := []string{"serve", "--local", "--socket", a.socket, "--workspace", b.workspace}
	program := b.agentd
	if kind == unsandboxed {
		policy := filepath.Join(dir, "policy.json")
		if err := writeBestEffortPolicy(policy); err != nil {
			return nil, err
		}
		program, args = b.self, append([]string{childNoWall, b.agentd}, append(args, "--policy", policy)...)
	}
	log, err := os.Create(a.logFile)
	if err != nil {
		return nil, fmt.Errorf("starting an agent: %w", err)
	}
	defer log.Close()
	// It is not ended with ctx but by stop, which lets it end its commands.
	a.cmd = exec.CommandContext(context.WithoutCancel(ctx), program, args...)
	a.cmd.Stderr = log
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting an agent: %w", err)
	}
	go func() { a.ended <- a.cmd.Wait() }()
	a.Client = a.newClient()
	if err := a.awaitUp(ctx, kind == sandboxed); err != nil {
		return nil, errors.Join(fmt.Errorf("starting an agent: %w", err), a.stop())
	}
	return a, nil
}

// writeBestEffortPolicy is the default policy for a kernel that can enforce none of it.
func writeBestEffortPolicy(path string) error {
	policy := config.DefaultPolicy()
	policy.Sandbox.Enforcement = sandbox.BestEffort
	data, err := json.Marshal(policy)
	if err != nil {
		return fmt.Errorf("encoding a policy: %w", err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("writing a policy: %w", err)
	}
	return nil
}

// newClient is a client with connections of its own. Close it; the agent's own is closed by stop.
func (a *agent) newClient() *client.Client {
	return client.New(func(ctx context.Context) (net.Conn, error) {
		conn, err := agentd.Dial(ctx, a.socket)
		if err != nil {
			return nil, err
		}
		return conn, nil
	}, client.ReconnectFor(0))
}

// awaitUp waits for the first answer and checks that the agent enforces what it is measured for.
func (a *agent) awaitUp(ctx context.Context, enforced bool) error {
	ctx, cancel := context.WithTimeout(ctx, agentUpTime)
	defer cancel()
	var status *wire.AgentStatus
	for {
		var err error
		if status, err = a.GetStatus(ctx); err == nil {
			break
		}
		select {
		case end := <-a.ended:
			a.ended <- end
			log, _ := os.ReadFile(a.logFile)
			return fmt.Errorf("agentd ended (%w); it said %q", end, log)
		case <-ctx.Done():
			return fmt.Errorf("agentd does not answer: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if has := status.GetSandbox(); has.GetEnforced() != enforced || has.GetSeccomp() != enforced {
		return fmt.Errorf("an agent for %q enforces %v", a.name, has)
	}
	return nil
}

func (a *agent) pid() int { return a.cmd.Process.Pid }

// stop asks the agent to end, then makes it.
func (a *agent) stop() error {
	closed := a.Close()
	// One that ended already cannot be asked; its end says the rest.
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-a.ended:
		if err != nil {
			err = fmt.Errorf("the agent (%s) did not end as it was asked to: %w", a.name, err)
		}
		return errors.Join(closed, err)
	case <-time.After(agentEndTime):
		return errors.Join(closed, fmt.Errorf("the agent (%s) did not end within %s and was killed", a.name, agentEndTime), a.cmd.Process.Kill(), <-a.ended)
	}
}

// withAgents runs f with agents of both kinds.
func (b *bench) withAgents(ctx context.Context, f func(bare, confined *agent) error) (err error) {
	bare, err := b.startAgent(ctx, unsandboxed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bare.stop()) }()
	confined, err := b.startAgent(ctx, sandboxed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, confined.stop()) }()
	return f(bare, confined)
}
