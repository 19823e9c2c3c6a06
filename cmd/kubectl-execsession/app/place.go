package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"execsession.dev/agentd/client"
	"execsession.dev/agentd/wire"
)

// socketWait bounds connecting to a socket of this machine.
const socketWait = 10 * time.Second

// place says where the engine is.
type place struct {
	local       bool
	socket      string
	waitTimeout time.Duration
}

func (p *place) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&p.local, "local", false, "run on this machine, in the current folder, with an agentd that lives as long as the call")
	flags.StringVar(&p.socket, "socket", "", "talk to the `agentd serve --local` at this path; SESSION is left out")
	flags.DurationVar(&p.waitTimeout, "wait-timeout", time.Minute, "how long to wait until the session's agent is ready")
}

// here tells whether the engine is on this machine, so that no SESSION is named.
func (p *place) here() bool { return p.local || p.socket != "" }

// split takes SESSION off args, unless the engine is on this machine.
func (p *place) split(args []string) (session string, rest []string, err error) {
	if p.local && p.socket != "" {
		return "", nil, errors.New("--local and --socket exclude each other")
	}
	if p.here() {
		return "", args, nil
	}
	if len(args) == 0 {
		return "", nil, errors.New("which SESSION? Name one, or use --local or --socket")
	}
	return args[0], args[1:], nil
}

// noLocal refuses --local for a call that is about a command started by another one.
func (p *place) noLocal() error {
	if p.local {
		return errors.New("--local keeps no commands between calls: run `agentd serve --local` and use --socket")
	}
	return nil
}

// engine is a connected engine.
type engine struct {
	*client.Client
	// name speaks of the engine in messages, flags addresses it on a command line.
	name, flags string
	// local is the agentd that this call started, or nil.
	local *localAgent
}

func (e *engine) close() error {
	err := e.Close()
	if e.local != nil {
		err = errors.Join(err, e.local.stop())
	}
	return err
}

// open connects to the place; for a session it waits until its agent is ready.
func (p *plugin) open(ctx context.Context, at *place, session string) (*engine, error) {
	switch {
	case at.local:
		agent, err := startLocal()
		if err != nil {
			return nil, err
		}
		return &engine{
			Client: client.New(agent.dial, client.OneConnection(), client.ReconnectFor(0)),
			name:   "the local agentd", flags: "--local", local: agent,
		}, nil
	case at.socket != "":
		socket := &socketDialer{path: at.socket}
		return &engine{
			Client: client.New(socket.dial, client.ReconnectFor(restartWait)),
			name:   fmt.Sprintf("agentd at %q", at.socket), flags: "--socket " + at.socket,
		}, nil
	}
	return p.openSession(ctx, session, at.waitTimeout)
}

// restartWait is how long whoever is connected to an agentd at a socket waits for it, when it was killed, to be started anew.
const restartWait = 15 * time.Second

// socketDialer connects to an `agentd serve --local`.
type socketDialer struct {
	path string
	// met is set once agentd was there.
	met atomic.Bool
}

// dial connects and reads whether agentd serves us. An agentd that was never there is not waited for.
func (s *socketDialer) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, socketWait)
	defer cancel()
	conn, err := wire.Dial(ctx, s.path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		err = fmt.Errorf("no agentd serves --socket %q: %w", s.path, err)
		if !s.met.Load() {
			err = client.Permanent(err)
		}
		return nil, err
	}
	if _, refused := errors.AsType[*wire.RefusedError](err); refused {
		err = client.Permanent(err)
	}
	if err != nil {
		return nil, fmt.Errorf("--socket %q: %w", s.path, err)
	}
	s.met.Store(true)
	return conn, nil
}
