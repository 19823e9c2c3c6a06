package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// up makes the wanted cluster run: it leaves a healthy one alone and replaces any other.
func (c *command) up(ctx context.Context) error {
	if err := requireRoot(); err != nil {
		return err
	}
	begun := time.Now()
	if err := ensurePackages(ctx, c.progress, nodePackages); err != nil {
		return err
	}
	if err := c.build(ctx, allBinaries()); err != nil {
		return err
	}
	b, err := c.prepare(ctx)
	if err != nil {
		return err
	}
	unlock, err := lockFile(ctx, lockPath, func() { c.progress.Say("waiting for another cluster command on this machine") })
	if err != nil {
		return err
	}
	defer unlock()
	reason := wanting(ctx, b)
	if reason != "" {
		c.progress.Say("%s: booting", reason)
		if err := tearDown(ctx, b.plan.layout); err != nil {
			return fmt.Errorf("removing the previous cluster: %w", err)
		}
		if err := checkPorts(b.plan.processes); err != nil {
			return err
		}
		if err := b.run(ctx); err != nil {
			return err
		}
	}
	name, err := publishKubeconfig(b.plan.layout, c.checkout)
	if err != nil {
		return err
	}
	c.progress.Say("ready after %s: Kubernetes %s, node %s", time.Since(begun).Round(100*time.Millisecond), kubernetesVersion, nodeName)
	return c.print("export KUBECONFIG=%s\n", name)
}

// prepare is everything that is known before the machine is touched.
func (c *command) prepare(ctx context.Context) (*boot, error) {
	p, err := newPlan(newLayout())
	if err != nil {
		return nil, err
	}
	pause, err := buildPause(ctx, c.checkout)
	if err != nil {
		return nil, err
	}
	archive, err := imageArchive(p.layout.PauseImage, "pause", pause)
	if err != nil {
		return nil, err
	}
	b := &boot{plan: p, pause: archive, progress: c.progress, binaries: map[string]string{}}
	for _, name := range allBinaries() {
		b.binaries[name] = c.cache.path(name)
	}
	b.key = p.key(c.cache.key, sha256Hex(pause))
	return b, nil
}

// wanting is the reason to boot, or nothing if the cluster that runs is the wanted one and well. A busy machine may
// make a check late, so it is asked a few times before a cluster is thrown away.
func wanting(ctx context.Context, b *boot) string {
	s, err := readState(b.plan.layout)
	switch {
	case err != nil:
		return err.Error()
	case s.Key == "":
		return "no cluster runs"
	case !s.Complete:
		return "the last boot was not finished"
	case s.Key != b.key:
		return "the cluster that runs has other versions or another configuration"
	}
	for try := 0; ; try++ {
		err = checkHealth(ctx, b.plan, s)
		if err == nil {
			return ""
		}
		if try == 3 || len(s.dead()) > 0 {
			return "the cluster is not healthy (" + err.Error() + ")"
		}
		time.Sleep(time.Second)
	}
}

// requireRoot says why a cluster cannot be run here.
func requireRoot() error {
	if !onLinux {
		return fmt.Errorf("a cluster needs Linux: name another with KUBECONFIG")
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("a cluster needs root: it makes network devices, mounts and control groups")
	}
	return nil
}
