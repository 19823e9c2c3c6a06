package main

import "fmt"

func containerd(l layout) planned {
	return planned{
		Name: "containerd",
		Argv: []string{"containerd", "--config=" + l.Config + "/containerd.toml", "--log-level=warn"},
	}
}

func kubelet(l layout) planned {
	return planned{
		Name: "kubelet",
		Argv: []string{
			"kubelet",
			"--config=" + l.Config + "/kubelet.yaml",
			"--kubeconfig=" + l.Kube + "/kubelet.conf",
			"--root-dir=" + l.State + "/kubelet",
			"--cert-dir=" + l.State + "/kubelet/pki",
			"--hostname-override=" + l.NodeName,
			"--node-ip=" + l.NodeAddress,
		},
		Listens: append(loopback(l.KubeletHealth), listen{"tcp", l.NodeAddress, l.KubeletPort}),
		Health:  fmt.Sprintf("http://127.0.0.1:%d/healthz", l.KubeletHealth),
	}
}

func kubeProxy(l layout) planned {
	return planned{
		Name:    "kube-proxy",
		Argv:    []string{"kube-proxy", "--config=" + l.Config + "/kube-proxy.yaml"},
		Listens: loopback(l.ProxyHealth, l.ProxyMetrics),
		Health:  fmt.Sprintf("http://127.0.0.1:%d/healthz", l.ProxyHealth),
	}
}

// firewall enforces network policies; kube-router could do more, which is off.
func firewall(l layout) planned {
	return planned{
		Name: "kube-router",
		Argv: []string{
			"kube-router",
			"--kubeconfig=" + l.Kube + "/kube-router.conf",
			"--hostname-override=" + l.NodeName,
			"--run-firewall=true",
			"--run-router=false",
			"--run-service-proxy=false",
			"--enable-cni=false",
			"--service-cluster-ip-range=" + l.ServiceCIDR,
			// It would be served on every address of the machine.
			"--health-port=0",
		},
	}
}

func dns(l layout) planned {
	return planned{
		Name: "coredns",
		Argv: []string{"coredns", "-conf=" + l.Config + "/Corefile"},
		Listens: append(loopback(l.DNSReady),
			listen{"tcp", l.NodeAddress, l.DNSPort}, listen{"udp", l.NodeAddress, l.DNSPort}),
		Health: fmt.Sprintf("http://127.0.0.1:%d/ready", l.DNSReady),
	}
}

func provisioner(l layout) planned {
	return planned{
		Name: "provisioner",
		Argv: []string{
			"provisioner",
			"-kubeconfig=" + l.Kube + "/provisioner.conf",
			"-root=" + l.Volumes,
			"-node=" + l.NodeName,
		},
	}
}
