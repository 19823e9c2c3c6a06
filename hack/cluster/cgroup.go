package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cgroupMounts are the roots of the control group hierarchies from the text of /proc/self/mountinfo: one for each
// controller in version 1, a single one in version 2, both on a machine that has both.
func cgroupMounts(mountinfo string) []string {
	var roots []string
	for line := range strings.SplitSeq(mountinfo, "\n") {
		before, after, found := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 5 || len(kind) == 0 {
			continue
		}
		if (kind[0] == "cgroup" || kind[0] == "cgroup2") && strings.HasPrefix(fields[4], "/sys/fs/cgroup") {
			roots = append(roots, fields[4])
		}
	}
	return roots
}

// clusterCgroups are our group in every hierarchy.
func clusterCgroups() ([]string, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading control groups: %w", err)
	}
	groups := cgroupMounts(string(mountinfo))
	for i := range groups {
		groups[i] = filepath.Join(groups[i], cgroupName)
	}
	return groups, nil
}

// makeCgroups makes the group that all pods of the cluster live below, so that what runs in a pod can be told from
// everything else even when nobody remembers the pod.
func makeCgroups() error {
	groups, err := clusterCgroups()
	if err != nil {
		return err
	}
	for _, group := range groups {
		// Containers with a user namespace of their own pass through it.
		if err := os.MkdirAll(group, 0o755); err != nil {
			return fmt.Errorf("making a control group: %w", err)
		}
		// A new cpuset of version 1 has no processors, and takes no process until it has.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			parent, err := os.ReadFile(filepath.Join(filepath.Dir(group), name))
			if err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(group, name), parent, 0); err != nil { //nolint:gosec // the kernel says where its control groups are
				return fmt.Errorf("setting %s of a control group: %w", name, err)
			}
		}
	}
	return nil
}

// killCgroups kills everything that runs in pods and removes the groups.
func killCgroups() error {
	groups, err := clusterCgroups()
	if err != nil {
		return err
	}
	// A process may fork while its siblings are being killed, and takes a moment to be gone.
	for range 100 {
		pids := cgroupProcesses(groups)
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			_ = kill(pid)
		}
		time.Sleep(20 * time.Millisecond)
	}
	var problems []error
	for _, group := range groups {
		dirs := cgroupDirs(group)
		slices.Reverse(dirs)
		for _, dir := range dirs {
			problems = append(problems, os.Remove(dir))
		}
	}
	return errors.Join(problems...)
}

// cgroupDirs are the group and all groups below it, the outermost first.
func cgroupDirs(group string) []string {
	var dirs []string
	_ = filepath.WalkDir(group, func(name string, entry fs.DirEntry, err error) error {
		// A group that vanishes meanwhile needs no attention.
		if err == nil && entry.IsDir() {
			dirs = append(dirs, name)
		}
		return nil
	})
	return dirs
}

func cgroupProcesses(groups []string) []int {
	var pids []int
	for _, group := range groups {
		for _, dir := range cgroupDirs(group) {
			text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil {
				continue
			}
			for field := range strings.FieldsSeq(string(text)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
					pids = append(pids, pid)
				}
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}
