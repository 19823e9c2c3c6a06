package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/agentd/config"
	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers"
	"execsession.dev/controllers/network"
)

// fence waits for the session's NetworkPolicy and returns it.
func (b *bench) fence(s *v1alpha1.ExecSession) *networkingv1.NetworkPolicy {
	b.Helper()
	found := &networkingv1.NetworkPolicy{}
	b.eventually("the session should have a network policy", func() error {
		return b.Get(b.Context(), client.ObjectKey{Namespace: s.Namespace, Name: "execsession-" + s.Name}, found)
	})
	return found
}

// fenced waits until the session's NetworkPolicy is as it should be.
func (b *bench) fenced(s *v1alpha1.ExecSession, reason string, right func(*networkingv1.NetworkPolicy) bool) *networkingv1.NetworkPolicy {
	b.Helper()
	found := &networkingv1.NetworkPolicy{}
	b.eventually(reason, func() error {
		if err := b.Get(b.Context(), client.ObjectKey{Namespace: s.Namespace, Name: "execsession-" + s.Name}, found); err != nil {
			return err
		}
		if !right(found) {
			return fmt.Errorf("it is %+v", found.Spec)
		}
		return nil
	})
	return found
}

// lets says whether a policy has a rule for exactly this prefix.
func lets(p *networkingv1.NetworkPolicy, cidr string) bool {
	return slices.ContainsFunc(p.Spec.Egress, func(rule networkingv1.NetworkPolicyEgressRule) bool {
		return slices.ContainsFunc(rule.To, func(to networkingv1.NetworkPolicyPeer) bool { return to.IPBlock != nil && to.IPBlock.CIDR == cidr })
	})
}

func (b *bench) setNetwork(p *v1alpha1.SandboxProfile, n v1alpha1.ProfileNetwork) {
	b.Helper()
	b.must(b.refresh(p))
	p.Spec.Network = n
	b.must(b.Update(b.Context(), p))
}

func TestEverySessionHasANetworkPolicy(t *testing.T) {
	b := newBench(t)
	p := b.profile()
	b.operator()
	s := b.session("fenced")
	b.ready(s)
	closed := b.fence(s)
	if !metav1.IsControlledBy(closed, s) {
		t.Errorf("its owners are %v: it would outlive its session", closed.OwnerReferences)
	}
	if len(closed.Spec.Ingress)+len(closed.Spec.Egress) > 0 || len(closed.Spec.PolicyTypes) != 2 {
		t.Errorf("mode None: the policy is %+v, want nothing in and nothing out", closed.Spec)
	}
	pod := b.pod(s)
	selector, err := metav1.LabelSelectorAsSelector(&closed.Spec.PodSelector)
	if err != nil {
		t.Fatal(err)
	}
	if !selector.Matches(labels.Set(pod.Labels)) {
		t.Errorf("the policy selects %s, and the pod has labels %v", selector, pod.Labels)
	}
	b.has(s, v1alpha1.ConditionNetworkPolicyEnforced, metav1.ConditionUnknown, v1alpha1.ReasonNotDeclared)

	// Each edit of the profile is an edit of the policy, and no tampering.
	b.setNetwork(p, v1alpha1.ProfileNetwork{Mode: "Proxy", AllowedDomains: []v1alpha1.Domain{"example.com", "10.1.2.3:5432"}})
	b.fenced(s, "names need everything public, and the private host is let through", func(p *networkingv1.NetworkPolicy) bool {
		return lets(p, "0.0.0.0/0") && lets(p, "10.1.2.3/32")
	})
	b.setNetwork(p, v1alpha1.ProfileNetwork{Mode: "Open"})
	b.fenced(s, "open", func(p *networkingv1.NetworkPolicy) bool { return lets(p, "::/0") && !lets(p, "10.1.2.3/32") })
	b.setNetwork(p, v1alpha1.ProfileNetwork{Mode: "Loopback"})
	b.fenced(s, "closed again", func(p *networkingv1.NetworkPolicy) bool { return len(p.Spec.Egress) == 0 })
	if b.hasEvent(s, v1alpha1.ReasonPolicyRestored, "") {
		t.Error("an edit of the profile was taken for tampering")
	}
}

