package profile

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"execsession.dev/agentd/config"
	"execsession.dev/api/v1alpha1"
	"execsession.dev/approval"
	"execsession.dev/controllers/signing"
	"execsession.dev/sandbox"
)

func TestCompile(t *testing.T) {
	fromNothing := config.Policy{
		Sandbox: sandbox.Policy{
			Filesystem:  sandbox.Filesystem{Mode: sandbox.WorkspaceWrite},
			Network:     sandbox.Network{Mode: sandbox.NoNetwork},
			Enforcement: sandbox.Required,
		},
		Approval:    approval.Policy{Escalation: approval.EscalationNever},
		Environment: config.Environment{Inherit: "All", SecretExcludes: true},
		Limits:      config.Limits{MaxProcesses: 64, ProtectedProcesses: 8, BackgroundPollMaxSeconds: 300},
		Output:      config.Output{Ledger: "Digest"},
	}
	full := fromNothing
	full.Sandbox.Filesystem.DeniedPaths = []string{"/workspace/.git"}
	full.Sandbox.Process = sandbox.Process{Limits: map[string]uint64{"nofile": 64, "core": 0}, DeniedSyscalls: []string{"ptrace"}}
	full.Environment.SecretExcludes = false
	full.Environment.Set = map[string]string{"CI": "true"}
	full.Limits.ProtectedProcesses = 0
	proxied, reading := fromNothing, fromNothing
	proxied.Sandbox.Network = sandbox.Network{
		Mode: sandbox.ProxyNetwork, AllowedDomains: []string{"*.example.com:443"}, DeniedDomains: []string{"bad.example.com"}, Methods: "Full",
	}
	reading.Sandbox.Network = sandbox.Network{Mode: sandbox.ProxyNetwork, Methods: "Limited"}
	cases := map[string]struct {
		reason string
		spec   v1alpha1.SandboxProfileSpec
		want   config.Policy
		err    error
	}{
		"nothing": {reason: "the zero value is the default profile", want: fromNothing},
		"much": {
			reason: "every field arrives",
			spec: v1alpha1.SandboxProfileSpec{
				Filesystem: v1alpha1.ProfileFilesystem{DeniedPaths: []v1alpha1.AbsolutePath{"/workspace/.git"}},
				Process: &v1alpha1.ProfileProcess{
					Limits:         &v1alpha1.ProcessLimits{OpenFiles: ptr.To[int64](64), CoreBytes: ptr.To[int64](0)},
					DeniedSyscalls: []string{"ptrace"},
				},
				Environment: v1alpha1.ProfileEnvironment{
					SecretExcludes: v1alpha1.SecretExcludesDisabled, Set: []v1alpha1.ProfileVariable{{Name: "CI", Value: "true"}},
				},
				Limits: v1alpha1.ProfileLimits{ProtectedProcesses: ptr.To[int32](0)},
			},
			want: full,
		},
		"proxy": {
			reason: "its lists arrive, and methods that are not given are all",
			spec: v1alpha1.SandboxProfileSpec{Network: v1alpha1.ProfileNetwork{
				Mode: v1alpha1.NetworkModeProxy, AllowedDomains: []v1alpha1.Domain{"*.example.com:443"}, DeniedDomains: []v1alpha1.Domain{"bad.example.com"},
			}},
			want: proxied,
		},
		"proxy that reads": {
			reason: "methods that are given arrive",
			spec: v1alpha1.SandboxProfileSpec{Network: v1alpha1.ProfileNetwork{
				Mode: v1alpha1.NetworkModeProxy, Methods: v1alpha1.NetworkMethodsLimited,
			}},
			want: reading,
		},
		"bad domain": {
			reason: "only the proxy can tell that this is no punycode",
			spec: v1alpha1.SandboxProfileSpec{Network: v1alpha1.ProfileNetwork{
				Mode: v1alpha1.NetworkModeProxy, AllowedDomains: []v1alpha1.Domain{"xn--a.example"},
			}},
			err: config.ErrInvalid,
		},
		"domains without a proxy": {
			reason: "they would have no effect",
			spec:   v1alpha1.SandboxProfileSpec{Network: v1alpha1.ProfileNetwork{Mode: "Open", AllowedDomains: []v1alpha1.Domain{"example.com"}}},
			err:    config.ErrInvalid,
		},
		"relative": {
			reason: "what the API server let through is checked again",
			spec:   v1alpha1.SandboxProfileSpec{Filesystem: v1alpha1.ProfileFilesystem{WritableRoots: []v1alpha1.AbsolutePath{"data"}}},
			err:    config.ErrInvalid,
		},
		"unknown mode": {
			reason: "an operator that is older than the API refuses what it does not know",
			spec:   v1alpha1.SandboxProfileSpec{Network: v1alpha1.ProfileNetwork{Mode: "Mesh"}},
			err:    config.ErrInvalid,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Compile(tc.spec)
			if !errors.Is(err, tc.err) {
				t.Fatalf("%s: Compile returned %v, want %v", tc.reason, err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got\n%s", tc.reason, diff)
			}
		})
	}
}

