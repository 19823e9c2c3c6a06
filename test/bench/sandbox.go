package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"

	"execsession.dev/sandbox"
	"execsession.dev/unifiedexec"
)

// The bars of group sandbox.
const (
	sandboxInProcessBar = 1.35
	sandboxSocketBar    = 1.5
	manyRules           = 1000
	manyRulesBar        = 0.5 // ms
	copyBar             = 1.03
	copyPairs           = 30
)

func (b *bench) measureSandbox(ctx context.Context) error {
	for _, measure := range []func(context.Context) error{b.measureSandboxedStart, b.measureManyRules, b.measureCopy} {
		if err := measure(ctx); err != nil {
			return err
		}
	}
	return nil
}

// layout is where the folders of a session lie in this run.
func (b *bench) layout() sandbox.Layout {
	return sandbox.Layout{Workspace: b.workspace, Hidden: []string{filepath.Join(b.private, "hidden")}}
}

// watched starts with all that the product has on: also what is refused is noted, which is counted here.
func watched(launcher *sandbox.Launcher, refusals *atomic.Int64) unifiedexec.StartFunc {
	return func(argv0 string, argv []string, attr *syscall.ProcAttr) (int, error) {
		return launcher.StartWatched(argv0, argv, attr, sandbox.Watch{OnDenial: func(sandbox.Denial) { refusals.Add(1) }})
	}
}

// withSandboxedEngine runs f with an engine in this process under a policy.
func (b *bench) withSandboxedEngine(ctx context.Context, policy sandbox.Policy, f func(*unifiedexec.Engine) error) error {
	launcher, err := sandbox.Compile(policy, b.layout(), sandbox.Probe())
	if err != nil {
		return err
	}
	var refusals atomic.Int64
	engine, err := b.newEngine(watched(launcher, &refusals))
	if err != nil {
		return errors.Join(err, launcher.Close())
	}
	err = f(engine)
	if n := refusals.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d calls were refused to commands that make none that may be", n))
	}
	return errors.Join(err, closeEngine(ctx, engine), launcher.Close())
}

func (b *bench) measureSandboxedStart(ctx context.Context) error {
	return b.withSandboxedEngine(ctx, sandbox.Default(), func(engine *unifiedexec.Engine) (err error) {
		free, err := b.newEngine(nil)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeEngine(ctx, free)) }()
		return b.withAgents(ctx, func(bare, confined *agent) error {
			for _, j := range []job{trueJob, trueJob.onTerminal()} {
				if err := b.measureSandboxedJob(ctx, j, free, engine, bare, confined); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func (b *bench) measureSandboxedJob(ctx context.Context, j job, free, engine *unifiedexec.Engine, bare, confined *agent) error {
	floors := j.floors()
	taken, err := interleave(ctx, b.runs, append(floors,
		timed("in process, no sandbox", func(ctx context.Context) error { return j.execIn(ctx, free) }),
		timed("in process, "+sandboxed, func(ctx context.Context) error { return j.execIn(ctx, engine) }),
		timed("socket, no sandbox", func(ctx context.Context) error { return j.execBy(ctx, bare.Client) }),
		timed("socket, "+sandboxed, func(ctx context.Context) error { return j.execBy(ctx, confined.Client) }),
	)...)
	if err != nil {
		return err
	}
	first := len(floors)
	rows := rowsOf("ms", taken, first-1)
	rows[first+1] = rows[first+1].ratioAtMost(sandboxInProcessBar)
	rows[first+3] = rows[first+3].ratioAtMost(sandboxSocketBar)
	b.section("sandbox", fmt.Sprintf("%s on %s, exec_command, start to exit record", j.name, j.stdio()), rows...)
	return nil
}

// measureManyRules is what a thousand writable roots add to a start.
func (b *bench) measureManyRules(ctx context.Context) error {
	many := sandbox.Default()
	for i := range manyRules {
		root := filepath.Join(b.dir, "roots", strconv.Itoa(i))
		if err := os.MkdirAll(root, 0o755); err != nil {
			return fmt.Errorf("making a writable root: %w", err)
		}
		many.Filesystem.WritableRoots = append(many.Filesystem.WritableRoots, root)
	}
	return b.withSandboxedEngine(ctx, sandbox.Default(), func(few *unifiedexec.Engine) error {
		return b.withSandboxedEngine(ctx, many, func(thousand *unifiedexec.Engine) error {
			taken, err := interleave(ctx, b.runs,
				timed(sandboxed, func(ctx context.Context) error { return trueJob.execIn(ctx, few) }),
				timed(fmt.Sprintf("with %d writable roots", manyRules), func(ctx context.Context) error { return trueJob.execIn(ctx, thousand) }),
			)
			if err != nil {
				return err
			}
			added := figure("added", "ms", taken[1].median()-taken[0].median()).medianAtMost(manyRulesBar)
			b.section("sandbox", fmt.Sprintf("%d rules, /bin/true in process", manyRules), append(rowsOf("ms", taken, 0), added)...)
			return nil
		})
	})
}

// measureCopy is the processor time of a command that opens, makes and writes many files: under the whole
// sandbox, and under nothing but the Landlock rules of the same policy.
func (b *bench) measureCopy(ctx context.Context) (err error) {
	source := filepath.Join(b.workspace, "tree")
	if err := makeTree(source); err != nil {
		return err
	}
	rulesOnly := sandbox.Probe()
	// A kernel that refuses filters leaves the rules alone in force, which the policy has to allow.
	rulesOnly.Seccomp = false
	relaxed := sandbox.Default()
	relaxed.Enforcement = sandbox.BestEffort
	bare, err := sandbox.Compile(relaxed, b.layout(), rulesOnly)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bare.Close()) }()
	whole, err := sandbox.Compile(sandbox.Default(), b.layout(), sandbox.Probe())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, whole.Close()) }()
	if bare.Report().Seccomp || !whole.Report().Enforced || !whole.Report().Denials {
		return fmt.Errorf("the floor enforces %+v and the sandbox %+v", bare.Report(), whole.Report())
	}
	copying := func(name string, start unifiedexec.StartFunc) variant {
		return variant{name, func(context.Context) (float64, error) { return b.copyTree(start, source) }}
	}
	var refusals atomic.Int64
	taken, err := interleave(ctx, min(copyPairs, b.runs),
		copying("no sandbox", syscall.ForkExec),
		copying("floor: the same Landlock rules alone", bare.Start),
		copying(sandboxed, watched(whole, &refusals)),
	)
	if err != nil {
		return err
	}
	rows := rowsOf("ms", taken, 1)
	// The disk's state drifts by more than the bar is wide, and hits the samples of one round alike.
	ofMedians := rows[2].Ratio
	rows[2].Ratio = pairedRatio(taken[2], taken[1])
	rows[2] = rows[2].ratioAtMost(copyBar).noting("the ratio is the median of those of %d pairs; that of the medians is %sx", rows[2].Runs, number(ofMedians))
	b.section("sandbox", fmt.Sprintf("processor time of cp -r, %d files", treeFolders*treeFiles),
		append(rows, figure("refusals that had to be answered", "calls", float64(refusals.Load())).medianAtMost(0))...)
	return nil
}

