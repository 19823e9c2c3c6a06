package main

// kubernetesVersion is what the components report; it repeats modules/kubernetes/go.mod, and a test holds it to that.
const kubernetesVersion = "v1.37.2"

// group is a set of binaries built from one module.
type group struct {
	name     string // the folder below modules
	binaries []program
	tags     string
	ldflags  string
	cgo      bool
}

// program is a command and the package it is built from.
type program struct {
	name, pkg string
}

// groups are all components, the slowest first, so that the longest build starts at once. Within a group the first
// binary pays for the packages it shares with the rest.
var groups = []group{
	{
		name: "kubernetes",
		// Unset, clients see a server of version 0.0.0.
		ldflags: "-X k8s.io/component-base/version.gitVersion=" + kubernetesVersion +
			" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37",
		binaries: []program{
			{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
			{"kubectl", "k8s.io/kubernetes/cmd/kubectl"},
			{"kubelet", "k8s.io/kubernetes/cmd/kubelet"},
			{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
			{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
			{"kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"},
			{"kubeadm", "k8s.io/kubernetes/cmd/kubeadm"},
			{"provisioner", "./provisioner"},
		},
	},
	{name: "etcd", binaries: []program{{"etcd", "go.etcd.io/etcd/server/v3"}}},
	{name: "coredns", binaries: []program{{"coredns", "."}}},
	{
		name:     "kube-router",
		ldflags:  "-X github.com/cloudnativelabs/kube-router/v2/pkg/version.Version=v2.1.0",
		binaries: []program{{"kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"}},
	},
	{name: "helm", binaries: []program{{"helm", "helm.sh/helm/v3/cmd/helm"}}},
	{
		name: "containerd",
		binaries: []program{
			{"containerd", "github.com/containerd/containerd/v2/cmd/containerd"},
			{"containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
			{"ctr", "github.com/containerd/containerd/v2/cmd/ctr"},
		},
	},
	{
		name: "runc", tags: "seccomp", cgo: true,
		binaries: []program{{"runc", "github.com/opencontainers/runc"}},
	},
}

// clientBinaries are what env needs: the control plane that envtest starts, and the clients of a cluster.
var clientBinaries = []string{"etcd", "kube-apiserver", "kubectl", "helm"}

// allBinaries are the names of every component.
func allBinaries() []string {
	var names []string
	for _, g := range groups {
		for _, b := range g.binaries {
			names = append(names, b.name)
		}
	}
	return names
}
