package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"execsession.dev/sandbox"
)

// The codes of env, timeout and nohup for what is not the program's own end.
const (
	exitSandbox    = 125
	exitCannotRun  = 126
	exitNotFound   = 127
	exitSignalBase = 128
)

func newSandboxExec() *cobra.Command {
	var policyFile, workspace string
	var hidden []string
	cmd := &cobra.Command{
		Use:   "sandbox-exec --policy FILE [--workspace DIR] [--hidden DIR]... -- PROGRAM [ARGUMENT...]",
		Short: "Run one program in the sandbox of a policy",
		Args:  usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if policyFile == "" {
				return &exitError{exitUsage, errors.New("--policy is missing")}
			}
			code, err := sandboxExec(cmd.Context(), policyFile, workspace, hidden, args)
			if err != nil || code != 0 {
				return &exitError{code, err}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&policyFile, "policy", "", "a file with the policy, JSON")
	cmd.Flags().StringVar(&workspace, "workspace", ".", "the folder that the program works in")
	cmd.Flags().StringArrayVar(&hidden, "hidden", nil, "a folder that the program does not reach; in a pod, agentd's own are always hidden")
	return cmd
}

// sandboxExec returns the program's exit code, or an error and the code for it.
func sandboxExec(ctx context.Context, policyFile, workspace string, hidden, argv []string) (code int, err error) {
	policy, err := localPolicy(policyFile)
	if err != nil {
		return exitSandbox, err
	}
	if workspace, err = realPath("workspace", workspace); err != nil {
		return exitSandbox, err
	}
	if hidden, err = hiddenFolders(hidden); err != nil {
		return exitSandbox, err
	}
	temp, removeTemp, err := tempFor(hidden)
	if err != nil {
		return exitSandbox, err
	}
	defer func() {
		if removeErr := removeTemp(); err == nil && removeErr != nil {
			code, err = exitSandbox, fmt.Errorf("removing the temporary folder: %w", removeErr)
		}
	}()
	if err := os.Setenv("TMPDIR", temp); err != nil {
		return exitSandbox, fmt.Errorf("setting TMPDIR: %w", err)
	}
	layout := sandbox.Layout{Workspace: workspace, Writable: []string{temp}, Hidden: hidden}
	launcher, err := sandbox.Compile(policy.Sandbox, layout, sandbox.Probe())
	if err != nil {
		return exitSandbox, err
	}
	// Closing releases the rules only; the program stays confined.
	defer func() { _ = launcher.Close() }()
	program, err := exec.LookPath(argv[0])
	switch {
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, syscall.ENOENT):
		return exitNotFound, err
	case err != nil:
		return exitCannotRun, err
	}
	// The signals are taken before there is a program that they could miss.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	pid, err := launcher.Start(program, argv, &syscall.ProcAttr{
		Dir: workspace, Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{},
	})
	var setup *sandbox.SetupError
	switch {
	case errors.As(err, &setup):
		return exitSandbox, err
	case errors.Is(err, syscall.ENOENT):
		return exitNotFound, fmt.Errorf("running %q: %w", program, err)
	case err != nil:
		return exitCannotRun, fmt.Errorf("running %q: %w", program, err)
	}
	return waitFor(ctx, pid, signals)
}

// hiddenFolders are those of the flag and, where this is a pod, those that serve hides.
func hiddenFolders(given []string) ([]string, error) {
	var hidden []string
	for _, path := range given {
		resolved, err := realPath("hidden", path)
		if err != nil {
			return nil, err
		}
		hidden = append(hidden, resolved)
	}
	for _, path := range []string{configDir, journalDir} {
		if isFolder(path) {
			hidden = append(hidden, path)
		}
	}
	return hidden, nil
}

// waitFor passes signals on and returns the exit code.
func waitFor(ctx context.Context, pid int, signals <-chan os.Signal) (int, error) {
	process, err := os.FindProcess(pid)
	if err != nil {
		return exitSandbox, fmt.Errorf("finding process %d: %w", pid, err)
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case s := <-signals:
				// It may have ended; then the signal comes too late for it.
				_ = process.Signal(s)
			case <-ctx.Done():
				_ = process.Kill()
				return
			case <-done:
				return
			}
		}
	}()
	state, err := process.Wait()
	if err != nil {
		return exitSandbox, fmt.Errorf("waiting for process %d: %w", pid, err)
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignalBase + int(status.Signal()), nil
	}
	return state.ExitCode(), nil
}
