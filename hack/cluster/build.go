package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
)

// buildWorkers is how many go builds run at once. One already uses every core while it compiles; the second fills the
// time in which the first downloads or links.
const buildWorkers = 2

// builder compiles what is missing from the cache.
type builder struct {
	cache    cache
	checkout string
	progress *progress

	total    int
	finished atomic.Int32
}

// task is the part of a group that is missing.
type task struct {
	group    group
	binaries []program
}

// Build makes the named binaries be there and linked in the cache's bin folder.
func (b *builder) Build(ctx context.Context, names []string) error {
	tasks := b.missing(names)
	if len(tasks) > 0 {
		if err := b.compile(ctx, tasks); err != nil {
			return err
		}
	}
	for _, g := range groups {
		for _, bin := range g.binaries {
			if !b.cache.has(g, bin) {
				continue
			}
			if err := b.cache.link(g, bin); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *builder) missing(names []string) []task {
	var tasks []task
	b.total = 0
	for _, g := range groups {
		t := task{group: g}
		for _, bin := range g.binaries {
			if slices.Contains(names, bin.name) && !b.cache.has(g, bin) {
				t.binaries = append(t.binaries, bin)
			}
		}
		if len(t.binaries) > 0 {
			tasks = append(tasks, t)
			b.total += len(t.binaries)
		}
	}
	return tasks
}

// compile hands the tasks to the workers and returns the first error; the rest is stopped then.
func (b *builder) compile(ctx context.Context, tasks []task) error {
	b.progress.Say("%d components to build from source; the first time takes many minutes", b.total)
	if slices.ContainsFunc(tasks, func(t task) bool { return t.group.cgo }) {
		if err := ensurePackages(ctx, b.progress, buildPackages); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan task, len(tasks))
	for _, t := range tasks {
		queue <- t
	}
	close(queue)
	var workers sync.WaitGroup
	for range buildWorkers {
		workers.Go(func() {
			for t := range queue {
				if err := b.buildTask(ctx, t); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// buildTask builds the missing binaries of one group. A lock on the group lets a second build of the same content, by
// another checkout say, wait for the first instead of repeating it.
func (b *builder) buildTask(ctx context.Context, t task) error {
	dir := b.cache.dirs[t.group.name]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the cache: %w", err)
	}
	unlock, err := lockFile(ctx, dir+".lock", func() {
		b.progress.Say("waiting for another build of %s", t.group.name)
	})
	if err != nil {
		return err
	}
	defer unlock()
	for _, bin := range t.binaries {
		if b.cache.has(t.group, bin) {
			b.finished.Add(1)
			continue
		}
		done := b.progress.Begin("building %s (%d/%d)", bin.name, b.finished.Add(1), b.total)
		err := b.buildBinary(ctx, t.group, bin)
		done(err)
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) buildBinary(ctx context.Context, g group, bin program) error {
	target := b.cache.path(g, bin)
	temp := target + ".partial"
	args := append([]string{"build"}, g.flags()...)
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", temp, bin.pkg)...)
	cmd.Dir = filepath.Join(modulesDir(b.checkout), g.name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if g.cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	// Interrupted, go build removes its work folder; killed, it leaves it.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	text, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("building %s: %w\n%s", bin.name, err, lastLines(string(text), 30))
	}
	return os.Rename(temp, target)
}
