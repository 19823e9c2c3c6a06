package sandboxprofile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/profile"
)

// countPause gathers the changes of many sessions into one write of the counts.
const countPause = 5 * time.Second

// Reconciler keeps the status of profiles of one kind. Fill in the exported fields.
type Reconciler struct {
	client.Client
	Clock clock.PassiveClock
	Kind  v1alpha1.ProfileKind
}

// Reconcile looks at one profile.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	found, err := profile.Get(ctx, r, req.Namespace, v1alpha1.ProfileReference{Kind: r.Kind, Name: req.Name})
	if err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	work, ok := found.DeepCopyObject().(v1alpha1.Profile)
	if !ok {
		return ctrl.Result{}, fmt.Errorf("copying %s %q: it is no profile", r.Kind, req.Name)
	}
	r.judge(work)
	if err := r.count(ctx, work); err != nil {
		return ctrl.Result{}, err
	}
	if equality.Semantic.DeepEqual(found.ProfileStatus(), work.ProfileStatus()) {
		return ctrl.Result{}, nil
	}
	err = r.Status().Patch(ctx, work, client.MergeFromWithOptions(found, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	if err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(fmt.Errorf("writing the status of %s %q: %w", r.Kind, req.Name, err))
	}
	return ctrl.Result{}, nil
}

// judge says whether the profile is valid. What a node can enforce is a fact of each session.
func (r *Reconciler) judge(p v1alpha1.Profile) {
	status := p.ProfileStatus()
	status.ObservedGeneration = p.GetGeneration()
	policy, err := profile.Compile(*p.ProfileSpec())
	var hash string
	if err == nil {
		hash, err = profile.PolicyHash(policy)
	}
	status.Hash = hash
	if err != nil {
		r.set(p, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProfileInvalid, rootText(err))
		r.set(p, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProfileInvalid, rootText(err))
		return
	}
	r.set(p, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonProfileValid, "sessions can use the profile")
	meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionStalled)
}

func rootText(err error) string {
	if cause := errors.Unwrap(err); cause != nil {
		return cause.Error()
	}
	return err.Error()
}

func (r *Reconciler) set(p v1alpha1.Profile, kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&p.ProfileStatus().Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message,
		ObservedGeneration: p.GetGeneration(), LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	})
}

func (r *Reconciler) count(ctx context.Context, p v1alpha1.Profile) error {
	sessions, err := profile.Sessions(ctx, r, p.GetNamespace(), r.Kind, p.GetName())
	if err != nil {
		return err
	}
	counts := &v1alpha1.SessionCounts{Total: int32(len(sessions))}
	for i := range sessions {
		if inSync(&sessions[i], p) {
			counts.InSync++
		}
	}
	p.ProfileStatus().Sessions = counts
	return nil
}

func inSync(session *v1alpha1.ExecSession, p v1alpha1.Profile) bool {
	has := session.Status.Profile
	return has != nil && has.UID == p.GetUID() && has.Generation == p.GetGeneration() &&
		meta.IsStatusConditionTrue(session.Status.Conditions, v1alpha1.ConditionProfileSynced)
}

// SetupWithManager registers the reconciler.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	var obj client.Object = &v1alpha1.SandboxProfile{}
	if r.Kind == v1alpha1.KindClusterSandboxProfile {
		obj = &v1alpha1.ClusterSandboxProfile{}
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(lower(r.Kind)).
		For(obj, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.ExecSession{}, later(r.profileOf), builder.WithPredicates(countsChanged())).
		Complete(r)
}

func lower(kind v1alpha1.ProfileKind) string {
	if kind == v1alpha1.KindClusterSandboxProfile {
		return "clustersandboxprofile"
	}
	return "sandboxprofile"
}

// profileOf is the profile that a session names, if it is of the reconciler's kind.
func (r *Reconciler) profileOf(obj client.Object) (reconcile.Request, bool) {
	session, ok := obj.(*v1alpha1.ExecSession)
	if !ok {
		return reconcile.Request{}, false
	}
	ref := profile.Reference(session)
	request := reconcile.Request{}
	request.Name = ref.Name
	if ref.Kind == v1alpha1.KindSandboxProfile {
		request.Namespace = session.Namespace
	}
	return request, ref.Kind == r.Kind
}

// countsChanged passes what changes the counts: sessions that come, go or get in or out of sync.
func countsChanged() predicate.Predicate {
	synced := func(obj client.Object) (bool, int64) {
		session, ok := obj.(*v1alpha1.ExecSession)
		if !ok || session.Status.Profile == nil {
			return false, 0
		}
		return meta.IsStatusConditionTrue(session.Status.Conditions, v1alpha1.ConditionProfileSynced), session.Status.Profile.Generation
	}
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		wasSynced, before := synced(e.ObjectOld)
		isSynced, now := synced(e.ObjectNew)
		return wasSynced != isSynced || before != now
	}}
}

// later enqueues after a pause, so that many changes cost one turn.
func later(request func(client.Object) (reconcile.Request, bool)) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	enqueue := func(obj client.Object, q queue) {
		if req, ok := request(obj); ok {
			q.AddAfter(req, countPause)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { enqueue(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { enqueue(e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { enqueue(e.Object, q) },
	}
}
