package execsession

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/naming"
	"execsession.dev/controllers/profile"
	"execsession.dev/controllers/workspacepod"
)

// refusedPause is how long the operator waits before it asks again for what the API
// server refused: quotas and labels of namespaces change, but no watch tells.
const refusedPause = time.Minute

// keepPod finds the session's pod, and makes one if there is none.
func (r *Reconciler) keepPod(ctx context.Context, t *turn) error {
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: t.session.Namespace, Name: naming.Pod(t.session.Name)}
	err := r.Get(ctx, key, pod)
	if apierrors.IsNotFound(err) {
		return r.createPod(ctx, t, key)
	}
	if err != nil {
		return fmt.Errorf("reading pod %q: %w", key, err)
	}
	return r.judgePod(ctx, t, pod)
}

// judgePod decides what to do about a pod of the session's name.
func (r *Reconciler) judgePod(ctx context.Context, t *turn, pod *corev1.Pod) error {
	ours, err := r.trusted(ctx, t, pod)
	if err != nil {
		return err
	}
	switch {
	case !pod.DeletionTimestamp.IsZero():
		if ours {
			t.pod = pod
		}
		t.wait(v1alpha1.ReasonPodTerminating, fmt.Sprintf("pod %q is ending", pod.Name))
		return nil
	case !ours && metav1.IsControlledBy(pod, t.session):
		return r.replacePod(ctx, t, pod, v1alpha1.ReasonPodDeleted, "it is not the one that the operator made")
	case !ours:
		t.stall(v1alpha1.ReasonNameTaken, fmt.Sprintf("pod %q exists and does not belong to this session", pod.Name))
		return nil
	case pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded:
		return r.replacePod(ctx, t, pod, v1alpha1.ReasonPodFailed, "it ended: "+endOf(pod))
	case !r.Keys.TrustedBy(workspacepod.VerifyKeysOf(pod)):
		return r.replacePod(ctx, t, pod, v1alpha1.ReasonSigningKeyChanged, "its agent trusts another signing key")
	}
	t.pod = pod
	t.session.Status.PodRef = &v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}
	return nil
}

func endOf(pod *corev1.Pod) string {
	if pod.Status.Reason != "" {
		return pod.Status.Reason + ": " + pod.Status.Message
	}
	return string(pod.Status.Phase)
}

// trusted says whether the operator made this very pod. Owner references prove nothing,
// as everybody who may create pods can write them. What the cache knows of the session
// may be older than the pod, so the API server has the last word.
func (r *Reconciler) trusted(ctx context.Context, t *turn, pod *corev1.Pod) (bool, error) {
	if ref := t.session.Status.PodRef; ref != nil && ref.UID == pod.UID {
		return true, nil
	}
	if r.memory.of(client.ObjectKeyFromObject(t.session)).made == pod.UID {
		return true, nil
	}
	live := &v1alpha1.ExecSession{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(t.session), live); err != nil {
		return false, fmt.Errorf("reading the session past the cache: %w", err)
	}
	ref := live.Status.PodRef
	return live.UID == t.session.UID && ref != nil && ref.UID == pod.UID, nil
}

// replacePod deletes a pod; its end starts the next turn, which makes another.
func (r *Reconciler) replacePod(ctx context.Context, t *turn, pod *corev1.Pod, reason, why string) error {
	err := r.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting pod %q: %w", pod.Name, err)
	}
	t.warn(pod, reason, "DeletePod", "deleted pod %s: %s", pod.Name, why)
	t.wait(reason, fmt.Sprintf("pod %q is being replaced: %s", pod.Name, why))
	return nil
}

// createPod makes the pod, if there is all that it needs and nothing is wrong with it.
func (r *Reconciler) createPod(ctx context.Context, t *turn, key client.ObjectKey) error {
	if t.stalled != nil || t.document == nil {
		return nil
	}
	in, revision, err := r.podInput(ctx, t)
	if err != nil {
		return err
	}
	pod := workspacepod.Build(in)
	if err := workspacepod.Verify(pod, in); err != nil {
		t.stall(v1alpha1.ReasonPodSpecForbidden, err.Error())
		return nil
	}
	err = r.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		// The cache does not show it: it is new, or it lost the label that the cache selects by.
		found := &corev1.Pod{}
		if err := r.Live.Get(ctx, key, found); err != nil {
			return fmt.Errorf("reading pod %q past the cache: %w", key, err)
		}
		return r.judgePod(ctx, t, found)
	}
	if refused(err) {
		t.stall(v1alpha1.ReasonPodRefused, fmt.Sprintf("the API server refused the pod: %v", err))
		t.again = refusedPause
		return nil
	}
	if err != nil {
		return fmt.Errorf("creating pod %q: %w", key, err)
	}
	r.born(t, pod, revision)
	return nil
}

// refused says that the API server will not have it, for a reason that somebody can change.
func refused(err error) bool {
	return (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

func (r *Reconciler) podInput(ctx context.Context, t *turn) (in workspacepod.Input, revision int64, err error) {
	sealed, revision, err := r.sealSession(t, 0)
	if err != nil {
		return workspacepod.Input{}, 0, err
	}
	return workspacepod.Input{
		Settings:         r.Settings,
		Session:          t.session,
		Filesystem:       t.document.Filesystem,
		ProfileConfigMap: profile.ConfigMapName(t.document.Profile.Kind, t.document.Profile.Name),
		SessionDocument:  sealed,
		VerifyKeys:       r.Keys.Flag(),
		UserNamespace:    r.userNamespace(ctx, t),
	}, revision, nil
}

// userNamespace: another runtime may not have them, and not every volume can be
// mounted into one, so both keep the host's users.
func (r *Reconciler) userNamespace(ctx context.Context, t *turn) bool {
	wish := t.session.Spec.Pod
	if wish != nil && wish.RuntimeClassName != nil || t.session.Spec.Workspace.Storage != nil {
		return false
	}
	return r.Users.Supported(ctx)
}

// born records a pod that was just made.
func (r *Reconciler) born(t *turn, pod *corev1.Pod, revision int64) {
	known := r.memory.of(client.ObjectKeyFromObject(t.session))
	known.made, known.revision = pod.UID, revision
	before := t.session.Status.PodRef
	t.pod = pod
	t.session.Status.PodRef = &v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}
	if before == nil {
		podsMade.WithLabelValues("first").Inc()
		t.normal(pod, v1alpha1.ReasonPodCreated, "CreatePod", "created pod %s", pod.Name)
		return
	}
	podsMade.WithLabelValues("again").Inc()
	t.warn(pod, v1alpha1.ReasonPodRecreated, "CreatePod",
		"created pod %s again: the one before (uid %s) is gone, and its processes with it", pod.Name, before.UID)
}
