package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
)

// builder compiles what is missing from the cache.
type builder struct {
	cache    cache
	checkout string
	progress *progress
}

// Build makes the named binaries be in the cache. A lock lets a second build of the same content, by another checkout
// say, wait for the first instead of repeating it.
func (b *builder) Build(ctx context.Context, names []string) error {
	if len(b.missing(names)) == 0 {
		return nil
	}
	unlock, err := lockFile(ctx, filepath.Join(b.cache.dir, "lock"), func() {
		b.progress.Say("waiting for another build of the same components")
	})
	if err != nil {
		return err
	}
	defer unlock()
	missing := b.missing(names)
	for _, cgo := range []bool{false, true} {
		wanted := slices.DeleteFunc(slices.Clone(missing), func(p program) bool { return p.cgo != cgo })
		if len(wanted) == 0 {
			continue
		}
		if err := b.compile(ctx, wanted, cgo); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) missing(names []string) []program {
	return slices.DeleteFunc(slices.Clone(programs), func(p program) bool {
		return !slices.Contains(names, p.name) || b.cache.has(p.name)
	})
}

// compile builds programs with one go build, which compiles every package that they share once and uses every core.
func (b *builder) compile(ctx context.Context, wanted []program, cgo bool) (err error) {
	if cgo {
		if err := ensurePackages(ctx, b.progress, buildPackages); err != nil {
			return err
		}
	}
	temp, err := os.MkdirTemp(b.cache.dir, "partial-")
	if err != nil {
		return fmt.Errorf("making a folder for the build: %w", err)
	}
	defer os.RemoveAll(temp)
	names, packages := make([]string, len(wanted)), make([]string, len(wanted))
	for i, p := range wanted {
		names[i], packages[i] = p.name, p.pkg
	}
	log := &buildLog{}
	done := b.progress.BeginCounting(log.count, "building %s", strings.Join(names, " "))
	defer func() { done(err) }()
	if err := b.goBuild(ctx, log, cgo, temp, packages); err != nil {
		return err
	}
	for _, p := range wanted {
		if err := os.Rename(filepath.Join(temp, executableName(p.pkg)), b.cache.path(p.name)); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) goBuild(ctx context.Context, log *buildLog, cgo bool, into string, packages []string) error {
	args := slices.Concat([]string{"build", "-v", "-o", into + "/"}, buildFlags(cgo), packages)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = componentsDir(b.checkout)
	// The compiler's own garbage collector costs a tenth of the time; a machine that runs a cluster has the memory.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOGC=800")
	if cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	cmd.Stdout, cmd.Stderr = log, log
	// Interrupted, go build removes its work folder; killed, it leaves it.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	err := cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("building components: %w\n%s", err, lastLines(log.text.String(), 30))
	}
	return nil
}

// executableName is what go build calls the program of a package.
func executableName(pkg string) string {
	name := path.Base(pkg)
	if strings.HasPrefix(name, "v") && strings.Trim(name[1:], "0123456789") == "" {
		name = path.Base(path.Dir(pkg))
	}
	return name
}

// buildLog takes what go build -v prints: a line for each package that it compiles, and complaints.
type buildLog struct {
	text  bytes.Buffer
	lines atomic.Int64
}

func (l *buildLog) Write(p []byte) (int, error) {
	l.lines.Add(int64(bytes.Count(p, []byte("\n"))))
	return l.text.Write(p)
}

func (l *buildLog) count() string { return fmt.Sprintf("%d packages", l.lines.Load()) }
