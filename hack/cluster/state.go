package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// state is what is remembered about the running cluster.
type state struct {
	Key       string          `json:"key"` // of the plan and the binaries
	Complete  bool            `json:"complete"`
	Processes []processRecord `json:"processes"`
}

func statePath(l layout) string { return filepath.Join(l.State, "cluster.json") }

// readState returns what was remembered; nothing, if nothing was.
func readState(l layout) (state, error) {
	var s state
	text, err := os.ReadFile(statePath(l))
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("reading the cluster's state: %w", err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("reading the cluster's state: %w", err)
	}
	return s, nil
}

func (s state) write(l layout) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFile(statePath(l), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the cluster's state: %w", err)
	}
	return nil
}

// String is a line for each process.
func (s state) String() string {
	var text strings.Builder
	for _, r := range s.Processes {
		word := "running"
		if !r.Alive(procFS) {
			word = "dead"
		}
		fmt.Fprintf(&text, "%-24s %-8s pid %d\n", r.Name, word, r.PID)
	}
	return text.String()
}

// knows says whether a process of that name was started.
func (s state) knows(name string) bool {
	return slices.ContainsFunc(s.Processes, func(r processRecord) bool { return r.Name == name })
}

// dead are the names of the processes that do not run any more.
func (s state) dead() []string {
	var names []string
	for _, r := range s.Processes {
		if !r.Alive(procFS) {
			names = append(names, r.Name)
		}
	}
	return names
}

// publishKubeconfig puts the administrator's kubeconfig where people and tests of this checkout look for it.
func publishKubeconfig(l layout, checkout string) (string, error) {
	text, err := os.ReadFile(l.adminConf())
	if err != nil {
		return "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	dir := filepath.Join(checkout, "bin", "cluster")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("publishing the kubeconfig: %w", err)
	}
	name := filepath.Join(dir, "admin.conf")
	if err := writeFile(name, text, 0o600); err != nil {
		return "", fmt.Errorf("publishing the kubeconfig: %w", err)
	}
	return name, nil
}

// withdrawKubeconfig removes the copy, unless it is of some other cluster.
func withdrawKubeconfig(l layout, checkout string) error {
	name := filepath.Join(checkout, "bin", "cluster", "admin.conf")
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("withdrawing the kubeconfig: %w", err)
	}
	if !strings.Contains(string(text), fmt.Sprintf("https://%s:%d", l.NodeAddress, l.APIPort)) {
		return nil
	}
	return os.Remove(name)
}
