package agentd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/ledger"
	"execsession.dev/agentd/wire"
	"execsession.dev/sandbox"
	"execsession.dev/unifiedexec"
)

// Config is what an agent is made with.
type Config struct {
	// Workspace is the folder that commands work in.
	Workspace string
	// Home and TempDir become HOME and TMPDIR of commands; empty means as inherited.
	Home, TempDir string
	// Writable are folders beside the workspace that commands may write.
	Writable []string
	// Hidden are folders that no command reaches.
	Hidden []string
	// Documents is where the policy comes from in a pod. When nil, Policy and Shell hold.
	Documents *SignedDocuments
	Policy    config.Policy
	Shell     config.Shell
	// Ledger is where records go; nil means nowhere.
	Ledger io.Writer
	// Journal is the file in which starts and ends are noted, in one of the hidden folders; empty means nowhere.
	Journal string
	// SpillDir is a hidden folder for output that leaves memory, and SpillBytes how much of each command's output may
	// be there; 0 means none.
	SpillDir   string
	SpillBytes int64
	// TerminationLog is a file that gets the last status; it is never made.
	TerminationLog string
	// ReapOrphans collects children that nobody else waits for: process id 1's duty.
	ReapOrphans bool
	// StopGrace is the time between asking a command to end and killing it.
	StopGrace time.Duration
	// Log is for people; it must not be where the ledger goes.
	Log *slog.Logger
}

// Bounds of the end of an agent; together they stay below the 20 seconds that a pod
// gives agentd.
const (
	engineEndTime = 13 * time.Second
	serverEndTime = 2 * time.Second
	ledgerEndTime = 2 * time.Second
	// denialsEndTime is for the last denials of commands that were just killed.
	denialsEndTime = 500 * time.Millisecond
	// DefaultStopGrace is the time between SIGTERM and SIGKILL.
	DefaultStopGrace = 5 * time.Second
)

// Agent serves one session.
type Agent struct {
	cfg      Config
	log      *slog.Logger
	reporter *reporter
	ledger   *ledger.Writer
	policy   *policy
	engine   *unifiedexec.Engine
	service  *service
	// journal is nil when there is none.
	journal *journal
}

// New makes an agent. It starts no command and serves nobody before Serve.
func New(cfg Config) (*Agent, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	boot := newBootID()
	a := &Agent{cfg: cfg, log: cfg.Log, ledger: ledger.NewWriter(ledgerOf(cfg), boot)}
	a.reporter = newReporter(boot, a.ledger, time.Now)
	layout := sandbox.Layout{Workspace: cfg.Workspace, Writable: cfg.Writable, Hidden: cfg.Hidden}
	base := unifiedexec.Settings{Workdir: cfg.Workspace, Home: cfg.Home, TempDir: cfg.TempDir}
	a.policy = newPolicy(layout, sandbox.Probe(), base)
	a.policy.onChange = a.reporter.policyChanged
	a.policy.denials = a.reporter.denials

	base.Start = closedGate
	engineConfig := unifiedexec.Config{
		Settings:    base,
		Environ:     commandEnviron(os.Environ()),
		Subreaper:   true,
		ReapOrphans: cfg.ReapOrphans,
		StopGrace:   cfg.StopGrace,
		OOMScoreAdj: commandOOMScore(),
		Spill:       unifiedexec.SpillConfig{Dir: cfg.SpillDir, Bytes: cfg.SpillBytes},
		OnStart:     a.reporter.processStarted,
		OnExit:      a.reporter.processExited,
	}
	if cfg.Journal != "" {
		a.journal = newJournal(cfg.Journal, boot, cfg.Log)
		a.journal.onTrouble = func() { a.reporter.change(func() {}) }
		a.reporter.journal = a.journal.state
		engineConfig.Journal = a.journal
	}
	engine, err := unifiedexec.New(engineConfig)
	if err != nil {
		return nil, fmt.Errorf("making the engine: %w", err)
	}
	a.engine, a.policy.engine = engine, engine
	a.service = &service{engine: engine, policy: a.policy, reporter: a.reporter, ending: newEnding(cfg.Documents == nil)}
	return a, nil
}

