package execsession

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/follower"
	"execsession.dev/controllers/network"
	"execsession.dev/controllers/profile"
	"execsession.dev/controllers/signing"
	"execsession.dev/controllers/workspacepod"
)

// conflictPause is how long a turn waits after somebody else wrote first.
const conflictPause = 200 * time.Millisecond

// Agents listens to the agents of pods.
type Agents interface {
	Watch(target follower.Target)
	Forget(session types.NamespacedName, except types.UID)
	Newest(pod types.UID) (report *follower.Report, silent bool)
	Changes() <-chan event.GenericEvent
}

// UserNamespaces says whether pods can have a user namespace of their own.
type UserNamespaces interface {
	Supported(ctx context.Context) bool
}

// Reconciler keeps sessions. Fill in the exported fields.
type Reconciler struct {
	client.Client
	// Live reads past the cache.
	Live     client.Reader
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	Keys     signing.Keys
	Agents   Agents
	Users    UserNamespaces
	Cluster  ClusterNetwork
	Network  NetworkSettings
	Settings workspacepod.Settings
	// Workers is how many sessions are worked on at once.
	Workers int

	memory memory
}

// turn is one look at a session. Steps work on the session in memory.
type turn struct {
	session *v1alpha1.ExecSession
	// base is the session as it was read, for the patch at the end.
	base *v1alpha1.ExecSession
	now  time.Time

	// document is the profile to deliver; nil if there is none that is valid.
	document *profile.Document
	// ranges are the cluster's own addresses, where the profile makes use of them.
	ranges network.Ranges
	// pod is the session's pod; nil if there is none that is trusted.
	pod *corev1.Pod
	// repaired says that the profile's ConfigMap was put right, so the pod must be told to look.
	repaired bool

	stalled *cause
	waiting *cause
	events  []happening
	again   time.Duration
}

// step does one part of a turn.
type step func(ctx context.Context, t *turn) error

// Reconcile looks at one session.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	session := &v1alpha1.ExecSession{}
	err := r.Get(ctx, req.NamespacedName, session)
	if apierrors.IsNotFound(err) || err == nil && !session.DeletionTimestamp.IsZero() {
		// What the session owns is removed by the garbage collector.
		r.Agents.Forget(req.NamespacedName, "")
		r.memory.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("reading session %q: %w", req, err)
	}
	t := &turn{session: session.DeepCopy(), base: session, now: r.Clock.Now()}
	var errs error
	for _, do := range []step{r.resolveProfile, r.publishDocument, r.claimStorage, r.keepFence, r.keepPod, r.deliver, r.observe} {
		if errs = do(ctx, t); errs != nil {
			break
		}
	}
	if apierrors.HasStatusCause(errs, corev1.NamespaceTerminatingCause) {
		// Nothing can be made in it any more, and the session goes with it.
		return ctrl.Result{}, nil
	}
	if errs == nil {
		r.summarize(t)
	}
	errs = errors.Join(errs, r.writeStatus(ctx, t))
	r.tell(t)
	if apierrors.IsConflict(errs) {
		return ctrl.Result{RequeueAfter: conflictPause}, nil
	}
	if errs != nil {
		return ctrl.Result{}, fmt.Errorf("keeping session %q: %w", req, errs)
	}
	return ctrl.Result{RequeueAfter: t.again}, nil
}

// writeStatus writes the status if it changed. The lock is there because conditions
// are a list, which a patch replaces as a whole.
func (r *Reconciler) writeStatus(ctx context.Context, t *turn) error {
	if equality.Semantic.DeepEqual(t.base.Status, t.session.Status) || r.tooSoon(t) {
		return nil
	}
	patch := client.MergeFromWithOptions(t.base, client.MergeFromWithOptimisticLock{})
	if err := r.Status().Patch(ctx, t.session, patch); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("writing the status: %w", err))
	}
	return nil
}

// SetupWithManager registers the reconciler.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	ours, err := predicate.LabelSelectorPredicate(metav1.LabelSelector{
		MatchLabels: map[string]string{v1alpha1.LabelManaged: v1alpha1.ManagedValue},
	})
	if err != nil {
		return fmt.Errorf("selecting the operator's objects: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("execsession").
		For(&v1alpha1.ExecSession{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&corev1.Pod{}).
		Owns(&corev1.PersistentVolumeClaim{}).
		Owns(&networkingv1.NetworkPolicy{}).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.sessionsOfConfigMap), builder.WithPredicates(ours)).
		Watches(&v1alpha1.SandboxProfile{}, handler.EnqueueRequestsFromMapFunc(r.sessionsOfProfile),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.ClusterSandboxProfile{}, handler.EnqueueRequestsFromMapFunc(r.sessionsOfProfile),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Channel(r.Agents.Changes(), &handler.EnqueueRequestForObject{})).
		WatchesRawSource(source.Channel(r.Cluster.Changes(), &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Workers}).
		Complete(r)
}

func (r *Reconciler) sessionsOfConfigMap(ctx context.Context, obj client.Object) []reconcile.Request {
	ref, err := profile.OfConfigMap(obj)
	if err != nil {
		return nil
	}
	return r.sessionsOf(ctx, obj.GetNamespace(), ref.Kind, ref.Name)
}

func (r *Reconciler) sessionsOfProfile(ctx context.Context, obj client.Object) []reconcile.Request {
	p, ok := obj.(v1alpha1.Profile)
	if !ok {
		return nil
	}
	return r.sessionsOf(ctx, p.GetNamespace(), p.ProfileKind(), p.GetName())
}

func (r *Reconciler) sessionsOf(ctx context.Context, namespace string, kind v1alpha1.ProfileKind, name string) []reconcile.Request {
	sessions, err := profile.Sessions(ctx, r, namespace, kind, name)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Sessions of a changed profile are not looked at")
		return nil
	}
	requests := make([]reconcile.Request, len(sessions))
	for i := range sessions {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&sessions[i])
	}
	return requests
}

// memory is what a reconciler knows before the API server tells it back. It is lost
// with the process, and nothing depends on it but fewer questions.
type memory struct {
	mu       sync.Mutex
	sessions map[types.NamespacedName]*remembered
}

type remembered struct {
	// made is the pod that was created last.
	made types.UID
	// revision is the one that was issued last.
	revision int64
	// fence is the last NetworkPolicy that was right.
	fence *networkingv1.NetworkPolicySpec
	// nudges counts attempts to make an agent read right documents again.
	nudges nudges
	// writes paces what changes with every command.
	writes *pace
}

func (m *memory) of(key types.NamespacedName) *remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sessions == nil {
		m.sessions = map[types.NamespacedName]*remembered{}
	}
	if m.sessions[key] == nil {
		m.sessions[key] = &remembered{writes: newPace()}
	}
	return m.sessions[key]
}

func (m *memory) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sessions, key)
}
