package main

import "fmt"

func etcd(l layout) planned {
	client, peer := fmt.Sprintf("https://127.0.0.1:%d", l.EtcdPort), fmt.Sprintf("https://127.0.0.1:%d", l.EtcdPeer)
	metrics := fmt.Sprintf("http://127.0.0.1:%d", l.EtcdMetrics)
	return planned{
		Name: "etcd",
		Argv: []string{
			"etcd",
			"--name=" + l.NodeName,
			"--data-dir=" + l.State + "/etcd",
			"--listen-client-urls=" + client,
			"--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer,
			"--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=" + l.NodeName + "=" + peer,
			"--listen-metrics-urls=" + metrics,
			"--client-cert-auth",
			"--trusted-ca-file=" + l.PKI + "/etcd/ca.crt",
			"--cert-file=" + l.PKI + "/etcd/server.crt",
			"--key-file=" + l.PKI + "/etcd/server.key",
			"--peer-client-cert-auth",
			"--peer-trusted-ca-file=" + l.PKI + "/etcd/ca.crt",
			"--peer-cert-file=" + l.PKI + "/etcd/peer.crt",
			"--peer-key-file=" + l.PKI + "/etcd/peer.key",
			"--log-level=warn",
		},
		Listens: loopback(l.EtcdPort, l.EtcdPeer, l.EtcdMetrics),
		Health:  metrics + "/readyz",
	}
}

func apiServer(l layout) planned {
	return planned{
		Name: "kube-apiserver",
		Argv: []string{
			"kube-apiserver",
			"--advertise-address=" + l.NodeAddress,
			"--bind-address=" + l.NodeAddress,
			fmt.Sprintf("--secure-port=%d", l.APIPort),
			"--allow-privileged=true",
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--client-ca-file=" + l.PKI + "/ca.crt",
			"--tls-cert-file=" + l.PKI + "/apiserver.crt",
			"--tls-private-key-file=" + l.PKI + "/apiserver.key",
			fmt.Sprintf("--etcd-servers=https://127.0.0.1:%d", l.EtcdPort),
			"--etcd-cafile=" + l.PKI + "/etcd/ca.crt",
			"--etcd-certfile=" + l.PKI + "/apiserver-etcd-client.crt",
			"--etcd-keyfile=" + l.PKI + "/apiserver-etcd-client.key",
			"--kubelet-client-certificate=" + l.PKI + "/apiserver-kubelet-client.crt",
			"--kubelet-client-key=" + l.PKI + "/apiserver-kubelet-client.key",
			// Otherwise the node's name is looked up, and no DNS knows it.
			"--kubelet-preferred-address-types=InternalIP",
			"--proxy-client-cert-file=" + l.PKI + "/front-proxy-client.crt",
			"--proxy-client-key-file=" + l.PKI + "/front-proxy-client.key",
			"--requestheader-client-ca-file=" + l.PKI + "/front-proxy-ca.crt",
			"--requestheader-allowed-names=front-proxy-client",
			"--requestheader-username-headers=X-Remote-User",
			"--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file=" + l.PKI + "/sa.pub",
			"--service-account-signing-key-file=" + l.PKI + "/sa.key",
			"--service-cluster-ip-range=" + l.ServiceCIDR,
		},
		Listens: []listen{{"tcp", l.NodeAddress, l.APIPort}},
		Health:  fmt.Sprintf("https://%s:%d/readyz", l.NodeAddress, l.APIPort),
	}
}

func controllerManager(l layout) planned {
	conf := l.Kube + "/controller-manager.conf"
	return planned{
		Name: "kube-controller-manager",
		Argv: []string{
			"kube-controller-manager",
			"--kubeconfig=" + conf,
			"--authentication-kubeconfig=" + conf,
			"--authorization-kubeconfig=" + conf,
			"--bind-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", l.ManagerPort),
			"--cert-dir=" + l.State + "/controller-manager",
			"--leader-elect=false",
			"--use-service-account-credentials=true",
			"--client-ca-file=" + l.PKI + "/ca.crt",
			"--root-ca-file=" + l.PKI + "/ca.crt",
			"--cluster-signing-cert-file=" + l.PKI + "/ca.crt",
			"--cluster-signing-key-file=" + l.PKI + "/ca.key",
			"--service-account-private-key-file=" + l.PKI + "/sa.key",
		},
		Listens: loopback(l.ManagerPort),
		Health:  fmt.Sprintf("https://127.0.0.1:%d/healthz", l.ManagerPort),
	}
}

func scheduler(l layout) planned {
	conf := l.Kube + "/scheduler.conf"
	return planned{
		Name: "kube-scheduler",
		Argv: []string{
			"kube-scheduler",
			"--kubeconfig=" + conf,
			"--authentication-kubeconfig=" + conf,
			"--authorization-kubeconfig=" + conf,
			"--bind-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", l.SchedulerPort),
			"--cert-dir=" + l.State + "/scheduler",
			"--leader-elect=false",
		},
		Listens: loopback(l.SchedulerPort),
		Health:  fmt.Sprintf("https://127.0.0.1:%d/healthz", l.SchedulerPort),
	}
}

func loopback(ports ...int) []listen {
	listens := make([]listen, 0, len(ports))
	for _, port := range ports {
		listens = append(listens, listen{"tcp", "127.0.0.1", port})
	}
	return listens
}
