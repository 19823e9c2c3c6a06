package follower

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// PodLogs is the LogSource of a cluster.
type PodLogs struct {
	pods corev1client.PodsGetter
}

// NewPodLogs reads logs from the API server of a configuration. Long reads get
// connections of their own, so that they take no streams from watches and writes.
func NewPodLogs(config *rest.Config) (*PodLogs, error) {
	config = rest.CopyConfig(config)
	config.Timeout = 0
	config.QPS = -1
	client, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for logs: %w", err)
	}
	return &PodLogs{pods: client}, nil
}

// Open implements LogSource.
func (l *PodLogs) Open(ctx context.Context, pod types.NamespacedName, opts LogOptions) (io.ReadCloser, error) {
	stream, err := l.pods.Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: opts.Container,
		Follow:    opts.Follow,
		TailLines: new(opts.TailLines),
	}).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("opening the log of pod %q: %w", pod, err)
	}
	return stream, nil
}