func TestNetworkPolicyIsPutRight(t *testing.T) {
	b := newBench(t)
	p := b.profile()
	b.operator()
	s := b.session("guarded")
	b.ready(s)
	cases := map[string]struct {
		reason string
		tamper func(*networkingv1.NetworkPolicy) error
	}{
		"deleted": {"somebody deleted it", func(p *networkingv1.NetworkPolicy) error { return b.Delete(b.Context(), p) }},
		"opened": {"somebody let everything out", func(p *networkingv1.NetworkPolicy) error {
			p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{}}
			return b.Update(b.Context(), p)
		}},
		"elsewhere": {"somebody made it select other pods", func(p *networkingv1.NetworkPolicy) error {
			p.Spec.PodSelector = metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
			return b.Update(b.Context(), p)
		}},
		"orphaned": {"somebody took its labels, with which the operator sees it, and its owner", func(p *networkingv1.NetworkPolicy) error {
			p.Labels, p.OwnerReferences = nil, nil
			p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{}}
			return b.Update(b.Context(), p)
		}},
	}
	for _, valid := range []bool{true, false} {
		if !valid {
			// Without a valid profile the last one holds.
			b.must(b.Delete(t.Context(), p))
			b.has(s, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProfileNotFound)
		}
		for name, tc := range cases {
			t.Run(fmt.Sprintf("%s, profile %v", name, valid), func(t *testing.T) {
				b := b.in(t)
				right := b.fence(s)
				b.must(tc.tamper(right.DeepCopy()))
				b.fenced(s, tc.reason+": it should be put right", func(p *networkingv1.NetworkPolicy) bool {
					return equality.Semantic.DeepEqual(p.Spec, right.Spec) && metav1.IsControlledBy(p, s) && p.Labels[v1alpha1.LabelManaged] == v1alpha1.ManagedValue
				})
				b.event(s, v1alpha1.ReasonPolicyRestored, "network policy")
			})
		}
	}
}

// TestPolicyThatNobodyKnows: an operator that starts finds a pod without its policy and without a profile to tell which
// it was. One that is there stays as it is.
func TestPolicyThatNobodyKnows(t *testing.T) {
	b := newBench(t)
	p := b.profile()
	b.setNetwork(p, v1alpha1.ProfileNetwork{Mode: "Open"})
	stop := b.operator()
	gone, stays := b.session("gone"), b.session("stays")
	b.ready(gone)
	b.ready(stays)
	kept := b.fence(stays)
	stop()
	b.must(b.Delete(t.Context(), p))
	b.must(b.Delete(t.Context(), b.fence(gone)))
	b.operator()
	b.fenced(gone, "the pod should be closed", func(p *networkingv1.NetworkPolicy) bool {
		return len(p.Spec.Egress) == 0 && len(p.Spec.PolicyTypes) == 2
	})
	b.has(stays, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProfileNotFound)
	if found := b.fence(stays); found.ResourceVersion != kept.ResourceVersion {
		t.Errorf("the policy of a session that nothing happened to was written: %+v", found.Spec)
	}
	if b.hasEvent(gone, v1alpha1.ReasonPolicyRestored, "network policy") {
		t.Error("it was not restored: nobody knows what it was")
	}
}

func TestForeignNetworkPolicyIsLeftAlone(t *testing.T) {
	b := newBench(t)
	b.profile()
	foreign := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "execsession-taken"}}
	foreign.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "u", Controller: new(true)}}
	b.must(b.Create(t.Context(), foreign))
	b.operator()
	s := b.session("taken")
	b.has(s, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonNameTaken)
	b.has(s, v1alpha1.ConditionNetworkPolicyEnforced, metav1.ConditionFalse, v1alpha1.ReasonNameTaken)
	version := foreign.ResourceVersion
	b.must(b.refresh(foreign))
	if foreign.ResourceVersion != version {
		t.Error("a network policy of another controller was changed")
	}
	if s.Status.PodRef != nil {
		t.Error("the session has a pod without its network policy")
	}
}

func TestClusterThatEnforcesPolicies(t *testing.T) {
	b := newBench(t)
	b.profile()
	b.operator(func(o *controllers.Options) { o.Network.PoliciesEnforced = true })
	s := b.session("enforced")
	b.has(s, v1alpha1.ConditionNetworkPolicyEnforced, metav1.ConditionTrue, v1alpha1.ReasonDeclared)
}

