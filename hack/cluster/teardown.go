package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// tearDown stops whatever there is of a cluster, however it was left, and removes everything it made except the cache.
// It is safe when there is nothing.
func tearDown(ctx context.Context, l layout) error {
	if err := stopCluster(ctx, l); err != nil {
		return err
	}
	if err := removeTrees(l.Run, l.State); err != nil {
		return err
	}
	return removeLogLinks(l)
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

// sweep kills everything that runs a binary out of our state folder: shims, and processes that no record knows.
func sweep(l layout) {
	for range 100 {
		pids := processesFrom(l.Bin)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = kill(pid)
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
