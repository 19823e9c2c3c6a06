package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

const usage = `usage: go run ./hack/cluster COMMAND
  build            compile every component into the cache
  up               make the cluster run; prints the kubeconfig to use
  status           say what runs, and whether it is healthy
  load ARCHIVE...  import image archives into the node
  env [NAME]       print the variables for envtest, kubectl and helm, building what they name
  down             stop the cluster and remove its state
`

// errUsage is a command line that makes no sense; the usage says the rest.
var errUsage = errors.New("unknown command line")

// command is what every subcommand works with.
type command struct {
	checkout string
	cache    cache
	progress *progress
	stdout   io.Writer
}

func main() {
	// System programs are often not on the path of a root that came by su or sudo.
	path := os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin"
	if err := os.Setenv("PATH", path); err != nil {
		panic(err) // only a malformed name fails
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, errUsage) {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	c := &command{progress: newProgress(stderr), stdout: stdout}
	if c.checkout, err = findCheckout(dir); err != nil {
		return err
	}
	c.progress.Start()
	defer c.progress.Stop()
	name, rest := args[0], args[1:]
	switch {
	case name == "load" && len(rest) > 0:
		return c.load(ctx, rest)
	case name == "env" && len(rest) <= 1:
		return c.env(ctx, strings.Join(rest, ""))
	case len(rest) > 0:
		return errUsage
	case name == "build":
		return c.build(ctx, allBinaries())
	case name == "up":
		return c.up(ctx)
	case name == "status":
		return c.status(ctx)
	case name == "down":
		return c.down(ctx)
	}
	return errUsage
}

// build makes the named binaries be in the cache.
func (c *command) build(ctx context.Context, names []string) error {
	var err error
	if c.cache, err = openCache(ctx, c.checkout); err != nil {
		return err
	}
	b := &builder{cache: c.cache, checkout: c.checkout, progress: c.progress}
	return b.Build(ctx, names)
}

// env prints shell assignments, or the value of the one that is named, for a Makefile.
func (c *command) env(ctx context.Context, name string) error {
	if err := c.build(ctx, clientBinaries); err != nil {
		return err
	}
	bin, conf := c.cache.bin(), filepath.Join(c.checkout, "bin", "cluster", "admin.conf")
	switch name {
	case "KUBEBUILDER_ASSETS":
		return c.print("%s\n", bin)
	case "KUBECONFIG":
		return c.print("%s\n", conf)
	case "":
	default:
		return errUsage
	}
	if _, err := os.Stat(conf); err == nil {
		if err := c.print("export KUBECONFIG='%s'\n", conf); err != nil {
			return err
		}
	}
	return c.print("export KUBEBUILDER_ASSETS='%[1]s'\nexport PATH='%[1]s':\"$PATH\"\n", bin)
}

// print writes a result, which somebody may be waiting for at the other end of a pipe.
func (c *command) print(format string, args ...any) error {
	_, err := fmt.Fprintf(c.stdout, format, args...)
	return err
}

func (c *command) load(ctx context.Context, archives []string) error {
	if err := requireRoot(); err != nil {
		return err
	}
	l := newLayout()
	if _, err := os.Stat(l.ContainerdSocket); err != nil {
		return errors.New("no cluster runs on this machine: run up first")
	}
	done := c.progress.Begin("loading %s", strings.Join(archives, ", "))
	err := loadImages(ctx, l, archives)
	done(err)
	return err
}

func (c *command) status(ctx context.Context) error {
	if err := requireRoot(); err != nil {
		return err
	}
	l := newLayout()
	s, err := readState(l)
	if err != nil {
		return err
	}
	if s.Key == "" {
		return errors.New("no cluster runs on this machine")
	}
	if err := c.print("%slogs        %s\nkubeconfig  %s\ntest names  %s\n", s, l.Logs, l.adminConf(), filepath.Join(l.Config, "hosts")); err != nil {
		return err
	}
	p, err := newPlan(l)
	if err != nil {
		return err
	}
	if err := checkHealth(ctx, p, s); err != nil {
		return fmt.Errorf("not healthy: %w", err)
	}
	return c.print("healthy\n")
}

func (c *command) down(ctx context.Context) error {
	if err := requireRoot(); err != nil {
		return err
	}
	unlock, err := lockFile(ctx, lockPath, func() { c.progress.Say("waiting for another cluster command on this machine") })
	if err != nil {
		return err
	}
	defer unlock()
	l := newLayout()
	done := c.progress.Begin("removing the cluster")
	err = errors.Join(tearDown(ctx, l), withdrawKubeconfig(l, c.checkout))
	done(err)
	return err
}
