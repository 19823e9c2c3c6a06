package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"execsession.dev/sandbox"
)

// The codes of env, timeout and nohup for what is not the program's own end.
const (
	exitSandbox    = 125
	exitCannotRun  = 126
	exitNotFound   = 127
	exitSignalBase = 128
)

// sandboxExecConfig is what the flags say.
type sandboxExecConfig struct {
	policyFile, workspace string
	hidden                []string
	denials               bool
}

func newSandboxExec() *cobra.Command {
	var cfg sandboxExecConfig
	cmd := &cobra.Command{
		Use:   "sandbox-exec --policy FILE [--workspace DIR] [--hidden DIR]... [--denials] -- PROGRAM [ARGUMENT...]",
		Short: "Run one program in the sandbox of a policy",
		Long: `Run one program in the sandbox of a policy. The exit code is the program's, or 128 and the
number of the signal that ended it. 125 means that there was no sandbox, so that nothing ran;
127 that there is no such program and 126 that it cannot be run. For each of these three
standard error says why; a program that ends with such a code itself has nothing said about it.

Under a policy with enforcement BestEffort the program runs, too, where a part of the policy cannot be
enforced. Standard error names each such part.`,
		Args: usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cfg.policyFile == "" {
				return &exitError{exitUsage, errors.New("--policy is missing")}
			}
			code, err := sandboxExec(cmd.Context(), cfg, args, cmd.ErrOrStderr())
			if err != nil || code != 0 {
				return &exitError{code, err}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.policyFile, "policy", "", "a file with the policy, JSON, that the program cannot change")
	f.StringVar(&cfg.workspace, "workspace", ".", "the folder that the program works in")
	f.StringArrayVar(&cfg.hidden, "hidden", nil, "a folder that the program does not reach; in a pod, agentd's own are always hidden")
	f.BoolVar(&cfg.denials, "denials", false, "say on standard error what the program and its children are refused")
	return cmd
}

// sandboxExec returns the program's exit code, or an error and the code for it.
func sandboxExec(ctx context.Context, cfg sandboxExecConfig, argv []string, stderr io.Writer) (code int, err error) {
	if err := errors.Join(sandbox.ProtectSelf(), sandbox.DropCapabilities()); err != nil {
		return exitSandbox, fmt.Errorf("protecting agentd: %w", err)
	}
	policy, err := localPolicy(cfg.policyFile)
	if err != nil {
		return exitSandbox, err
	}
	workspace, err := realPath("workspace", cfg.workspace)
	if err != nil {
		return exitSandbox, err
	}
	hidden, err := hiddenFolders(cfg.hidden, workspace)
	if err != nil {
		return exitSandbox, err
	}
	files, err := ownFiles(ownFile{"policy", cfg.policyFile})
	if err != nil {
		return exitSandbox, err
	}
	temp, removeTemp, err := tempFor(slices.Concat(hidden, pathsOf(files)))
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
	if err := checkOwnFiles(files, policy.Sandbox, layout); err != nil {
		return exitSandbox, err
	}
	launcher, err := sandbox.Compile(policy.Sandbox, layout, sandbox.Probe())
	if err != nil {
		return exitSandbox, err
	}
	// Closing releases the rules only; the program stays confined.
	defer func() { _ = launcher.Close() }()
	for _, gap := range launcher.Report().NotEnforced {
		// Who asked for what can be had runs without it, and shall know; nobody is left to be told that it cannot be written.
		_, _ = fmt.Fprintf(stderr, "agentd: not enforced: %s\n", gap)
	}
	// The signals are taken before there is a program that they could miss.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	watch, told := sandbox.Watch{}, func() {}
	if cfg.denials {
		watch, told = tellDenials(stderr)
	}
	pid, code, err := startProgram(launcher, workspace, argv, watch)
	if err != nil {
		return code, err
	}
	code, err = waitFor(ctx, pid, signals)
	told()
	return code, err
}

// startProgram starts what argv names, or returns an error and the code for it. A path leads from the
// workspace, a name is looked up in PATH.
func startProgram(launcher *sandbox.Launcher, workspace string, argv []string, watch sandbox.Watch) (pid, code int, err error) {
	program := argv[0]
	if !strings.Contains(program, "/") {
		if program, err = exec.LookPath(argv[0]); errors.Is(err, exec.ErrNotFound) {
			return 0, exitNotFound, err
		}
		if err != nil {
			return 0, exitCannotRun, err
		}
	}
	pid, err = launcher.StartWatched(program, argv, &syscall.ProcAttr{
		Dir: workspace, Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{},
	}, watch)
	if err == nil {
		return pid, 0, nil
	}
	return 0, startCode(err), fmt.Errorf("running %q: %w", program, err)
}

// startCode tells what is the program's fault from what is not.
func startCode(err error) int {
	if _, setup := errors.AsType[*sandbox.SetupError](err); setup {
		return exitSandbox
	}
	for _, noRoom := range []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, noRoom) {
			return exitSandbox
		}
	}
	if errors.Is(err, syscall.ENOENT) {
		return exitNotFound
	}
	return exitCannotRun
}

// lastDenials is how long the end of agentd waits for what was counted last. Children that outlive the
// program keep the count open.
const lastDenials = 500 * time.Millisecond

// tellDenials writes each denial as it is told; told waits for the last ones.
func tellDenials(to io.Writer) (watch sandbox.Watch, told func()) {
	ended := make(chan struct{})
	watch = sandbox.Watch{
		OnDenial: func(d sandbox.Denial) {
			what := d.Syscall
			for _, detail := range []string{d.Arguments, d.Address} {
				if detail != "" {
					what += " " + detail
				}
			}
			if d.Omitted {
				what = "calls of many kinds"
			}
			// Nobody is left to be told that it cannot be written.
			_, _ = fmt.Fprintf(to, "agentd: denied by %s: %s: %s, %d times by %q\n", d.Rule, what, unix.ErrnoName(d.Errno), d.Count, d.Program)
		},
		OnEnd: func() { close(ended) },
	}
	return watch, func() {
		timer := time.NewTimer(lastDenials)
		defer timer.Stop()
		select {
		case <-ended:
		case <-timer.C:
		}
	}
}

// hiddenFolders are those of the flag and, where this is a pod, those that serve hides.
func hiddenFolders(given []string, workspace string) ([]string, error) {
	var hidden []string
	for _, path := range given {
		resolved, err := realPath("hidden", path)
		if err != nil {
			return nil, err
		}
		if contains(resolved, workspace) {
			return nil, fmt.Errorf("--hidden %q: holds the workspace %q, which the program would not reach", path, workspace)
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
