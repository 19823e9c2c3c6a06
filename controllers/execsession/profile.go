package execsession

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/agentd/config"
	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/profile"
)

// resolveProfile finds the profile that the session names and compiles it. A profile
// that is not there or not valid is a condition; a watch starts the next turn.
func (r *Reconciler) resolveProfile(ctx context.Context, t *turn) error {
	ref := profile.Reference(t.session)
	found, err := profile.Get(ctx, r, t.session.Namespace, ref)
	if apierrors.IsNotFound(err) {
		t.noProfile(v1alpha1.ReasonProfileNotFound, fmt.Sprintf("%s %q does not exist", ref.Kind, ref.Name))
		return nil
	}
	if err != nil {
		return err
	}
	switch found.ProfileSpec().Network.Mode {
	case v1alpha1.NetworkModeProxy, v1alpha1.NetworkModeOpen:
		if t.ranges, err = r.Cluster.Current(ctx); err != nil {
			return err
		}
	}
	document, err := profile.Build(found, t.session.Namespace, t.ranges.Guarded(), r.Keys)
	if err != nil {
		t.noProfile(v1alpha1.ReasonProfileInvalid, fmt.Sprintf("%s %q: %v", ref.Kind, ref.Name, err))
		return nil
	}
	t.document = &document
	return nil
}

// noProfile: a session that runs keeps the last good profile; a new one gets no pod.
func (t *turn) noProfile(reason, message string) {
	t.set(v1alpha1.ConditionProfileSynced, metav1.ConditionFalse, reason, message)
	t.stall(reason, message)
}

// delivered says that this very document was published for the session before.
func (t *turn) delivered() bool {
	before := t.base.Status.Profile
	return before != nil && t.document != nil && *before == t.document.Profile
}

// publishDocument puts the signed profile where the namespace's pods read it. It is one
// object for all sessions of the profile; whoever comes first writes it.
func (r *Reconciler) publishDocument(ctx context.Context, t *turn) error {
	if t.document == nil {
		return nil
	}
	wanted := t.document.ConfigMap()
	found := &corev1.ConfigMap{}
	err := r.Get(ctx, client.ObjectKeyFromObject(wanted), found)
	if err == nil && len(profile.Restore(found.DeepCopy(), wanted)) == 0 {
		return nil
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading ConfigMap %q: %w", wanted.Name, err)
	}
	// The cache holds another one or none: ask the API server before anything is written.
	found = &corev1.ConfigMap{}
	err = r.Live.Get(ctx, client.ObjectKeyFromObject(wanted), found)
	if apierrors.IsNotFound(err) {
		return r.createDocument(ctx, t, wanted)
	}
	if err != nil {
		return fmt.Errorf("reading ConfigMap %q: %w", wanted.Name, err)
	}
	return r.restoreDocument(ctx, t, found, wanted)
}

func (r *Reconciler) createDocument(ctx context.Context, t *turn, wanted *corev1.ConfigMap) error {
	if err := r.Create(ctx, wanted); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating ConfigMap %q: %w", wanted.Name, err)
	}
	if t.delivered() {
		t.repaired = true
		restored.WithLabelValues("profile").Inc()
		t.warn(wanted, v1alpha1.ReasonPolicyRestored, "RestorePolicy",
			"ConfigMap %s with the signed profile was deleted by somebody else; made again", wanted.Name)
	}
	return nil
}

func (r *Reconciler) restoreDocument(ctx context.Context, t *turn, found, wanted *corev1.ConfigMap) error {
	_, _, broken := config.OpenProfile([]byte(found.Data[config.ProfileFile]), r.Keys.Public())
	differences := profile.Restore(found, wanted)
	if len(differences) == 0 {
		return nil
	}
	if err := r.Update(ctx, found); err != nil {
		return fmt.Errorf("writing ConfigMap %q: %w", wanted.Name, err)
	}
	// Another document than the one that this session has had is an edit of the profile,
	// unless it was no document of ours at all.
	if !t.delivered() && broken == nil {
		return nil
	}
	t.repaired = true
	restored.WithLabelValues("profile").Inc()
	why := "it differed from the profile"
	if broken != nil {
		why = broken.Error()
	}
	t.warn(wanted, v1alpha1.ReasonPolicyRestored, "RestorePolicy",
		"ConfigMap %s with the signed profile was changed by somebody else (%v: %s); restored", wanted.Name, differences, why)
	return nil
}
