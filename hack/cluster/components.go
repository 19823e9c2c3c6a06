package main

import "strings"

// kubernetesVersion is what the components report; it repeats components/go.mod, and a test holds it to that.
const kubernetesVersion = "v1.37.2"

// program is a component and the package it is built from.
type program struct {
	name, pkg string
	cgo       bool
}

// programs are all components.
var programs = []program{
	{name: "etcd", pkg: "go.etcd.io/etcd/server/v3"},
	{name: "kube-apiserver", pkg: "k8s.io/kubernetes/cmd/kube-apiserver"},
	{name: "kube-controller-manager", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager"},
	{name: "kube-scheduler", pkg: "k8s.io/kubernetes/cmd/kube-scheduler"},
	{name: "kubelet", pkg: "k8s.io/kubernetes/cmd/kubelet"},
	{name: "kube-proxy", pkg: "k8s.io/kubernetes/cmd/kube-proxy"},
	{name: "kubeadm", pkg: "k8s.io/kubernetes/cmd/kubeadm"},
	{name: "kubectl", pkg: "k8s.io/kubernetes/cmd/kubectl"},
	{name: "helm", pkg: "helm.sh/helm/v3/cmd/helm"},
	{name: "coredns", pkg: "./coredns"},
	{name: "provisioner", pkg: "./provisioner"},
	{name: "kube-router", pkg: "./kube-router"},
	{name: "containerd", pkg: "github.com/containerd/containerd/v2/cmd/containerd"},
	{name: "containerd-shim-runc-v2", pkg: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
	{name: "ctr", pkg: "github.com/containerd/containerd/v2/cmd/ctr"},
	{name: "runc", pkg: "github.com/opencontainers/runc", cgo: true},
}

// buildFlags are the arguments of go build that name neither a package nor a file.
func buildFlags(cgo bool) []string {
	// Unset, clients see a server of version 0.0.0. Binaries without that package ignore it.
	linker := strings.Join([]string{
		"-s -w",
		"-X k8s.io/component-base/version.gitVersion=" + kubernetesVersion,
		"-X k8s.io/component-base/version.gitMajor=1",
		"-X k8s.io/component-base/version.gitMinor=37",
	}, " ")
	flags := []string{"-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=" + linker}
	if cgo {
		flags = append(flags, "-tags=seccomp")
	}
	return flags
}

// clientBinaries are what env needs: the control plane that envtest starts, and the clients of a cluster.
var clientBinaries = []string{"etcd", "kube-apiserver", "kubectl", "helm"}

// allBinaries are the names of every component.
func allBinaries() []string {
	var names []string
	for _, p := range programs {
		names = append(names, p.name)
	}
	return names
}