func TestDocumentIsWhatAgentdReads(t *testing.T) {
	keys, err := signing.New(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		t.Fatal(err)
	}
	p := &v1alpha1.ClusterSandboxProfile{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "u", Generation: 3}}
	doc, err := Build(p, "ns", nil, keys)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Build(p, "ns", nil, keys)
	if err != nil || !bytes.Equal(doc.Sealed, again.Sealed) {
		t.Errorf("the same profile made two documents (%v): every look would write", err)
	}
	copied := doc.ConfigMap()
	read, hash, err := config.OpenProfile([]byte(copied.Data[config.ProfileFile]), keys.Public())
	if err != nil {
		t.Fatal(err)
	}
	if hash != doc.Profile.Hash || read.Namespace != "ns" || read.Profile.Generation != 3 {
		t.Errorf("agentd reads %+v with hash %s, want hash %s", read, hash, doc.Profile.Hash)
	}
	ref, err := OfConfigMap(copied)
	if err != nil || ref != (v1alpha1.ProfileReference{Kind: v1alpha1.KindClusterSandboxProfile, Name: "default"}) {
		t.Errorf("OfConfigMap is %+v (%v)", ref, err)
	}
	found := copied.DeepCopy()
	found.Labels["theirs"] = "stays"
	found.Data["more"] = "goes"
	if diff := cmp.Diff([]string{"data"}, Restore(found, doc.ConfigMap())); diff != "" {
		t.Errorf("Restore: -want +got\n%s", diff)
	}
	if found.Labels["theirs"] != "stays" || found.Data["more"] != "" {
		t.Errorf("Restore left labels %v and data %v", found.Labels, found.Data)
	}
}

func TestOnlyProxiesGuardTheCluster(t *testing.T) {
	keys, err := signing.New(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		t.Fatal(err)
	}
	guarded := []config.Range{{Prefix: netip.MustParsePrefix("10.96.0.0/16"), Name: "a service of the cluster"}}
	for mode, want := range map[v1alpha1.NetworkMode]int{"None": 0, "Loopback": 0, "Proxy": 1, "Open": 0} {
		p := &v1alpha1.SandboxProfile{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", Generation: 1}}
		p.Spec.Network.Mode = mode
		doc, err := Build(p, "ns", guarded, keys)
		if err != nil {
			t.Fatal(err)
		}
		read, _, err := config.OpenProfile(doc.Sealed, keys.Public())
		if err != nil || len(read.Guarded) != want {
			t.Errorf("mode %s: agentd reads %d guarded ranges, want %d (%v): a node that comes would change every document", mode, len(read.Guarded), want, err)
		}
		if doc.Network.Mode != sandbox.NetworkMode(mode) {
			t.Errorf("the document's mode is %q, want %q", doc.Network.Mode, mode)
		}
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("x", 250)
	for _, name := range []string{"default", long, long + "y"} {
		cluster, namespaced := ConfigMapName(v1alpha1.KindClusterSandboxProfile, name), ConfigMapName(v1alpha1.KindSandboxProfile, name)
		if cluster == namespaced || len(cluster) > 253 || len(namespaced) > 253 {
			t.Errorf("the copies of two profiles %q are %q and %q", name, cluster, namespaced)
		}
	}
	if ConfigMapName(v1alpha1.KindSandboxProfile, long) == ConfigMapName(v1alpha1.KindSandboxProfile, long+"y") {
		t.Error("two long names have the same copy")
	}
}
