package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// tearDown stops whatever there is of a cluster, however it was left, and removes everything it made except the cache.
// When there is nothing it does nothing: the packet filter's chains may then be those of another Kubernetes.
func tearDown(ctx context.Context, l layout) error {
	if !traces(l) {
		return nil
	}
	if err := stopCluster(ctx, l); err != nil {
		return err
	}
	if err := removeTrees(l.Run, l.State); err != nil {
		return err
	}
	return errors.Join(removeLogLinks(l), removeDevicePlugins())
}

// traces says whether anything of a cluster is left on this machine.
func traces(l layout) bool {
	for _, dir := range []string{l.State, l.Run} {
		if _, err := os.Stat(dir); err == nil {
			return true
		}
	}
	for _, bridge := range []string{l.NodeBridge, l.PodBridge} {
		if _, err := net.InterfaceByName(bridge); err == nil {
			return true
		}
	}
	return len(processesFrom(l.Bin)) > 0
}

// stopCluster ends all processes and removes what lives in the kernel. What would start others again ends first.
func stopCluster(ctx context.Context, l layout) error {
	// Unreadable state only means that nobody is asked politely: the sweep below finds everything.
	s, _ := readState(l)
	isSupervisor := func(r processRecord) bool {
		return r.Name == "kubelet" || r.Name == "kube-controller-manager"
	}
	supervisors := slices.DeleteFunc(slices.Clone(s.Processes), func(r processRecord) bool { return !isSupervisor(r) })
	rest := slices.DeleteFunc(slices.Clone(s.Processes), isSupervisor)
	stopProcesses(supervisors)
	if err := killCgroups(); err != nil {
		return err
	}
	stopProcesses(rest)
	sweep(l)
	// Shims may have been about to start something when they were killed.
	if err := killCgroups(); err != nil {
		return err
	}
	return tearDownNetwork(ctx)
}

// sweep kills everything that runs a binary out of our state folder: shims, and processes that no record knows. It
// returns when they are gone, not only when they show no executable any more: a dying process closes its sockets later.
func sweep(l layout) {
	var killed []processRecord
	for range 250 {
		pids := processesFrom(l.Bin)
		for _, pid := range pids {
			if r, err := recordProcess(procFS, "", pid); err == nil {
				killed = append(killed, r)
			}
			_ = kill(pid)
		}
		if len(pids) == 0 && !anyAlive(killed) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// removeLogLinks removes the links that the kubelet makes in a folder that cannot be moved.
func removeLogLinks(l layout) error {
	links, _ := filepath.Glob("/var/log/containers/*.log")
	var problems []error
	for _, link := range links {
		target, err := os.Readlink(link)
		if err == nil && strings.HasPrefix(target, l.State+"/") {
			problems = append(problems, os.Remove(link))
		}
	}
	return errors.Join(problems...)
}

// removeDevicePlugins removes the kubelet's socket for device plugins, which is in a fixed place, and the folders that
// it was alone in.
func removeDevicePlugins() error {
	const dir = "/var/lib/kubelet/device-plugins"
	if err := os.Remove(filepath.Join(dir, "kubelet.sock")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// Not empty, they are somebody else's.
	_ = os.Remove(dir)
	_ = os.Remove(filepath.Dir(dir))
	return nil
}
