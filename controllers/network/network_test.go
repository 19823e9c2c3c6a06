package network

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"execsession.dev/api/v1alpha1"
	"execsession.dev/sandbox"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func TestTidy(t *testing.T) {
	cases := map[string]struct {
		reason   string
		in, want Ranges
	}{
		"halves": {
			reason: "the nodes' parts of the pods' range are one range",
			in:     Ranges{Pods: prefixes("10.244.3.0/24", "10.244.0.0/24", "10.244.2.0/24", "10.244.1.0/24", "10.250.0.0/24")},
			want:   Ranges{Pods: prefixes("10.244.0.0/22", "10.250.0.0/24")},
		},
		"no halves": {
			reason: "neighbours that are not halves of one range stay two",
			in:     Ranges{Nodes: prefixes("192.0.2.1/32", "192.0.2.2/32")},
			want:   Ranges{Nodes: prefixes("192.0.2.1/32", "192.0.2.2/32")},
		},
		"given": {
			reason: "nodes and pods in a range that was given change nothing; services and API servers stay",
			in: Ranges{
				Given: prefixes("10.0.0.0/8"), Pods: prefixes("10.244.0.0/24", "172.16.0.0/24"), Nodes: prefixes("10.1.0.1/32"),
				Services: prefixes("10.96.0.0/16"), APIServers: prefixes("10.96.0.1/32"),
			},
			want: Ranges{
				Given: prefixes("10.0.0.0/8"), Pods: prefixes("172.16.0.0/24"), Services: prefixes("10.96.0.0/16"), APIServers: prefixes("10.96.0.1/32"),
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := tc.in.tidy()
			for _, kind := range [][2][]netip.Prefix{
				{tc.want.Given, got.Given}, {tc.want.Pods, got.Pods}, {tc.want.Nodes, got.Nodes},
				{tc.want.Services, got.Services}, {tc.want.APIServers, got.APIServers},
			} {
				if !slices.Equal(kind[0], kind[1]) {
					t.Errorf("%s: got %v, want %v", tc.reason, kind[1], kind[0])
				}
			}
		})
	}
}

// TestManyNodes: a document stays small, and no node is left out.
func TestManyNodes(t *testing.T) {
	var nodes []netip.Prefix
	for i := range 3000 {
		nodes = append(nodes, netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(i / 200), byte(i % 200), byte(7 * i)}), 32))
	}
	got := Ranges{Nodes: slices.Clone(nodes)}.tidy()
	if len(got.Nodes) == 0 || len(got.Nodes) > maxOfAKind {
		t.Errorf("3000 nodes are %d ranges, want 1 to %d", len(got.Nodes), maxOfAKind)
	}
	for _, node := range nodes {
		if !covered(node, got.Nodes) {
			t.Errorf("node %s is in none of %v", node, got.Nodes)
		}
	}
}

