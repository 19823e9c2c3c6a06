package execsession

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/network"
)

// ClusterNetwork knows the cluster's own addresses.
type ClusterNetwork interface {
	Current(ctx context.Context) (network.Ranges, error)
	Changes() <-chan event.GenericEvent
}

// NetworkSettings are what the operator was told about the cluster's network.
type NetworkSettings struct {
	// DNSServers are those that are not pods.
	DNSServers []netip.Prefix
	// PoliciesEnforced says that the cluster enforces NetworkPolicies.
	PoliciesEnforced bool
}

// keepFence keeps the NetworkPolicy of the session's pod. It is there before the pod is.
func (r *Reconciler) keepFence(ctx context.Context, t *turn) error {
	wanted, known, err := r.fence(t)
	if err != nil {
		return fmt.Errorf("making the network policy: %w", err)
	}
	if !known && t.session.Status.PodRef == nil {
		t.set(v1alpha1.ConditionNetworkPolicyEnforced, metav1.ConditionUnknown, v1alpha1.ReasonProgressing, "there is no network policy yet")
		return nil
	}
	err = r.putFence(ctx, t, wanted, known)
	if refused(err) {
		t.notFenced(v1alpha1.ReasonNetworkPolicyRefused, fmt.Sprintf("the API server refused the network policy: %v", err))
		t.again = refusedPause
		return nil
	}
	return err
}

// fence is the policy that should be there. Without a valid profile it is the last one, and if that is
// not known any more, one that lets nothing out.
func (r *Reconciler) fence(t *turn) (wanted *networkingv1.NetworkPolicy, known bool, err error) {
	in := network.Input{Session: t.session, DNS: r.Network.DNSServers}
	if t.document != nil {
		in.Network, in.Ranges = t.document.Network, t.ranges
		wanted, err = network.Policy(in)
		return wanted, true, err
	}
	wanted, err = network.Policy(in)
	last := r.memory.of(client.ObjectKeyFromObject(t.session)).fence
	if err == nil && last != nil {
		wanted.Spec = *last.DeepCopy()
	}
	return wanted, last != nil, err
}

// putFence puts the policy there. One that is not known replaces no other.
func (r *Reconciler) putFence(ctx context.Context, t *turn, wanted *networkingv1.NetworkPolicy, known bool) error {
	key := client.ObjectKeyFromObject(wanted)
	right := func(found *networkingv1.NetworkPolicy) bool {
		return !known || len(network.Restore(found.DeepCopy(), wanted)) == 0
	}
	found := &networkingv1.NetworkPolicy{}
	err := r.Get(ctx, key, found)
	if err == nil && right(found) {
		r.fenced(t, found)
		return nil
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading network policy %q: %w", key, err)
	}
	// The cache holds another one or none: ask the API server before anything is written.
	found = &networkingv1.NetworkPolicy{}
	err = r.Live.Get(ctx, key, found)
	switch {
	case apierrors.IsNotFound(err):
		return r.createFence(ctx, t, wanted)
	case err != nil:
		return fmt.Errorf("reading network policy %q past the cache: %w", key, err)
	case right(found):
		r.fenced(t, found)
		return nil
	}
	return r.restoreFence(ctx, t, found, wanted)
}

func (r *Reconciler) createFence(ctx context.Context, t *turn, wanted *networkingv1.NetworkPolicy) error {
	if err := r.Create(ctx, wanted); err != nil {
		return fmt.Errorf("creating network policy %q: %w", wanted.Name, err)
	}
	if r.memory.of(client.ObjectKeyFromObject(t.session)).fence != nil {
		t.fenceRestored(wanted, "was deleted by somebody else; made again")
	}
	r.fenced(t, wanted)
	return nil
}

func (r *Reconciler) restoreFence(ctx context.Context, t *turn, found, wanted *networkingv1.NetworkPolicy) error {
	if owner := metav1.GetControllerOf(found); owner != nil && owner.UID != t.session.UID {
		t.notFenced(v1alpha1.ReasonNameTaken, fmt.Sprintf("network policy %q exists and belongs to %s %q", found.Name, owner.Kind, owner.Name))
		return nil
	}
	last := r.memory.of(client.ObjectKeyFromObject(t.session)).fence
	edited := last == nil || equality.Semantic.DeepEqual(found.Spec, *last)
	differences := network.Restore(found, wanted)
	if err := r.Update(ctx, found); err != nil {
		return fmt.Errorf("writing network policy %q: %w", wanted.Name, err)
	}
	// Another spec than before is an edit of the profile or a change of the cluster's addresses.
	if !edited || !slices.Equal(differences, []string{network.DifferentSpec}) {
		t.fenceRestored(found, fmt.Sprintf("was changed by somebody else (%v); restored", differences))
	}
	r.fenced(t, found)
	return nil
}

func (t *turn) fenceRestored(policy *networkingv1.NetworkPolicy, what string) {
	restored.WithLabelValues("network").Inc()
	t.warn(policy, v1alpha1.ReasonPolicyRestored, "RestorePolicy", "network policy %s %s", policy.Name, what)
}

// fenced notes that the policy is there. Whether anybody enforces it is another question.
func (r *Reconciler) fenced(t *turn, policy *networkingv1.NetworkPolicy) {
	r.memory.of(client.ObjectKeyFromObject(t.session)).fence = policy.Spec.DeepCopy()
	if r.Network.PoliciesEnforced {
		t.set(v1alpha1.ConditionNetworkPolicyEnforced, metav1.ConditionTrue, v1alpha1.ReasonDeclared,
			fmt.Sprintf("network policy %q is there, and the operator was told that this cluster enforces them", policy.Name))
		return
	}
	t.set(v1alpha1.ConditionNetworkPolicyEnforced, metav1.ConditionUnknown, v1alpha1.ReasonNotDeclared,
		fmt.Sprintf("network policy %q is there; the operator was not told that this cluster enforces them", policy.Name))
}

// notFenced: a pod that runs goes on, and the session says what it lacks; a new one is not made.
func (t *turn) notFenced(reason, message string) {
	t.set(v1alpha1.ConditionNetworkPolicyEnforced, metav1.ConditionFalse, reason, message)
	t.stall(reason, message)
}
