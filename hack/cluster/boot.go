package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// bootTimeout bounds each wait for a component: generous, because the machine may be busy with something else.
const bootTimeout = 3 * time.Minute

// boot is one attempt to bring a plan to life.
type boot struct {
	plan     plan
	binaries map[string]string // name to finished file
	pause    []byte            // archive of the pause image
	key      string
	progress *progress

	state state
}

// run boots the cluster on a machine that holds nothing of an earlier one. On an error it stops what it started, and
// leaves the logs.
func (b *boot) run(ctx context.Context) error {
	err := b.steps(ctx)
	if err != nil {
		b.progress.Say("giving up; logs are in %s", b.plan.layout.Logs)
		// Not ctx, which may be what ended the boot.
		err = errors.Join(err, stopCluster(context.WithoutCancel(ctx), b.plan.layout))
	}
	return err
}

func (b *boot) steps(ctx context.Context) error {
	if err := b.install(); err != nil {
		return err
	}
	if err := makeCgroups(); err != nil {
		return err
	}
	if err := setUpNetwork(ctx, b.plan.layout); err != nil {
		return err
	}
	done := b.progress.Begin("making certificates")
	err := makeCertificates(ctx, b.plan.layout)
	done(err)
	if err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{b.startControlPlane, b.startNode, b.awaitNode} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	b.state.Complete = true
	return b.state.write(b.plan.layout)
}

// install fills the state folder: binaries, configuration, and empty folders.
func (b *boot) install() error {
	l := b.plan.layout
	for _, folder := range l.folders() {
		if err := os.MkdirAll(folder.path, folder.mode); err != nil {
			return fmt.Errorf("making state: %w", err)
		}
		// Not left to the umask.
		if err := os.Chmod(folder.path, folder.mode); err != nil {
			return fmt.Errorf("making state: %w", err)
		}
	}
	for name, source := range b.binaries {
		if err := linkOrCopy(source, filepath.Join(l.Bin, name)); err != nil {
			return fmt.Errorf("installing %s: %w", name, err)
		}
	}
	for name, content := range b.plan.files {
		path := filepath.Join(l.Config, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("writing configuration: %w", err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return fmt.Errorf("writing configuration: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(l.Config, "upstream.conf"), upstreamServers(), 0o600); err != nil {
		return fmt.Errorf("writing configuration: %w", err)
	}
	b.state = state{Key: b.key}
	return b.state.write(l)
}

// linkOrCopy makes target the same file as source, or a copy where a file cannot have two names. Either way the
// cluster outlives the cache.
func linkOrCopy(source, target string) error {
	source, err := filepath.EvalSymlinks(source)
	if err != nil {
		return err
	}
	if os.Link(source, target) == nil {
		return nil
	}
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	return writeFile(target, content, 0o755)
}

// startControlPlane starts containerd as well: importing the pause image fits into the seconds that the API server
// takes.
func (b *boot) startControlPlane(ctx context.Context) error {
	l := b.plan.layout
	for _, name := range []string{"etcd", "containerd"} {
		if err := b.start(name); err != nil {
			return err
		}
	}
	// Started before etcd answers, the API server waits a whole second before it looks again.
	if err := b.await(ctx, "etcd", b.healthy("etcd")); err != nil {
		return err
	}
	if err := b.start("kube-apiserver"); err != nil {
		return err
	}
	err := b.await(ctx, "containerd", func(ctx context.Context) error {
		return run(ctx, filepath.Join(l.Bin, "ctr"), "--address="+l.ContainerdSocket, "version")
	})
	if err != nil {
		return err
	}
	archive := filepath.Join(l.Run, "pause.tar")
	if err := os.WriteFile(archive, b.pause, 0o600); err != nil {
		return fmt.Errorf("writing the pause image: %w", err)
	}
	if err := loadImages(ctx, l, []string{archive}); err != nil {
		return err
	}
	return b.await(ctx, "kube-apiserver", b.healthy("kube-apiserver"))
}

// startNode starts everything that is a client of the API server, after the objects that give it its rights.
func (b *boot) startNode(ctx context.Context) error {
	l := b.plan.layout
	if _, err := superuser(ctx, l, b.plan.objects, "apply", "--server-side", "-f", "-"); err != nil {
		return fmt.Errorf("applying the cluster's objects: %w", err)
	}
	for _, p := range b.plan.processes {
		if b.state.knows(p.Name) || p.Name == "kube-router" {
			continue
		}
		if err := b.start(p.Name); err != nil {
			return err
		}
	}
	// The firewall looks its node up once and ends if it is not there.
	err := b.await(ctx, "the node to register", func(ctx context.Context) error {
		_, err := superuser(ctx, l, nil, "get", "node", l.NodeName, "-o", "name")
		return err
	})
	if err != nil {
		return err
	}
	// The firewall saves the filter table and later restores it as a whole, without what kube-proxy wrote meanwhile. When that
	// was kube-proxy's first rules, services could not be reached for as long as a boot waits.
	err = b.await(ctx, "services to be reachable", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		return checkDNS(ctx, l)
	})
	if err != nil {
		return err
	}
	return b.start("kube-router")
}

func (b *boot) awaitNode(ctx context.Context) error {
	return b.await(ctx, "the cluster to be healthy", func(ctx context.Context) error {
		return checkHealth(ctx, b.plan, b.state)
	})
}

// start starts a process of the plan and remembers it at once, so that whatever happens next it can be stopped.
func (b *boot) start(name string) error {
	record, err := start(b.plan.layout, b.plan.process(name))
	if err != nil {
		return err
	}
	b.state.Processes = append(b.state.Processes, record)
	return b.state.write(b.plan.layout)
}

func (b *boot) healthy(name string) func(context.Context) error {
	p := b.plan.process(name)
	return func(ctx context.Context) error { return checkURL(ctx, p) }
}

// await repeats a check until it succeeds. It gives up as soon as a process that was started has ended.
func (b *boot) await(ctx context.Context, what string, check func(context.Context) error) error {
	done := b.progress.Begin("waiting for %s", what)
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			done(nil)
			return nil
		}
		if dead := b.state.dead(); len(dead) > 0 {
			done(err)
			log := filepath.Join(b.plan.layout.Logs, dead[0]+".log")
			return fmt.Errorf("booting: %s ended by itself: %s", dead[0], logTail(log, 6))
		}
		select {
		case <-ctx.Done():
			done(err)
			return fmt.Errorf("waiting for %s: %w", what, errors.Join(context.Cause(ctx), err))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
