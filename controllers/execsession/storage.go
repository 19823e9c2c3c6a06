package execsession

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/naming"
	"execsession.dev/controllers/workspacepod"
)

// claimStorage makes the volume claim of a session that wants one. The pod does not
// wait for it: many volumes are made only once a pod that uses them has a node.
func (r *Reconciler) claimStorage(ctx context.Context, t *turn) error {
	storage := t.session.Spec.Workspace.Storage
	if storage == nil {
		t.set(v1alpha1.ConditionStorageReady, metav1.ConditionTrue, v1alpha1.ReasonStorageNotRequested, "the workspace lives and dies with the pod")
		return nil
	}
	claim := &corev1.PersistentVolumeClaim{}
	key := client.ObjectKey{Namespace: t.session.Namespace, Name: naming.Pod(t.session.Name)}
	err := r.Get(ctx, key, claim)
	if apierrors.IsNotFound(err) {
		claim, err = r.createClaim(ctx, t, key, storage)
	}
	if refused(err) {
		t.storageFailed(v1alpha1.ReasonStorageRefused, fmt.Sprintf("the API server refused the volume claim: %v", err))
		t.again = refusedPause
		return nil
	}
	if err != nil {
		return fmt.Errorf("claiming storage: %w", err)
	}
	t.judgeClaim(claim)
	return nil
}

func (r *Reconciler) createClaim(ctx context.Context, t *turn, key client.ObjectKey, storage *v1alpha1.WorkspaceStorage) (*corev1.PersistentVolumeClaim, error) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name, Labels: workspacepod.Labels(t.session),
			OwnerReferences: []metav1.OwnerReference{owner(t.session)},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: storage.StorageClassName,
			AccessModes:      accessModes(storage),
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: storage.Size},
			},
		},
	}
	err := r.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		found := &corev1.PersistentVolumeClaim{}
		return found, r.Live.Get(ctx, key, found)
	}
	if err != nil {
		return nil, err
	}
	t.normal(claim, v1alpha1.ReasonVolumeClaimMade, "CreateVolumeClaim", "created volume claim %s of %s", claim.Name, storage.Size.String())
	return claim, nil
}

func accessModes(storage *v1alpha1.WorkspaceStorage) []corev1.PersistentVolumeAccessMode {
	if len(storage.AccessModes) == 0 {
		return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	modes := make([]corev1.PersistentVolumeAccessMode, len(storage.AccessModes))
	for i, mode := range storage.AccessModes {
		modes[i] = corev1.PersistentVolumeAccessMode(mode)
	}
	return modes
}

func owner(session *v1alpha1.ExecSession) metav1.OwnerReference {
	return *metav1.NewControllerRef(session, v1alpha1.GroupVersion.WithKind("ExecSession"))
}

func (t *turn) judgeClaim(claim *corev1.PersistentVolumeClaim) {
	switch {
	case !metav1.IsControlledBy(claim, t.session):
		t.storageFailed(v1alpha1.ReasonNameTaken, fmt.Sprintf("volume claim %q exists and does not belong to this session", claim.Name))
	case claim.Status.Phase == corev1.ClaimBound:
		t.set(v1alpha1.ConditionStorageReady, metav1.ConditionTrue, v1alpha1.ReasonStorageBound, fmt.Sprintf("volume claim %q is bound", claim.Name))
	case claim.Status.Phase == corev1.ClaimLost:
		t.storageFailed(v1alpha1.ReasonStorageLost, fmt.Sprintf("volume claim %q lost its volume", claim.Name))
	default:
		message := fmt.Sprintf("volume claim %q is not yet bound", claim.Name)
		t.set(v1alpha1.ConditionStorageReady, metav1.ConditionFalse, v1alpha1.ReasonStoragePending, message)
		t.wait(v1alpha1.ReasonStoragePending, message)
	}
}

func (t *turn) storageFailed(reason, message string) {
	t.set(v1alpha1.ConditionStorageReady, metav1.ConditionFalse, reason, message)
	t.stall(reason, message)
}