func session() *v1alpha1.ExecSession {
	return &v1alpha1.ExecSession{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hello", UID: "uid-1"}}
}

// TestPolicy compares the egress rules with what a person would write.
func TestPolicy(t *testing.T) {
	ranges := Ranges{Services: prefixes("10.96.0.0/16"), Pods: prefixes("10.244.0.0/16"), APIServers: prefixes("44.0.0.10/32")}
	const dns = `
- ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]
  to:
  - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
    podSelector: {matchLabels: {k8s-app: kube-dns}}
  - ipBlock: {cidr: 169.254.20.10/32}
`
	proxy := func(allowed ...string) sandbox.Network {
		return sandbox.Network{Mode: sandbox.ProxyNetwork, AllowedDomains: allowed, Methods: "Full"}
	}
	cases := map[string]struct {
		reason  string
		network sandbox.Network
		want    string
	}{
		"nothing":     {reason: "nobody knows the profile any more", want: "[]"},
		"none":        {reason: "nothing leaves", network: sandbox.Network{Mode: sandbox.NoNetwork}, want: "[]"},
		"loopback":    {reason: "loopback is no matter of policies", network: sandbox.Network{Mode: sandbox.LoopbackNetwork}, want: "[]"},
		"empty proxy": {reason: "an empty list reaches nothing", network: proxy(), want: "[]"},
		"private host": {reason: "what the profile allows gets through, at its port and by no name", network: proxy("192.168.1.5:5432"), want: `
- ports: [{protocol: TCP, port: 5432}]
  to:
  - ipBlock: {cidr: 192.168.1.5/32}
  - ipBlock: {cidr: "64:ff9b::c0a8:105/128"}
`},
		"service": {reason: "a service's packets have a pod's address when they are looked at", network: proxy("10.96.7.7:443"), want: `
- ports: [{protocol: TCP, port: 443}]
  to:
  - ipBlock: {cidr: 10.96.7.7/32}
  - ipBlock: {cidr: "64:ff9b::a60:707/128"}
- ports: [{protocol: TCP}]
  to: [{namespaceSelector: {}}]
`},
		"names": {reason: "public addresses, at the ports of the names", network: proxy("example.com:443"), want: dns + `
- ports: [{protocol: TCP, port: 443}]
  to:
  - ipBlock:
      cidr: 0.0.0.0/0
      except: [0.0.0.0/8, 10.0.0.0/8, 44.0.0.10/32, 100.64.0.0/10, 127.0.0.0/8, 168.63.129.16/32, 169.254.0.0/16, 172.16.0.0/12,
        192.0.0.0/24, 192.0.2.0/24, 192.88.99.0/24, 192.168.0.0/16, 198.18.0.0/15, 198.51.100.0/24, 203.0.113.0/24, 224.0.0.0/4, 240.0.0.0/4]
- ports: [{protocol: TCP, port: 443}]
  to:
  - ipBlock: {cidr: "::/0", except: ["::/3", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "4000::/2", "8000::/1"]}
- ports: [{protocol: TCP, port: 443}]
  to:
  - ipBlock:
      cidr: 64:ff9b::/96
      except: ["64:ff9b::/104", "64:ff9b::a00:0/104", "64:ff9b::2c00:a/128", "64:ff9b::6440:0/106", "64:ff9b::7f00:0/104", "64:ff9b::a83f:8110/128",
        "64:ff9b::a9fe:0/112", "64:ff9b::ac10:0/108", "64:ff9b::c000:0/120", "64:ff9b::c000:200/120", "64:ff9b::c058:6300/120", "64:ff9b::c0a8:0/112",
        "64:ff9b::c612:0/111", "64:ff9b::c633:6400/120", "64:ff9b::cb00:7100/120", "64:ff9b::e000:0/100", "64:ff9b::f000:0/100"]
`},
		"open": {reason: "everything but the clouds' metadata and the API servers", network: sandbox.Network{Mode: sandbox.OpenNetwork}, want: dns + `
- to:
  - ipBlock: {cidr: 0.0.0.0/0, except: [44.0.0.10/32, 100.100.100.200/32, 168.63.129.16/32, 169.254.0.0/16, 192.0.0.192/32]}
- to:
  - ipBlock: {cidr: "::/0", except: ["fd00:ec2::/32", "fd20:ce::254/128", "fe80::/10"]}
`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			policy, err := Policy(Input{Session: session(), Network: tc.network, Ranges: ranges, DNS: prefixes("169.254.20.10/32")})
			if err != nil {
				t.Fatal(err)
			}
			var want []networkingv1.NetworkPolicyEgressRule
			if err := yaml.UnmarshalStrict([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			if len(want) == 0 {
				want = nil
			}
			if diff := cmp.Diff(want, policy.Spec.Egress); diff != "" {
				t.Errorf("%s: egress -want +got\n%s", tc.reason, diff)
			}
			if got := policy.Spec.PolicyTypes; len(policy.Spec.Ingress) != 0 || !slices.Equal(got, []networkingv1.PolicyType{"Ingress", "Egress"}) {
				t.Errorf("policy types are %v and ingress is %v, want both types and nothing let in", got, policy.Spec.Ingress)
			}
		})
	}
}

func TestRestore(t *testing.T) {
	wanted, err := Policy(Input{Session: session()})
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		change func(*networkingv1.NetworkPolicy)
		want   []string
	}{
		"nothing":      {func(*networkingv1.NetworkPolicy) {}, nil},
		"empty lists":  {func(p *networkingv1.NetworkPolicy) { p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{} }, nil},
		"theirs":       {func(p *networkingv1.NetworkPolicy) { p.Labels["theirs"] = "stays" }, nil},
		"let in":       {func(p *networkingv1.NetworkPolicy) { p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{}} }, []string{DifferentSpec}},
		"other pods":   {func(p *networkingv1.NetworkPolicy) { p.Spec.PodSelector.MatchLabels = nil }, []string{DifferentSpec}},
		"only ingress": {func(p *networkingv1.NetworkPolicy) { p.Spec.PolicyTypes = p.Spec.PolicyTypes[:1] }, []string{DifferentSpec}},
		"orphaned":     {func(p *networkingv1.NetworkPolicy) { p.Labels, p.OwnerReferences = nil, nil }, []string{DifferentLabels, DifferentOwners}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			found := wanted.DeepCopy()
			tc.change(found)
			theirs := found.Labels["theirs"]
			if diff := cmp.Diff(tc.want, Restore(found, wanted)); diff != "" {
				t.Errorf("differences: -want +got\n%s", diff)
			}
			if again := Restore(found, wanted); len(again) > 0 || found.Labels["theirs"] != theirs {
				t.Errorf("restored, it still differs in %v; labels are %v", again, found.Labels)
			}
		})
	}
}

func TestGuardedNamesRead(t *testing.T) {
	for _, r := range (Ranges{Given: prefixes("10.0.0.0/8"), APIServers: prefixes("44.0.0.10/32")}).Guarded() {
		if !strings.HasPrefix(r.Name, "a") || !strings.HasSuffix(r.Name, "of the cluster") {
			t.Errorf("%s is named %q, which does not continue %q", r.Prefix, r.Name, "it is")
		}
	}
}
