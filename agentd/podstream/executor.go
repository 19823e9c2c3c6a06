package podstream

import (
	"context"
	"errors"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// upgradeWait bounds the upgrade of a connection when the dialing context does not.
const upgradeWait = 30 * time.Second

const upgradeSlack = 200 * time.Millisecond

// executor asks over a WebSocket first, as kubectl does, then over SPDY.
type executor struct {
	webSocket, spdy remotecommand.Executor
	// input is what the executors read once their streams are open.
	input *firstRead
}

func newExecutor(config *rest.Config, target Target, input *firstRead) (*executor, error) {
	config = rest.CopyConfig(config)
	// A timeout of the client would cut the stream.
	config.Timeout = 0
	core, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	url := core.RESTClient().Post().
		Namespace(target.Namespace).Resource("pods").Name(target.Pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: target.Container, Command: target.Command, Stdin: true, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec).URL()
	e := &executor{input: input}
	if e.webSocket, err = remotecommand.NewWebSocketExecutor(config, "GET", url.String()); err != nil {
		return nil, err
	}
	if e.spdy, err = remotecommand.NewSPDYExecutor(config, "POST", url); err != nil {
		return nil, err
	}
	return e, nil
}

// stream returns when the program ended, the transport broke or ctx did.
//
// SPDY is asked even when the WebSocket was forbidden, because older servers check
// another verb there, but not for a pod that is not there. When both fail, the first
// error is the one with a type.
func (e *executor) stream(ctx context.Context, stdout, stderr io.Writer) error {
	options := remotecommand.StreamOptions{Stdin: e.input, Stdout: stdout, Stderr: stderr}
	err := e.webSocket.StreamWithContext(ctx, options)
	if !httpstream.IsUpgradeFailure(err) && !httpstream.IsHTTPSProxyError(err) {
		return err
	}
	var answered *apierrors.StatusError
	var upgrade *httpstream.UpgradeFailureError
	if errors.As(err, &upgrade) && errors.As(upgrade.Cause, &answered) && apierrors.IsNotFound(answered) {
		return answered
	}
	err = e.spdy.StreamWithContext(ctx, options)
	if err != nil && answered != nil && !e.input.seen() {
		return answered
	}
	return err
}

// upgradeContext is ctx without its end but with a deadline that ends nothing: the
// WebSocket library, which ignores cancelling during the handshake, reads it as the
// time that the handshake may take.
func upgradeContext(ctx context.Context) context.Context {
	deadline, ok := ctx.Deadline()
	// A little later, so that it is the context that ends the dialing and not an error that
	// looks like the network's.
	deadline = deadline.Add(upgradeSlack)
	if latest := time.Now().Add(upgradeWait); !ok || deadline.After(latest) {
		deadline = latest
	}
	return handshake{Context: context.WithoutCancel(ctx), deadline: deadline}
}

type handshake struct {
	context.Context //nolint:containedctx // it is one itself
	deadline        time.Time
}

func (h handshake) Deadline() (time.Time, bool) { return h.deadline, true }