// TestClustersOwnAddresses: what the operator was told and what the API server knows reaches
// the agent and the policy, and so does a node that comes later.
func TestClustersOwnAddresses(t *testing.T) {
	b := newBench(t)
	p := b.profile()
	b.setNetwork(p, v1alpha1.ProfileNetwork{Mode: "Proxy", AllowedDomains: []v1alpha1.Domain{"example.com"}})
	clock := testclock.NewFakeClock(time.Now())
	b.operator(func(o *controllers.Options) {
		o.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("93.184.0.0/16")}
		o.Network.DNSServers = []netip.Prefix{netip.MustParsePrefix("169.254.20.10/32")}
		o.Clock = clock
	})
	s := b.session("own")
	pod, _ := b.ready(s)
	guarded := func(name string) []string { return b.guarded(pod, name) }
	if got := guarded("an address of the cluster"); !slices.Equal(got, []string{"93.184.0.0/16"}) {
		t.Errorf("what the operator was told: the document guards %v", got)
	}
	if got := guarded("a service of the cluster"); len(got) == 0 {
		t.Error("the API server's range of services is not guarded")
	}
	if got := guarded("an API server of the cluster"); len(got) == 0 {
		t.Error("the API server's own address is not guarded")
	}
	policy := b.fence(s)
	if !lets(policy, "169.254.20.10/32") || !excepts(policy, "0.0.0.0/0", "93.184.0.0/16") {
		t.Errorf("the policy is %+v, want the DNS server let through and the cluster's range left out", policy.Spec.Egress)
	}

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "own-"}}
	node.Spec.PodCIDR, node.Spec.PodCIDRs = "94.10.0.0/24", []string{"94.10.0.0/24"}
	b.must(b.Create(t.Context(), node))
	t.Cleanup(func() { b.must(b.Delete(context.WithoutCancel(t.Context()), node)) })
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "95.20.0.7"}, {Type: corev1.NodeHostName, Address: "own"}}
	b.must(b.Status().Update(t.Context(), node))
	b.eventually("a node that comes should be guarded", func() error {
		clock.Step(network.LookAgain)
		if !slices.Contains(guarded("a pod of the cluster"), "94.10.0.0/24") || !slices.Contains(guarded("a node of the cluster"), "95.20.0.7/32") {
			return fmt.Errorf("guarded are pods %v and nodes %v", guarded("a pod of the cluster"), guarded("a node of the cluster"))
		}
		return nil
	})
	b.fenced(s, "and left out of the policy", func(p *networkingv1.NetworkPolicy) bool { return excepts(p, "0.0.0.0/0", "95.20.0.7/32") })
	if b.hasEvent(s, v1alpha1.ReasonPolicyRestored, "") {
		t.Error("a node that came was taken for tampering")
	}
}

func excepts(p *networkingv1.NetworkPolicy, cidr, part string) bool {
	for _, rule := range p.Spec.Egress {
		for _, to := range rule.To {
			if to.IPBlock != nil && to.IPBlock.CIDR == cidr && slices.Contains(to.IPBlock.Except, part) {
				return true
			}
		}
	}
	return false
}

// guarded are the ranges of a name in the document that the pod's agent reads.
func (b *bench) guarded(pod *corev1.Pod, name string) []string {
	b.Helper()
	var found []string
	b.eventually("the documents of the pod should be right", func() error {
		if _, _, err := b.documents(pod); err != nil {
			return err
		}
		copied := &corev1.ConfigMap{}
		if err := b.Get(b.Context(), b.copyKey(), copied); err != nil {
			return err
		}
		document, _, err := config.OpenProfile([]byte(copied.Data[config.ProfileFile]), keys(b.T, 1).Public())
		found = nil
		for _, r := range document.Guarded {
			if r.Name == name {
				found = append(found, r.Prefix.String())
			}
		}
		return err
	})
	return found
}

func TestProfileThatOnlyTheProxyCanJudge(t *testing.T) {
	b := newBench(t)
	p := b.profile()
	b.operator()
	s := b.session("punycode")
	b.ready(s)
	b.setNetwork(p, v1alpha1.ProfileNetwork{Mode: "Proxy", AllowedDomains: []v1alpha1.Domain{"example.com", "xn--a.example"}})
	b.has(s, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProfileInvalid)
	b.eventually("the profile should say which entry is wrong", func() error {
		if err := b.refresh(p); err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == v1alpha1.ConditionReady && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, `allowedDomains[1]: value "xn--a.example"`) {
				return nil
			}
		}
		return fmt.Errorf("conditions are %v", conditionsOf(p.Status.Conditions))
	})
	// No retries: nothing changes until somebody acts.
	settle(t)
	before := b.versions(s, b.pod(s)) + p.ResourceVersion
	settle(t)
	b.must(b.refresh(p))
	if after := b.versions(s, b.pod(s)) + p.ResourceVersion; after != before {
		t.Errorf("versions went from %s to %s though nothing happened", before, after)
	}
	b.setNetwork(p, v1alpha1.ProfileNetwork{Mode: "Proxy", AllowedDomains: []v1alpha1.Domain{"example.com"}})
	b.eventually("a good profile cures it", func() error {
		if err := b.refresh(s); err != nil {
			return err
		}
		if text := messageOf(s, v1alpha1.ConditionStalled); text != "" {
			return errors.New(text)
		}
		return nil
	})
}

func TestSessionWithoutRightsToPolicies(t *testing.T) {
	b := newBench(t)
	b.profile()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "none"}}
	const counted = "count/networkpolicies.networking.k8s.io"
	quota.Spec.Hard = corev1.ResourceList{counted: resource.MustParse("0")}
	b.must(b.Create(t.Context(), quota))
	quota.Status.Hard, quota.Status.Used = quota.Spec.Hard, corev1.ResourceList{counted: resource.MustParse("0")}
	b.must(b.Status().Update(t.Context(), quota))
	b.operator()
	s := b.session("unfenced")
	b.has(s, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonNetworkPolicyRefused)
	b.has(s, v1alpha1.ConditionNetworkPolicyEnforced, metav1.ConditionFalse, v1alpha1.ReasonNetworkPolicyRefused)
	err := b.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "execsession-unfenced"}, &corev1.Pod{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("reading the pod: %v, want none without its network policy", err)
	}
}
