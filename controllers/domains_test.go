package controllers_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"execsession.dev/api/v1alpha1"
	"execsession.dev/sandbox/egress"
)

// domainHosts, domainWildcards and domainPorts are combined with each other.
var (
	domainHosts = []string{
		"example.com", "EXAMPLE.com", "example.com.", "localhost", "a_b.example", "_dmarc.example", "-a.example", "a-.example", "a..example", ".example", "example..",
		"a b.example", "a*b.example", "exa$mple.com", "xn--bcher-kva.example", "xn--a.example", "b\u00fccher.example", "",
		strings.Repeat("a", 63) + ".example", strings.Repeat("a", 64) + ".example",
		strings.Repeat("abc.", 62) + "abcde", strings.Repeat("abc.", 62) + "abcde.", strings.Repeat("abc.", 62) + "abcdef",
		"192.0.2.7", "0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "1.2.3", "1.2.3.4.5", "256.1.1.1", "01.2.3.4",
		"1.2.3.4.", "0x7f.1", "2130706433", "0177.0.0.1", "example.123", "example.0x1f", "example.0xg", "0x", "1e3", "1.2.3.a",
		"10.0.0.0/8", "10.1.2.3/8", "10.0.0.0/33", "10.0.0.0/08", "10.0.0.0/", "0.0.0.0/0", "0.0.0.0/8", "0.0.0.0/4", "224.0.0.0/3", "224.0.0.0/4", "239.0.0.0/8", "example.com/8", "/", "a/b",
		"2001:db8::1", "2001:DB8:0::1", "::", "::1", "::/0", "::/128", "ff00::/8", "ff02::1", "fe80::1%eth0", "::ffff:10.0.0.1", "::ffff:10.0.0.0/104", "::1.2.3.4", "2001:db8::/32",
		"2001:db8::1/32", "2001:db8::/129", "1:2:3", "a:b:c", "[2001:db8::1]", "[2001:db8::/32]", "[10.0.0.0/8]", "[192.0.2.7]", "[example.com]", "[]", "[[::1]", "[[2001:db8::/32]", "[::1", "::1]", "[::1]]",
		"https://example.com", "example.com/path", "user@example.com", "example.com?", "*", "**", "***", "*.*", "a.*.b", "*a.example", "%", "\x7f", "a\tb", "a\nb",
	}
	domainWildcards = []string{"", "*.", "**.", "***."}
	domainPorts     = []string{"", ":443", ":0", ":65535", ":65536", ":00443", ":", ":x", ":+1", ":443:"}
)

// TestDomainsThatTheAPITakes compares the API server's rules for entries of the lists with those of the proxy, which are
// the ones that count: what the proxy takes can be written, and what it does not take is refused at once, except for
// names of which only the proxy can tell.
func TestDomainsThatTheAPITakes(t *testing.T) {
	b := newBench(t)
	var entries []string
	for i, host := range domainHosts {
		for j, wildcard := range domainWildcards {
			entries = append(entries, wildcard+host, wildcard+host+domainPorts[(i+j)%len(domainPorts)])
		}
	}
	for _, host := range []string{"example.com", "*", "192.0.2.7", "10.0.0.0/8", "[2001:db8::1]", "2001:db8::1", "[2001:db8::/32]"} {
		for _, port := range domainPorts {
			entries = append(entries, host+port)
		}
	}
	random := rand.New(rand.NewPCG(1, 2)) // the same entries in every run
	pieces := []string{"a", "1", "0", "x", ".", "*", ":", "::", "/", "[", "]", "-", "_", "%", "10.0.0.0", "/8", "ff", "F", "*.", "**.", "com", ":443", "\u00e9", " "}
	for range 300 {
		var text strings.Builder
		for range 1 + random.IntN(6) {
			text.WriteString(pieces[random.IntN(len(pieces))])
		}
		entries = append(entries, text.String())
	}
	verdicts := map[string]int{}
	for _, allowed := range []bool{true, false} {
		for _, entry := range entries {
			policy := egress.Policy{Methods: egress.FullMethods}
			spec := v1alpha1.ProfileNetwork{Mode: v1alpha1.NetworkModeProxy}
			if allowed {
				policy.AllowedDomains, spec.AllowedDomains = []string{entry}, []v1alpha1.Domain{v1alpha1.Domain(entry)}
			} else {
				policy.DeniedDomains, spec.DeniedDomains = []string{entry}, []v1alpha1.Domain{v1alpha1.Domain(entry)}
			}
			_, proxy := egress.Compile(policy, nil)
			p := &v1alpha1.SandboxProfile{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "domains"}}
			p.Spec.Network = spec
			api := b.Create(t.Context(), p, client.DryRunAll)
			if api != nil && !apierrors.IsInvalid(api) {
				t.Fatalf("%q: %v", entry, api)
			}
			verdicts[fmt.Sprintf("proxy %v, API %v", proxy == nil, api == nil)]++
			if (proxy == nil) != (api == nil) && (proxy == nil || !onlyTheProxyCanTell(entry)) {
				t.Errorf("%q, allowed %v: the proxy says %v, the API server %v", entry, allowed, proxy, api)
			}
		}
	}
	t.Logf("%d entries: %v", len(entries), verdicts)
	if verdicts["proxy true, API true"] < 100 || verdicts["proxy false, API false"] < 100 {
		t.Errorf("verdicts are %v: too few of a kind to mean something", verdicts)
	}
}

