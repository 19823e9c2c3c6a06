package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"execsession.dev/agentd"
	"execsession.dev/agentd/config"
	"execsession.dev/sandbox"
)

// serveConfig is what flags, environment and file say.
type serveConfig struct {
	// In a pod.
	Namespace, Session, SessionUID string
	VerifyKey                      string
	ConfigDir, JournalDir, Home    string
	TerminationLog                 string
	// On this machine.
	Local      bool
	Stdio      bool
	PolicyFile string
	ConfigFile string
	Shell      config.Shell
	Ledger     string
	// Both.
	Workspace  string
	Socket     string
	StopGrace  time.Duration
	SpillBytes int64
}

const (
	configDir      = "/execsession/config"
	journalDir     = "/execsession/journal"
	homeDir        = "/execsession/home"
	podTempDir     = "/tmp"
	terminationLog = "/dev/termination-log"
	// sharedMemory is a tmpfs of the pod's own, where shm_open and sem_open make their files.
	sharedMemory = "/dev/shm"
)

func newServe() *cobra.Command {
	var cfg serveConfig
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the commands of a session",
		Long: `Run the commands of a session: as process id 1 of its container or, with --local,
on this machine.

Every flag but --config may be given as a variable (--session-uid as AGENTD_SESSION_UID)
or in the file that --config names (session-uid: ...). A flag holds before a variable, a
variable before the file. When --verify-key is a flag, variables and the file are not looked
at: then the operator wrote the command line, and the environment is the image's.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := layer(cmd.Flags()); err != nil {
				return &exitError{exitUsage, err}
			}
			if err := cfg.check(cmd.Flags().Changed("socket")); err != nil {
				return &exitError{exitUsage, err}
			}
			return serve(cmd.Context(), cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.ConfigFile, "config", "", "file with values for the other flags; with --local, one that commands cannot change")
	f.StringVar(&cfg.Namespace, "namespace", "", "the session's namespace")
	f.StringVar(&cfg.Session, "session", "", "the session's name")
	f.StringVar(&cfg.SessionUID, "session-uid", "", "the session's uid")
	f.StringVar(&cfg.VerifyKey, "verify-key", "", "the operator's public keys, base64, separated by commas")
	f.StringVar(&cfg.Workspace, "workspace", "", "the folder that commands work in")
	f.StringVar(&cfg.ConfigDir, "config-dir", configDir, "the folder with the operator's documents")
	f.StringVar(&cfg.JournalDir, "journal-dir", journalDir, "a folder for what must survive a restart")
	f.StringVar(&cfg.Home, "home", homeDir, "HOME of commands in a pod")
	f.StringVar(&cfg.TerminationLog, "termination-log", terminationLog, "the file for the container's termination message")
	f.StringVar(&cfg.Socket, "socket", agentd.DefaultSocket, "the socket: @ and an abstract name in a pod, a path with --local")
	f.DurationVar(&cfg.StopGrace, "stop-grace", agentd.DefaultStopGrace, "the time between asking a command to end and killing it, at most 10s")
	f.Int64Var(&cfg.SpillBytes, "spill-bytes", 0, "how many bytes of each command's output are kept on disk beyond what memory holds; all commands together have eight times as many")
	f.BoolVar(&cfg.Local, "local", false, "run on this machine, without an operator")
	f.BoolVar(&cfg.Stdio, "stdio", false, "with --local: serve standard input and output instead of a socket")
	f.StringVar(&cfg.PolicyFile, "policy", "", "with --local: a file with the policy, JSON, that commands cannot change")
	f.StringVar(&cfg.Shell.Path, "shell", "", "with --local: the shell that runs scripts, a path; left out, the user's")
	f.StringVar(&cfg.Shell.Login, "shell-login", config.LoginAllowed, "with --local: whether scripts may run in a login shell, Allowed or Forbidden")
	f.StringVar(&cfg.Shell.Persistence, "shell-persistence", config.PersistenceNone, "with --local: what a script leaves for the next one, None or Environment (folder, variables, functions, aliases, options)")
	f.StringVar(&cfg.Ledger, "ledger", "", "with --local: a file that records are appended to, and that commands cannot change")
	return cmd
}

// maxSpillBytes is more than a node's disk should be asked for.
const maxSpillBytes = 1 << 40

// processJournal is the name of the journal in its folder.
const processJournal = "processes"

// maxStopGrace leaves a pod's end below 20 seconds.
const maxStopGrace = 10 * time.Second

// check says which value is wrong; socketGiven is whether --socket was set anywhere.
func (c *serveConfig) check(socketGiven bool) error {
	if c.Workspace == "" {
		return errors.New("--workspace is missing")
	}
	if c.StopGrace <= 0 || c.StopGrace > maxStopGrace {
		return fmt.Errorf("--stop-grace %s: want more than 0 and at most %s", c.StopGrace, maxStopGrace)
	}
	if c.SpillBytes < 0 || c.SpillBytes > maxSpillBytes {
		return fmt.Errorf("--spill-bytes %d: want 0 to %d", c.SpillBytes, int64(maxSpillBytes))
	}
	if c.Local {
		return c.checkLocal(socketGiven)
	}
	for _, f := range []struct{ flag, value string }{
		{"namespace", c.Namespace}, {"session", c.Session}, {"session-uid", c.SessionUID}, {"verify-key", c.VerifyKey},
	} {
		if f.value == "" {
			return fmt.Errorf("--%s is missing (or --local, on this machine)", f.flag)
		}
	}
	for _, f := range []struct {
		flag  string
		given bool
	}{
		{"stdio", c.Stdio}, {"policy", c.PolicyFile != ""}, {"ledger", c.Ledger != ""}, {"shell", c.Shell.Path != ""},
		{"shell-login", c.Shell.Login != config.LoginAllowed}, {"shell-persistence", c.Shell.Persistence != config.PersistenceNone},
	} {
		if f.given {
			return fmt.Errorf("--%s needs --local", f.flag)
		}
	}
	return nil
}

func (c *serveConfig) checkLocal(socketGiven bool) error {
	for _, f := range []struct{ flag, value string }{
		{"namespace", c.Namespace}, {"session", c.Session}, {"session-uid", c.SessionUID}, {"verify-key", c.VerifyKey},
	} {
		if f.value != "" {
			return fmt.Errorf("--%s does not go with --local: nobody signs documents there", f.flag)
		}
	}
	if err := c.Shell.Validate(); err != nil {
		return fmt.Errorf("--shell, --shell-login, --shell-persistence: %w", err)
	}
	if c.Stdio == socketGiven {
		return errors.New("--local needs one of --stdio and --socket")
	}
	if c.Stdio && c.SpillBytes > 0 {
		return errors.New("--spill-bytes needs --socket: the output goes into the socket's folder, which no command reaches")
	}
	return nil
}

// serve sets the process up and runs the agent.
func serve(ctx context.Context, cfg serveConfig) error {
	syscall.Umask(0o022)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := endSignals(ctx)
	defer stop()
	boundMemory()
	sandbox.ReserveThreads(spareThreads)

	if cfg.Local {
		return serveLocal(ctx, cfg, log)
	}
	return servePod(ctx, cfg, log)
}

// servePod is process id 1 of a session's container.
func servePod(ctx context.Context, cfg serveConfig, log *slog.Logger) error {
	keys, err := config.ParseKeys(cfg.VerifyKey)
	if err != nil {
		return &exitError{exitUsage, fmt.Errorf("--verify-key: %w", err)}
	}
	// The listener looks at our own executable, so it comes before ProtectSelf.
	listener, err := agentd.ListenPod(cfg.Socket, log)
	if err != nil {
		return err
	}
	stdout, err := takeStdout()
	if err != nil {
		return err
	}
	if err := sandbox.ProtectSelf(); err != nil {
		return fmt.Errorf("protecting agentd: %w", err)
	}
	if err := takeBack(cfg.JournalDir); err != nil {
		return err
	}
	writable := []string{cfg.Home, podTempDir}
	if isFolder(sharedMemory) {
		writable = append(writable, sharedMemory)
	}
	agent, err := agentd.New(agentd.Config{
		Workspace: cfg.Workspace, Home: cfg.Home, TempDir: podTempDir,
		Writable: writable,
		Hidden:   []string{cfg.ConfigDir, cfg.JournalDir},
		Documents: &agentd.SignedDocuments{
			Dir:          cfg.ConfigDir,
			Identity:     config.Identity{Namespace: cfg.Namespace, Name: cfg.Session, UID: cfg.SessionUID},
			Keys:         keys,
			RevisionFile: filepath.Join(cfg.JournalDir, "revision"),
		},
		Journal:  filepath.Join(cfg.JournalDir, processJournal),
		SpillDir: cfg.JournalDir, SpillBytes: cfg.SpillBytes,
		Ledger: stdout, TerminationLog: cfg.TerminationLog,
		ReapOrphans: true, StopGrace: cfg.StopGrace, Log: log,
	})
	if err != nil {
		return err
	}
	return agent.Serve(ctx, listener)
}

// isFolder is whether there is a folder of that name, not a link to one.
func isFolder(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// takeStdout keeps standard output for the ledger alone: what any library prints goes to
// standard error instead, where it cannot cut a record in two.
func takeStdout() (*os.File, error) {
	private, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("keeping standard output: %w", err)
	}
	if err := unix.Dup3(2, 1, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("turning standard output to standard error: %w", err), unix.Close(private))
	}
	return os.NewFile(uintptr(private), "ledger"), nil
}

// spareThreads are enough for what agentd does while commands leave no task for new threads.
const spareThreads = 24

// boundMemory prefers a collection more to a page more: agentd shares the session's
// memory. GOGC and GOMEMLIMIT hold when they are set.
func boundMemory() {
	const (
		percent = 50
		// limit is above what 64 full output logs take.
		limit = 160 << 20
	)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}

// ignoredSignals would end a Go program, also as process id 1: its runtime handles them.
// They are taken and dropped. Setting them to be ignored would hand that down to every
// command.
var ignoredSignals = []os.Signal{
	syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS,
	syscall.SIGFPE, syscall.SIGUSR1, syscall.SIGSEGV, syscall.SIGUSR2, syscall.SIGPIPE, syscall.SIGALRM,
	syscall.SIGSTKFLT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGXCPU, syscall.SIGXFSZ,
	syscall.SIGVTALRM, syscall.SIGPROF, syscall.SIGWINCH, syscall.SIGIO, syscall.SIGPWR, syscall.SIGSYS,
}

// endSignals returns a context that ends with the first SIGTERM or SIGINT.
func endSignals(ctx context.Context) (context.Context, func()) {
	dropped := make(chan os.Signal, 1) // never read: Notify does not wait
	signal.Notify(dropped, ignoredSignals...)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	return ctx, func() {
		stop()
		signal.Stop(dropped)
	}
}