// The tree that is copied.
const (
	treeFolders   = 100
	treeFiles     = 20
	treeFileBytes = 2000
)

func makeTree(dir string) error {
	content := make([]byte, treeFileBytes)
	for folder := range treeFolders {
		path := filepath.Join(dir, strconv.Itoa(folder))
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("making a tree: %w", err)
		}
		for file := range treeFiles {
			if err := os.WriteFile(filepath.Join(path, strconv.Itoa(file)), content, 0o644); err != nil {
				return fmt.Errorf("making a tree: %w", err)
			}
		}
	}
	return nil
}

// copyTree returns the milliseconds of processor time that copying took. The copy stays: to make files where many were just
// removed costs ext4 up to twenty times as much, because it does not use their numbers again for some minutes.
func (b *bench) copyTree(start unifiedexec.StartFunc, source string) (float64, error) {
	target, err := os.MkdirTemp(b.workspace, "copy-")
	if err != nil {
		return 0, fmt.Errorf("making a folder: %w", err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	pid, err := start("/bin/cp", []string{"cp", "-r", source, target}, &syscall.ProcAttr{
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd()}, Env: os.Environ(),
	})
	if err != nil {
		return 0, fmt.Errorf("starting cp: %w", err)
	}
	var status syscall.WaitStatus
	var usage syscall.Rusage
	if _, err := wait4(pid, &status, &usage); err != nil {
		return 0, fmt.Errorf("waiting for cp: %w", err)
	}
	if !status.Exited() || status.ExitStatus() != 0 {
		return 0, fmt.Errorf("cp ended with status %#x", int(status))
	}
	copied, err := filepath.Glob(filepath.Join(target, filepath.Base(source), "*", "*"))
	if err != nil {
		return 0, err
	}
	if len(copied) != treeFolders*treeFiles {
		return 0, fmt.Errorf("cp made %d files, want %d", len(copied), treeFolders*treeFiles)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e6, nil
}

// wait4 waits through signals.
func wait4(pid int, status *syscall.WaitStatus, usage *syscall.Rusage) (int, error) {
	for {
		got, err := syscall.Wait4(pid, status, 0, usage)
		if !errors.Is(err, syscall.EINTR) {
			return got, err
		}
	}
}
