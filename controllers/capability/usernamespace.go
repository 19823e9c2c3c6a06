package capability

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// freshFor is how long an answer about nodes holds; nodes come and go slowly.
const freshFor = time.Minute

// UserNamespaces says whether pods can have a user namespace of their own: only if
// every node's default runtime says so, as nobody knows where a pod will run.
type UserNamespaces struct {
	// Nodes reads them past a cache: they are too many and change too often to keep.
	Nodes client.Reader
	Clock clock.PassiveClock
	// Fixed overrides what nodes say.
	Fixed *bool

	mu      sync.Mutex
	answer  bool
	askedAt time.Time
}

// Supported says whether the next pod can have one. Where nodes can not be asked, it can not.
func (u *UserNamespaces) Supported(ctx context.Context) bool {
	if u.Fixed != nil {
		return *u.Fixed
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.askedAt.IsZero() && u.Clock.Since(u.askedAt) < freshFor {
		return u.answer
	}
	nodes := &corev1.NodeList{}
	if err := u.Nodes.List(ctx, nodes); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Nodes can not be asked about user namespaces; pods get none")
		nodes.Items = nil
	}
	u.answer, u.askedAt = allSupport(nodes.Items), u.Clock.Now()
	return u.answer
}

func allSupport(nodes []corev1.Node) bool {
	for _, node := range nodes {
		if !supports(node) {
			return false
		}
	}
	return len(nodes) > 0
}

// supports looks at the handler without a name, which is the default one.
func supports(node corev1.Node) bool {
	for _, handler := range node.Status.RuntimeHandlers {
		if handler.Name == "" && handler.Features != nil && handler.Features.UserNamespaces != nil {
			return *handler.Features.UserNamespaces
		}
	}
	return false
}
