package podstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// Target names a program to start in a pod.
type Target struct {
	Namespace, Pod, Container string
	// Command is the program and its arguments.
	Command []string
}

func (t Target) String() string {
	return fmt.Sprintf("container %q of pod %q in namespace %q", t.Container, t.Pod, t.Namespace)
}

// Dial starts target's command and returns once its streams are open, which says that the
// API server and the kubelet agreed, not yet that the program runs: if it does not, the
// first Read says so. The context bounds the dialing; Close ends the connection.
//
// An error of the API server keeps its type for k8s.io/apimachinery/pkg/api/errors.
func Dial(ctx context.Context, config *rest.Config, target Target) (net.Conn, error) {
	near, far := net.Pipe()
	input := &firstRead{Reader: far, opened: make(chan struct{})}
	executor, err := newExecutor(config, target, input)
	if err != nil {
		return nil, fmt.Errorf("preparing to exec in %v: %w", target, err)
	}
	// client-go logs an error for each stream that a cancelled executor leaves behind, which
	// is how this package closes: nobody needs to read that.
	streamContext, cancel := context.WithCancelCause(klog.NewContext(upgradeContext(ctx), logr.Discard()))
	conn := &conn{Conn: near, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(conn.done)
		conn.end(executor.stream(streamContext, far, &conn.stderr))
		_ = far.Close()
	}()
	select {
	case <-input.opened:
		return conn, nil
	case <-conn.done:
		_ = conn.Close()
		reason := conn.ended()
		if ctx.Err() != nil {
			reason = context.Cause(ctx)
		}
		return nil, fmt.Errorf("starting %q in %v: %w", target.Command, target, reason)
	case <-ctx.Done():
		// Nobody waits for the executor here: it notices only its own deadline.
		cancel(context.Cause(ctx))
		_ = near.Close()
		return nil, fmt.Errorf("starting %q in %v: %w", target.Command, target, context.Cause(ctx))
	}
}

// firstRead tells when the executor first reads its input: then the streams are open.
type firstRead struct {
	io.Reader
	once   sync.Once
	opened chan struct{}
}

func (r *firstRead) Read(p []byte) (int, error) {
	r.once.Do(func() { close(r.opened) })
	return r.Reader.Read(p)
}

func (r *firstRead) seen() bool {
	select {
	case <-r.opened:
		return true
	default:
		return false
	}
}

// errEnded is the end of a program that said nothing.
var errEnded = errors.New("the program ended")
