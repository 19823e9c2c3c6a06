package client

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"execsession.dev/agentd/wire"
)

// Dial opens one connection to the agent. The context bounds the dialing only; it does
// not end the connection. An error that dialing again can not mend is marked with
// Permanent.
type Dial func(ctx context.Context) (net.Conn, error)

// reconnectFor is how long Run and Attach try to reach the agent again: longer than an
// API server takes to restart.
const reconnectFor = time.Minute

// Client calls one agent. It is safe for concurrent use; Close ends its connections.
type Client struct {
	// calls are those of one request and one response. Terminals are apart from bulk output, behind which a keystroke's
	// echo would wait. All three are the same channel when there is only one connection.
	calls, terminals, bulk *channel
	reconnectFor           time.Duration
}

// Option changes a Client.
type Option func(*Client)

// OneConnection makes the client use one connection for everything, for a Dial that can
// give no second one.
func OneConnection() Option {
	return func(c *Client) { c.calls, c.bulk = c.terminals, c.terminals }
}

// ReconnectFor sets how long Run and Attach try to reach the agent again after a
// connection broke; 0 means that they do not.
func ReconnectFor(d time.Duration) Option {
	return func(c *Client) { c.reconnectFor = d }
}

// New makes a client; it dials each connection when the first call that needs it is made.
func New(dial func(ctx context.Context) (net.Conn, error), options ...Option) *Client {
	c := &Client{calls: newChannel(dial), terminals: newChannel(dial), bulk: newChannel(dial), reconnectFor: reconnectFor}
	for _, option := range options {
		option(c)
	}
	return c
}

// Close closes the connections; what runs keeps running.
func (c *Client) Close() error {
	var all sync.WaitGroup
	all.Go(c.terminals.close)
	if c.bulk != c.terminals {
		all.Go(c.bulk.close)
		all.Go(c.calls.close)
	}
	all.Wait()
	return nil
}

// GetStatus tells what the agent is, enforces and runs.
func (c *Client) GetStatus(ctx context.Context) (*wire.AgentStatus, error) {
	return call(ctx, c, wire.AgentClient.GetStatus, &wire.GetStatusRequest{})
}

// ExecCommand starts a command and waits until it ended or its yield time is over. When
// the answer is lost the command may run all the same, so the call is not repeated.
func (c *Client) ExecCommand(ctx context.Context, request *wire.ExecCommandRequest) (*wire.ToolResult, error) {
	return call(ctx, c, wire.AgentClient.ExecCommand, request)
}

// WriteStdin feeds or polls a running command. When the answer is lost, so may be the
// output that it carried.
func (c *Client) WriteStdin(ctx context.Context, request *wire.WriteStdinRequest) (*wire.ToolResult, error) {
	return call(ctx, c, wire.AgentClient.WriteStdin, request)
}

// RunBuffered runs a command to its end and gives its two streams apart. Giving up the call
// ends the command.
func (c *Client) RunBuffered(ctx context.Context, request *wire.RunRequest) (*wire.RunResponse, error) {
	return call(ctx, c, wire.AgentClient.Run, request)
}

// Start starts a command and returns at once.
func (c *Client) Start(ctx context.Context, command *wire.Command) (*wire.Process, error) {
	return call(ctx, c, wire.AgentClient.Start, &wire.StartRequest{Command: command})
}

// ListProcesses lists what runs and what ended and is still kept.
func (c *Client) ListProcesses(ctx context.Context) ([]*wire.Process, error) {
	answer, err := call(ctx, c, wire.AgentClient.ListProcesses, &wire.ListProcessesRequest{})
	return answer.GetProcesses(), err
}

// Explain says whether the sandbox lets a command do something, and by which rule.
func (c *Client) Explain(ctx context.Context, request *wire.ExplainRequest) (*wire.ExplainResponse, error) {
	return call(ctx, c, wire.AgentClient.Explain, request)
}

// Signal sends a signal, such as "INT", to a command's process group.
func (c *Client) Signal(ctx context.Context, processID int32, signal string) error {
	_, err := call(ctx, c, wire.AgentClient.Signal, &wire.SignalRequest{ProcessId: processID, Signal: signal})
	return err
}

// Interrupt ends the waits of all calls of ExecCommand and WriteStdin, also of other
// clients, and tells how many there were. The commands go on, except those of one-shot calls and
// of runs to the end. One wait alone ends with the context of its call.
func (c *Client) Interrupt(ctx context.Context) (waits int, err error) {
	answer, err := call(ctx, c, wire.AgentClient.Interrupt, &wire.InterruptRequest{})
	return int(answer.GetWaits()), err
}

// Stop ends a command and its descendants: ask, wait the grace time, kill. A nil grace
// means the engine's own.
func (c *Client) Stop(ctx context.Context, processID int32, grace *time.Duration) (*wire.StopResponse, error) {
	return call(ctx, c, wire.AgentClient.Stop, &wire.StopRequest{ProcessId: processID, Grace: duration(grace)})
}

// StopAll stops every command and what ended ones left behind, and tells what that was. A
// nil grace means the engine's own.
func (c *Client) StopAll(ctx context.Context, grace *time.Duration) ([]*wire.Process, error) {
	answer, err := call(ctx, c, wire.AgentClient.StopAll, &wire.StopAllRequest{Grace: duration(grace)})
	return answer.GetProcesses(), err
}

// Shutdown ends the agent with everything that it runs; an agent in a pod refuses.
func (c *Client) Shutdown(ctx context.Context) (*wire.ShutdownResponse, error) {
	return call(ctx, c, wire.AgentClient.Shutdown, &wire.ShutdownRequest{})
}

func duration(d *time.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(*d)
}

// call makes one call of one request and one response.
func call[Request, Answer any](
	ctx context.Context, c *Client,
	method func(wire.AgentClient, context.Context, *Request, ...grpc.CallOption) (*Answer, error),
	request *Request,
) (*Answer, error) {
	l, err := c.calls.link(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := method(l.agent, ctx, request)
	if err != nil {
		return nil, l.explain(ctx, err)
	}
	return answer, nil
}
