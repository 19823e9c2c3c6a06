package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"execsession.dev/agentd"
	"execsession.dev/agentd/config"
	"execsession.dev/sandbox"
)

// serveLocal is a process on somebody's machine.
func serveLocal(ctx context.Context, cfg serveConfig, log *slog.Logger) (err error) {
	policy, err := localPolicy(cfg.PolicyFile)
	if err != nil {
		return err
	}
	workspace, err := realPath("workspace", cfg.Workspace)
	if err != nil {
		return err
	}
	listener, hidden, err := localListener(ctx, cfg, workspace, log)
	if err != nil {
		return err
	}
	if _, err := takeStdout(); err != nil {
		return err
	}
	if err := sandbox.ProtectSelf(); err != nil {
		return fmt.Errorf("protecting agentd: %w", err)
	}
	if err := sandbox.DropCapabilities(); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	files, err := ownFiles(ownFile{"config", cfg.ConfigFile}, ownFile{"policy", cfg.PolicyFile}, ownFile{"ledger", cfg.Ledger})
	if err != nil {
		return err
	}
	temp, removeTemp, err := tempFor(slices.Concat(hidden, pathsOf(files)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeTemp()) }()
	layout := sandbox.Layout{Workspace: workspace, Writable: []string{temp}, Hidden: hidden}
	if err := checkOwnFiles(files, policy.Sandbox, layout); err != nil {
		return err
	}
	records, err := openLedger(cfg.Ledger)
	if err != nil {
		return err
	}
	agentConfig := agentd.Config{
		Workspace: workspace, TempDir: temp, Writable: []string{temp}, Hidden: hidden,
		Policy: policy, Shell: cfg.Shell,
		Ledger: records, ReapOrphans: true, StopGrace: cfg.StopGrace, Log: log,
	}
	if len(hidden) > 0 {
		// The socket's folder is the only one that is there for the next agentd and that no command reaches.
		agentConfig.Journal = filepath.Join(hidden[0], filepath.Base(cfg.Socket)+".journal")
		agentConfig.SpillDir, agentConfig.SpillBytes = hidden[0], cfg.SpillBytes
	}
	agent, err := agentd.New(agentConfig)
	if err != nil {
		return err
	}
	return agent.Serve(ctx, listener)
}

// realPath makes a flag's path absolute and free of symbolic links, which the sandbox does not
// follow: on people's machines, links such as one from /tmp are common.
func realPath(flag, path string) (string, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("--%s: %w", flag, err)
	}
	resolved, err := filepath.EvalSymlinks(absolute)
	if err != nil {
		return "", fmt.Errorf("--%s: %w", flag, err)
	}
	return resolved, nil
}

// contains is whether a folder is another one or holds it; neither path has symbolic links.
func contains(folder, path string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// localListener also returns the folders that no command may reach because of it.
func localListener(ctx context.Context, cfg serveConfig, workspace string, log *slog.Logger) (net.Listener, []string, error) {
	if cfg.Stdio {
		pair, err := agentd.InheritedPair()
		if err != nil {
			return nil, nil, err
		}
		// The pair has its own copies; the end of the connection must be seen as its end.
		if err := discardStdin(); err != nil {
			return nil, nil, errors.Join(err, pair.Close())
		}
		return agentd.ListenPair(pair), nil, nil
	}
	socket, err := filepath.Abs(cfg.Socket)
	if err != nil {
		return nil, nil, fmt.Errorf("--socket: %w", err)
	}
	listener, err := agentd.ListenLocal(ctx, socket, log)
	if err != nil {
		return nil, nil, err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(socket))
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("--socket: %w", err), listener.Close())
	}
	if contains(dir, workspace) {
		why := fmt.Errorf("--socket %q: its folder, which no command reaches, holds the --workspace %q; put one of them elsewhere", cfg.Socket, cfg.Workspace)
		return nil, nil, errors.Join(why, listener.Close())
	}
	return listener, []string{dir}, nil
}

func discardStdin() error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return fmt.Errorf("replacing standard input: %w", err)
	}
	return errors.Join(unix.Dup3(int(null.Fd()), 0, 0), null.Close())
}

// tempFor is the temporary folder of commands: the user's or, when that holds something
// that they must not change, one of their own inside it. A command that could write beside
// the socket could put its own there, and answer for agentd.
func tempFor(kept []string) (dir string, remove func() error, err error) {
	dir, err = filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return "", nil, fmt.Errorf("looking at the temporary folder: %w", err)
	}
	for _, h := range kept {
		if !contains(dir, h) {
			continue
		}
		own, err := os.MkdirTemp(dir, "execsession-")
		if err != nil {
			return "", nil, fmt.Errorf("making a temporary folder for commands: %w", err)
		}
		return own, func() error { return os.RemoveAll(own) }, nil
	}
	return dir, func() error { return nil }, nil
}

func openLedger(path string) (io.Writer, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the ledger: %w", err)
	}
	return file, nil
}

func localPolicy(path string) (config.Policy, error) {
	if path == "" {
		return config.DefaultPolicy(), nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return config.Policy{}, fmt.Errorf("opening the policy: %w", err)
	}
	policy, err := config.ParsePolicy(data)
	if err != nil {
		return config.Policy{}, fmt.Errorf("policy %q: %w", path, err)
	}
	return policy, nil
}
