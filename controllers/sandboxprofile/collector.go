package sandboxprofile

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
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

// Collector removes the copies of profiles that no session of their namespace names.
// It owes nothing to what it saw before: at its start it looks at every copy.
type Collector struct {
	client.Client
	// Live reads past the cache.
	Live client.Reader
}

// Reconcile looks at one copy.
func (c *Collector) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	copied := &corev1.ConfigMap{}
	if err := c.Get(ctx, req.NamespacedName, copied); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	ref, err := profile.OfConfigMap(copied)
	if err != nil {
		// It carries our label but is not one of ours, or somebody broke it; the sessions
		// that use it repair it.
		return ctrl.Result{}, nil //nolint:nilerr // trying again would not help
	}
	if used, err := c.used(ctx, req.Namespace, ref); used || err != nil {
		return ctrl.Result{}, err
	}
	// A session may begin to use it now; should it lose its copy, it makes it again.
	err = c.Delete(ctx, copied, client.Preconditions{UID: &copied.UID, ResourceVersion: &copied.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("removing the copy %q of a profile: %w", req, err)
	}
	return ctrl.Result{}, nil
}

// used asks the cache and, before a copy goes, the API server.
func (c *Collector) used(ctx context.Context, namespace string, ref v1alpha1.ProfileReference) (bool, error) {
	cached, err := profile.Sessions(ctx, c, namespace, ref.Kind, ref.Name)
	if err != nil || len(cached) > 0 {
		return len(cached) > 0, err
	}
	sessions := &v1alpha1.ExecSessionList{}
	if err := c.Live.List(ctx, sessions, client.InNamespace(namespace)); err != nil {
		return false, fmt.Errorf("listing the sessions of namespace %q: %w", namespace, err)
	}
	for i := range sessions.Items {
		if profile.Reference(&sessions.Items[i]) == ref {
			return true, nil
		}
	}
	return false, nil
}

// SetupWithManager registers the collector.
func (c *Collector) SetupWithManager(mgr ctrl.Manager) error {
	onlyGone := predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("profilecollector").
		For(&corev1.ConfigMap{}, builder.WithPredicates(predicate.NewPredicateFuncs(isCopy))).
		Watches(&v1alpha1.ExecSession{}, handler.EnqueueRequestsFromMapFunc(copyOf), builder.WithPredicates(onlyGone)).
		Complete(c)
}

func isCopy(obj client.Object) bool {
	_, err := profile.OfConfigMap(obj)
	return err == nil
}

// copyOf is the copy of the profile that a session names.
func copyOf(_ context.Context, obj client.Object) []reconcile.Request {
	session, ok := obj.(*v1alpha1.ExecSession)
	if !ok {
		return nil
	}
	ref := profile.Reference(session)
	request := reconcile.Request{}
	request.Namespace, request.Name = session.Namespace, profile.ConfigMapName(ref.Kind, ref.Name)
	return []reconcile.Request{request}
}
