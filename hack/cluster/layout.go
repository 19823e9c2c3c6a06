package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The cluster's own coordinates. They are constants because two such clusters cannot share a machine anyway: the
// kubelet's port, the packet filter's chains and the node's address exist once.
const (
	stateDir = "/var/lib/execsession-cluster"
	runDir   = "/run/execsession-cluster"
	lockPath = "/run/execsession-cluster.lock"

	nodeName    = "execsession-dev"
	nodeAddress = "10.98.0.1"
	nodeBridge  = "xs-node"
	podBridge   = "xs-pods"
	podCIDR     = "10.244.0.0/22"
	serviceCIDR = "10.96.0.0/16"
	dnsAddress  = "10.96.0.10"
	cgroupName  = "execsession-cluster"
	cniPlugins  = "/usr/lib/cni"
	pauseImage  = "execsession.dev/pause:dev"
)

// layout is every path and number that configuration files and command lines mention, in one value that templates can
// be executed with.
type layout struct {
	State, Run                               string
	Bin, Logs, PKI, Kube, Config, Volumes    string
	NodeName, NodeAddress                    string
	NodeBridge, PodBridge                    string
	PodCIDR, ServiceCIDR, DNSAddress         string
	Cgroup, CNIPlugins, PauseImage           string
	ContainerdSocket                         string
	KubernetesVersion                        string
	APIPort, EtcdPort, EtcdPeer, EtcdMetrics int
	KubeletPort, KubeletHealth               int
	ManagerPort, SchedulerPort               int
	ProxyHealth, ProxyMetrics                int
	DNSPort, DNSReady                        int
}

func newLayout() layout {
	return layout{
		State: stateDir, Run: runDir,
		Bin:      filepath.Join(stateDir, "bin"),
		Logs:     filepath.Join(stateDir, "logs"),
		PKI:      filepath.Join(stateDir, "pki"),
		Kube:     filepath.Join(stateDir, "kubeconfig"),
		Config:   filepath.Join(stateDir, "config"),
		Volumes:  filepath.Join(stateDir, "volumes"),
		NodeName: nodeName, NodeAddress: nodeAddress,
		NodeBridge: nodeBridge, PodBridge: podBridge,
		PodCIDR: podCIDR, ServiceCIDR: serviceCIDR, DNSAddress: dnsAddress,
		Cgroup: cgroupName, CNIPlugins: cniPlugins, PauseImage: pauseImage,
		ContainerdSocket:  filepath.Join(runDir, "containerd.sock"),
		KubernetesVersion: kubernetesVersion,
		APIPort:           16443,
		EtcdPort:          12379, EtcdPeer: 12380, EtcdMetrics: 12381,
		KubeletPort: 10250, KubeletHealth: 20248,
		ManagerPort: 20257, SchedulerPort: 20259,
		ProxyHealth: 20256, ProxyMetrics: 20249,
		DNSPort: 53, DNSReady: 20181,
	}
}

// folder is a folder of the cluster's state.
type folder struct {
	path string
	mode os.FileMode
}

// folders are what has to be there before anything runs, the outermost first. Below the state are keys, so nobody but
// root may look around there; passing through is all that a container of another user namespace needs.
func (l layout) folders() []folder {
	return []folder{
		{l.State, 0o711}, {l.Run, 0o711},
		{l.Bin, 0o755}, {l.Volumes, 0o755},
		{l.Logs, 0o700}, {l.PKI, 0o700}, {l.Kube, 0o700}, {l.Config, 0o700},
	}
}

// adminConf is the kubeconfig of the cluster's administrator.
func (l layout) adminConf() string { return filepath.Join(l.Kube, "admin.conf") }

// findCheckout walks up from dir to the folder of the root module.
func findCheckout(dir string) (string, error) {
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module execsession.dev\n") {
			return dir, nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("looking for the checkout: %w", err)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("looking for the checkout: this is not inside a checkout of execsession.dev")
		}
		dir = parent
	}
}
