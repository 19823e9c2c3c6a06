package network

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"execsession.dev/agentd/config"
	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/naming"
	"execsession.dev/controllers/workspacepod"
	"execsession.dev/sandbox"
	"execsession.dev/sandbox/egress"
)

// dnsPort is where DNS servers listen, in the pod as well as on the node.
const dnsPort = 53

// Input is what a NetworkPolicy is made of.
type Input struct {
	Session *v1alpha1.ExecSession
	// Network is what the profile says. The zero value lets nothing out.
	Network sandbox.Network
	Ranges  Ranges
	// DNS are servers that are not pods: on nodes, or a cache that every node has.
	DNS []netip.Prefix
}

// Policy makes the NetworkPolicy of a session's pod. Nothing may come in: commands come by
// exec, which no policy sees.
func Policy(in Input) (*networkingv1.NetworkPolicy, error) {
	rules, err := egressRules(in)
	if err != nil {
		return nil, err
	}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: in.Session.Namespace,
			Name:      naming.Pod(in.Session.Name),
			Labels:    workspacepod.Labels(in.Session),
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(in.Session, v1alpha1.GroupVersion.WithKind("ExecSession")),
			},
		},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelSession: string(in.Session.UID)}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Egress:      rules,
		},
	}, nil
}

// What Restore may find.
const (
	DifferentSpec   = "spec"
	DifferentLabels = "labels"
	DifferentOwners = "owners"
)

// Restore makes found what wanted is and says what differed; other people's labels and
// annotations stay.
func Restore(found, wanted *networkingv1.NetworkPolicy) (differences []string) {
	if !equality.Semantic.DeepEqual(found.Spec, wanted.Spec) {
		found.Spec = wanted.Spec
		differences = append(differences, DifferentSpec)
	}
	for key, value := range wanted.Labels {
		if found.Labels[key] != value {
			found.Labels = merged(found.Labels, wanted.Labels)
			differences = append(differences, DifferentLabels)
			break
		}
	}
	if !equality.Semantic.DeepEqual(found.OwnerReferences, wanted.OwnerReferences) {
		found.OwnerReferences = wanted.OwnerReferences
		differences = append(differences, DifferentOwners)
	}
	return differences
}

func merged(under, over map[string]string) map[string]string {
	out := maps.Clone(under)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, over)
	return out
}

func egressRules(in Input) ([]networkingv1.NetworkPolicyEgressRule, error) {
	switch in.Network.Mode {
	case sandbox.ProxyNetwork:
		return proxyRules(in)
	case sandbox.OpenNetwork:
		return openRules(in), nil
	case sandbox.NoNetwork, sandbox.LoopbackNetwork:
	}
	return nil, nil
}

// proxyRules are what the proxy can be asked for: TCP, to addresses that it would connect to.
func proxyRules(in Input) ([]networkingv1.NetworkPolicyEgressRule, error) {
	rules, err := config.EgressRules(in.Network, config.EgressRanges(in.Ranges.Guarded()))
	if err != nil {
		return nil, err
	}
	fence := rules.Fence()
	var out []networkingv1.NetworkPolicyEgressRule
	if fence.Names {
		out = dnsRules(in.DNS)
	}
	for i, block := range fence.Blocks {
		// Plain neighbours with the same ports share a rule. Exceptions are alone in theirs: some agents
		// put all addresses of a rule into one set, where the exceptions of one would count for the others.
		if i > 0 && plain(block) && plain(fence.Blocks[i-1]) && slices.Equal(block.Ports, fence.Blocks[i-1].Ports) {
			last := &out[len(out)-1]
			last.To = append(last.To, peer(block.Prefix, nil))
			continue
		}
		out = append(out, networkingv1.NetworkPolicyEgressRule{
			Ports: tcp(block.Ports), To: []networkingv1.NetworkPolicyPeer{peer(block.Prefix, block.Except)},
		})
	}
	if in.Ranges.holdService(fence.Blocks) {
		out = append(out, podRule())
	}
	return out, nil
}

func plain(b egress.Block) bool { return len(b.Except) == 0 }

// holdService says whether the profile lists a service, by its address.
func (r Ranges) holdService(blocks []egress.Block) bool {
	services := r.Services
	if len(services) == 0 {
		services = r.Given
	}
	return slices.ContainsFunc(blocks, func(b egress.Block) bool { return covered(b.Prefix, services) })
}

// podRule lets all pods through: what is sent to a service has the address and the port of
// a pod by the time that policies look at it, and nobody here knows of which.
func podRule() networkingv1.NetworkPolicyEgressRule {
	return networkingv1.NetworkPolicyEgressRule{
		Ports: tcp(nil),
		To:    []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}},
	}
}

// openRules let everything through but what a command can do harm with by its place in the
// cluster: the questions that clouds answer about a machine, and the API servers.
func openRules(in Input) []networkingv1.NetworkPolicyEgressRule {
	closed := slices.Concat(egress.Metadata(), in.Ranges.APIServers)
	// A DNS server may be at an address that is left out below.
	out := dnsRules(in.DNS)
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		prefix := netip.MustParsePrefix(all)
		parts := slices.DeleteFunc(slices.Clone(closed), func(p netip.Prefix) bool { return !prefix.Contains(p.Addr()) })
		out = append(out, networkingv1.NetworkPolicyEgressRule{
			To: []networkingv1.NetworkPolicyPeer{peer(prefix, egress.Collapse(parts))},
		})
	}
	return out
}

// dnsRules let the cluster's DNS through: the pods that every distribution labels the same
// way, and servers that are no pods.
func dnsRules(servers []netip.Prefix) []networkingv1.NetworkPolicyEgressRule {
	rule := networkingv1.NetworkPolicyEgressRule{
		Ports: []networkingv1.NetworkPolicyPort{port(corev1.ProtocolUDP, dnsPort), port(corev1.ProtocolTCP, dnsPort)},
		To: []networkingv1.NetworkPolicyPeer{{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: metav1.NamespaceSystem}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}},
		}},
	}
	for _, server := range servers {
		rule.To = append(rule.To, peer(server, nil))
	}
	return []networkingv1.NetworkPolicyEgressRule{rule}
}

func peer(prefix netip.Prefix, except []netip.Prefix) networkingv1.NetworkPolicyPeer {
	block := &networkingv1.IPBlock{CIDR: prefix.String()}
	for _, part := range except {
		block.Except = append(block.Except, part.String())
	}
	return networkingv1.NetworkPolicyPeer{IPBlock: block}
}

// tcp are ports of TCP; none is every one.
func tcp(ports []uint16) []networkingv1.NetworkPolicyPort {
	if len(ports) == 0 {
		return []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolTCP)}}
	}
	var out []networkingv1.NetworkPolicyPort
	for _, p := range ports {
		out = append(out, port(corev1.ProtocolTCP, p))
	}
	return out
}

func port(protocol corev1.Protocol, number uint16) networkingv1.NetworkPolicyPort {
	return networkingv1.NetworkPolicyPort{Protocol: new(protocol), Port: new(intstr.FromInt32(int32(number)))}
}