// onlyTheProxyCanTell: whether a name in Unicode or in punycode is one takes tables.
func onlyTheProxyCanTell(entry string) bool {
	for _, r := range entry {
		if r >= utf8.RuneSelf {
			return true
		}
	}
	return strings.Contains(strings.ToLower(entry), "xn--")
}

func TestProfileNetworksThatTheAPIRefuses(t *testing.T) {
	b := newBench(t)
	many := make([]v1alpha1.Domain, 257)
	for i := range many {
		many[i] = v1alpha1.Domain(fmt.Sprintf("a%d.example", i))
	}
	cases := map[string]struct {
		reason  string
		network v1alpha1.ProfileNetwork
		field   string
		says    string
	}{
		"nothing":               {"the mode has a default", v1alpha1.ProfileNetwork{}, "", ""},
		"proxy":                 {"everything", v1alpha1.ProfileNetwork{Mode: "Proxy", AllowedDomains: many[:256], DeniedDomains: many[:1], Methods: "Limited"}, "", ""},
		"unknown mode":          {"there are four", v1alpha1.ProfileNetwork{Mode: "Mesh"}, "spec.network.mode", ""},
		"domains without proxy": {"they would have no effect", v1alpha1.ProfileNetwork{Mode: "Open", AllowedDomains: many[:1]}, "spec.network", "allowedDomains are for mode Proxy"},
		"denied without proxy":  {"they would have no effect", v1alpha1.ProfileNetwork{Mode: "Open", DeniedDomains: many[:1]}, "spec.network", "deniedDomains are for mode Proxy"},
		"methods without proxy": {"they would have no effect", v1alpha1.ProfileNetwork{Methods: "Full"}, "spec.network", "methods are for mode Proxy"},
		"unknown methods":       {"there are two words", v1alpha1.ProfileNetwork{Mode: "Proxy", Methods: "GET"}, "spec.network.methods", ""},
		"too many":              {"a list is bounded", v1alpha1.ProfileNetwork{Mode: "Proxy", AllowedDomains: many}, "spec.network.allowedDomains", ""},
		"twice":                 {"a list is a set", v1alpha1.ProfileNetwork{Mode: "Proxy", AllowedDomains: []v1alpha1.Domain{"a.example", "a.example"}}, "spec.network.allowedDomains", ""},
		"URL":                   {"a common mistake", v1alpha1.ProfileNetwork{Mode: "Proxy", AllowedDomains: []v1alpha1.Domain{"https://a.example"}}, "spec.network.allowedDomains[0]", "not a URL"},
		"wildcard":              {"a common mistake", v1alpha1.ProfileNetwork{Mode: "Proxy", AllowedDomains: []v1alpha1.Domain{"a.*.example"}}, "spec.network.allowedDomains[0]", "first label"},
		"port":                  {"a common mistake", v1alpha1.ProfileNetwork{Mode: "Proxy", DeniedDomains: []v1alpha1.Domain{"a.example:https"}}, "spec.network.deniedDomains[0]", "65535"},
		"bits":                  {"either part may be the mistake", v1alpha1.ProfileNetwork{Mode: "Proxy", AllowedDomains: []v1alpha1.Domain{"10.1.2.3/8"}}, "spec.network.allowedDomains[0]", "without bits behind"},
		"multicast":             {"nothing listens there", v1alpha1.ProfileNetwork{Mode: "Proxy", AllowedDomains: []v1alpha1.Domain{"224.0.0.1"}}, "spec.network.allowedDomains", "multicast"},
		"deny all":              {"an empty list of allowed ones says it", v1alpha1.ProfileNetwork{Mode: "Proxy", DeniedDomains: []v1alpha1.Domain{"*:22"}}, "spec.network.deniedDomains", "every name"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, p := range []client.Object{
				&v1alpha1.SandboxProfile{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "networks"}, Spec: v1alpha1.SandboxProfileSpec{Network: tc.network}},
				&v1alpha1.ClusterSandboxProfile{ObjectMeta: metav1.ObjectMeta{Name: "networks"}, Spec: v1alpha1.SandboxProfileSpec{Network: tc.network}},
			} {
				err := b.Create(t.Context(), p, client.DryRunAll)
				refused(t, tc.reason, tc.field, err)
				if err != nil && !strings.Contains(err.Error(), tc.says) {
					t.Errorf("%s: the refusal does not say %q: %v", tc.reason, tc.says, err)
				}
			}
		})
	}
}

func TestExamplesAreTaken(t *testing.T) {
	b := newBench(t)
	files, err := filepath.Glob(filepath.Join("..", "examples", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("finding the examples: %v (found %d)", err, len(files))
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		b.must(err)
		for text := range strings.SplitSeq(string(data), "\n---\n") {
			object := &unstructured.Unstructured{}
			b.must(yaml.Unmarshal([]byte(text), object))
			object.SetNamespace(b.namespace)
			if err := b.Create(t.Context(), object, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}
