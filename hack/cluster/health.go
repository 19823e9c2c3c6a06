package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// checkTimeout bounds one look at one component.
const checkTimeout = 2 * time.Second

// checkHealth says what is wrong with a cluster that should be running: nothing, if pods can run.
func checkHealth(ctx context.Context, p plan, s state) error {
	if dead := s.dead(); len(dead) > 0 {
		return fmt.Errorf("%s does not run", strings.Join(dead, ", "))
	}
	if len(s.Processes) != len(p.processes) {
		return fmt.Errorf("%d of %d processes were started", len(s.Processes), len(p.processes))
	}
	checks := []func(context.Context) error{
		func(ctx context.Context) error { return checkNode(ctx, p.layout) },
		func(ctx context.Context) error { return checkNamespace(ctx, p.layout) },
		func(ctx context.Context) error { return checkRuntime(ctx, p.layout) },
		func(ctx context.Context) error { return checkDNS(ctx, p.layout) },
	}
	for _, process := range p.processes {
		if process.Health != "" {
			checks = append(checks, func(ctx context.Context) error { return checkURL(ctx, process) })
		}
	}
	problems := make([]error, len(checks))
	var running sync.WaitGroup
	for i, check := range checks {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, checkTimeout)
			defer cancel()
			problems[i] = check(ctx)
		})
	}
	running.Wait()
	return errors.Join(problems...)
}

// healthClient asks components about themselves; who they are was settled by starting them, and most of them make a
// certificate for themselves.
var healthClient = &http.Client{
	Timeout: checkTimeout,
	Transport: &http.Transport{
		Proxy:           nil,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above: no secret is sent, and the answer is only yes or no
	},
}

func checkURL(ctx context.Context, p planned) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Health, nil)
	if err != nil {
		return err
	}
	response, err := healthClient.Do(request)
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", p.Name, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is not ready: %s", p.Name, response.Status)
	}
	return nil
}

// superuser runs kubectl as the user that needs no grant.
func superuser(ctx context.Context, l layout, stdin []byte, args ...string) (string, error) {
	args = append([]string{"--kubeconfig=" + filepath.Join(l.Kube, "super-admin.conf")}, args...)
	return output(ctx, stdin, filepath.Join(l.Bin, "kubectl"), args...)
}

func checkNode(ctx context.Context, l layout) error {
	const query = `jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.nodeInfo.kubeletVersion}`
	got, err := superuser(ctx, l, nil, "get", "node", l.NodeName, "-o", query)
	if err != nil {
		return err
	}
	if want := "True " + l.KubernetesVersion; got != want {
		return fmt.Errorf("the node is not ready: Ready and version are %q, not %q", got, want)
	}
	return nil
}

// checkNamespace looks for the service account without which no pod is admitted.
func checkNamespace(ctx context.Context, l layout) error {
	_, err := superuser(ctx, l, nil, "get", "serviceaccount", "--namespace=default", "default", "-o", "name")
	return err
}

func checkRuntime(ctx context.Context, l layout) error {
	names, err := output(ctx, nil, filepath.Join(l.Bin, "ctr"), "--address="+l.ContainerdSocket, "--namespace=k8s.io", "images", "list", "-q")
	if err != nil {
		return err
	}
	if !strings.Contains(names, l.PauseImage) {
		return fmt.Errorf("containerd has no image %s", l.PauseImage)
	}
	return nil
}

// checkDNS resolves a service's name through the DNS service's own address, which kube-proxy has to have set up.
func checkDNS(ctx context.Context, l layout) error {
	resolver := &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, network, net.JoinHostPort(l.DNSAddress, "53"))
		},
	}
	if _, err := resolver.LookupHost(ctx, "kubernetes.default.svc.cluster.local."); err != nil {
		return fmt.Errorf("cluster DNS does not answer: %w", err)
	}
	return nil
}