func (c *Config) check() error {
	if !filepath.IsAbs(c.Workspace) {
		return fmt.Errorf("workspace %q is not an absolute path", c.Workspace)
	}
	info, err := os.Stat(c.Workspace)
	if err != nil {
		return fmt.Errorf("looking at the workspace: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("workspace %q is not a folder", c.Workspace)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.StopGrace <= 0 {
		c.StopGrace = DefaultStopGrace
	}
	return nil
}

func ledgerOf(cfg Config) io.Writer {
	if cfg.Ledger == nil {
		return io.Discard
	}
	return cfg.Ledger
}

// newBootID tells this run from every other.
func newBootID() string {
	var id [16]byte
	// crypto/rand.Read never fails: it ends the program instead.
	_, _ = rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// commandEnviron is what commands may inherit: agentd's own settings are not theirs.
func commandEnviron(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(variable string) bool {
		return strings.HasPrefix(variable, "AGENTD_")
	})
}

// Serve serves peers of the listener until ctx ends, a client ends the agent where it may
// or, on an inherited pair, the peer is gone. Then it stops every command; each gets its exit record, which clients that
// are attached receive before their connection ends.
func (a *Agent) Serve(ctx context.Context, listener net.Listener) error {
	var background sync.WaitGroup
	loops, stopLoops := context.WithCancel(context.Background())
	defer stopLoops()
	ledgerDone := make(chan struct{})
	go func() {
		defer close(ledgerDone)
		a.ledger.Run(loops)
	}()
	if err := a.startPolicy(loops, &background); err != nil {
		stopLoops()
		<-ledgerDone
		return errors.Join(err, a.engine.Close(ctx), listener.Close())
	}
	a.restore()
	reporting, stopReporting := context.WithCancel(loops)
	background.Go(func() { a.reporter.run(reporting) })

	server := newServer(a.service, a.log)
	serving := make(chan error, 1)
	go func() { serving <- server.Serve(listener) }()

	err := awaitEnd(ctx, listener, serving, a.service.ending.asked)
	a.reporter.stop()
	a.policy.close()
	err = errors.Join(err, a.stopEngine())
	close(a.service.ending.commandsEnded)
	a.reporter.denials.settle(denialsEndTime)
	server.Stop(serverEndTime) // Calls that are about to end are sending exit records.
	a.service.feeds.Wait()
	a.closeJournal()
	stopReporting()
	a.sayLast()
	a.endLedger(ledgerDone)
	stopLoops()
	background.Wait()
	return err
}

// restore takes over what an earlier run of agentd left, before the first command: those that it was killed over get
// their record.
func (a *Agent) restore() {
	if a.journal == nil {
		return
	}
	past := a.journal.past
	lost := past.lost(a.journal.machine)
	if a.cfg.Documents != nil {
		// Only the kubelet knows whether it was for memory.
		lost += "; why, the state of the pod's container tells"
	}
	for _, info := range a.engine.Restore(past.processes, past.marks, lost) {
		a.reporter.processLost(info)
	}
	a.journal.start(a.engine.Kept)
}

func (a *Agent) closeJournal() {
	if a.journal != nil {
		a.journal.close()
	}
}

// startPolicy puts the first policy into force and, in a pod, keeps looking for the next.
func (a *Agent) startPolicy(ctx context.Context, background *sync.WaitGroup) error {
	if a.cfg.Documents == nil {
		a.policy.adopt(documents{policy: a.cfg.Policy, shell: a.cfg.Shell})
		// Nothing could ever make it valid.
		if s := a.policy.current(); !s.valid() {
			return fmt.Errorf("putting the policy into force: %s: %s", s.reason, s.message)
		}
		return nil
	}
	r := &reader{SignedDocuments: *a.cfg.Documents}
	if err := r.loadRevision(); err != nil {
		return err
	}
	// The first status shall not say that nothing was read yet.
	a.policy.adopt(r.read())
	background.Go(func() { watch(ctx, a.log, r, a.policy.adopt) })
	return nil
}

// ender is a listener that knows when there will be no more to accept.
type ender interface{ peerGone() <-chan struct{} }

// awaitEnd returns why the agent has to end; nil when it was asked to.
func awaitEnd(ctx context.Context, listener net.Listener, serving <-chan error, asked <-chan struct{}) error {
	var gone <-chan struct{}
	if pair, ok := listener.(ender); ok {
		gone = pair.peerGone()
	}
	select {
	case <-ctx.Done():
		return nil
	case <-asked:
		return nil
	case <-gone:
		return nil
	case err := <-serving:
		return fmt.Errorf("serving: %w", err)
	}
}

// stopEngine asks every command to end, then kills it. ctx of Serve has ended: this has
// its own time.
func (a *Agent) stopEngine() error {
	ctx, cancel := context.WithTimeout(context.Background(), engineEndTime)
	defer cancel()
	return a.engine.Close(ctx)
}

// sayLast writes the last status to the ledger and, cut to what the kubelet takes, to
// the termination message, which outlives the container's log.
func (a *Agent) sayLast() {
	record := a.reporter.status()
	if a.cfg.TerminationLog == "" {
		return
	}
	record.Version, record.Boot, record.Seq = ledger.Version, a.reporter.boot, a.ledger.LastSeq()
	if err := writeTermination(a.cfg.TerminationLog, record); err != nil {
		a.log.Warn("writing the termination message", "err", err)
	}
}

// maxTermination is what the kubelet takes of a termination message.
const maxTermination = 4096

func writeTermination(path string, record ledger.Record) error {
	line, err := ledger.EncodeWithin(record, maxTermination)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return fmt.Errorf("opening the termination message: %w", err)
	}
	_, err = file.Write(line)
	return errors.Join(err, file.Close())
}

// endLedger gives what is queued a moment: standard output may be blocked for good, and
// then the write that hangs ends with the process.
func (a *Agent) endLedger(done <-chan struct{}) {
	a.ledger.Close()
	timer := time.NewTimer(ledgerEndTime)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		a.log.Warn("standard output is blocked, the last records are lost")
	}
}

// newServer has static windows for who comes by gRPC, as those of frames are: growing ones fill every pipe on the way with
// bulk data, which then stands before a keystroke.
func newServer(service *service, log *slog.Logger) *wire.Server {
	const (
		streamWindow = 128 << 10
		connWindow   = 256 << 10
		buffer       = 64 << 10
	)
	return wire.NewServer(service, unaryInterceptor(log), streamInterceptor(log),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ReadBufferSize(buffer),
		grpc.WriteBufferSize(buffer),
		grpc.MaxConcurrentStreams(256),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Minute, Timeout: 30 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
}
