package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Launchers let threads die confined, and the main thread cannot die: it is locked to the main
// goroutine, which only waits. What is measured runs on other threads.
func init() { runtime.LockOSThread() }

// bench is one run.
type bench struct {
	runs int
	soak int
	// rest is how long idle agents are watched, stall how long the stalled reader stalls.
	rest, stall time.Duration
	agentd      string
	self        string
	// dir holds everything that the run makes, but what is hidden from commands, which private holds; workspace is the
	// folder of the agents' commands.
	dir, private, workspace string
	stdout                  io.Writer
	results                 results
}

// group measures one part of the product.
type group struct {
	name    string
	measure func(b *bench, ctx context.Context) error
}

var groups = []group{
	{"engine", (*bench).measureEngine},
	{"stream", (*bench).measureStream},
	{"rest", (*bench).measureRest},
	{"sandbox", (*bench).measureSandbox},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ended := make(chan error)
	go func() { ended <- run(ctx, os.Args[1:], os.Stdout) }()
	err := <-ended
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// run is a helper of a measurement, or the whole run.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) > 0 {
		if child, ok := children[args[0]]; ok {
			return child(args[1:])
		}
	}
	b := &bench{stdout: stdout}
	chosen, output, err := b.parse(args)
	if err != nil {
		return err
	}
	if err := b.prepare(); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	defer os.RemoveAll(b.private)
	if b.results.Machine, err = newMachine(); err != nil {
		return err
	}
	b.results.Started, b.results.Runs, b.results.Soak = time.Now().UTC(), b.runs, b.soak
	if err := b.describeAgent(ctx); err != nil {
		return err
	}
	b.say("# Performance beside the floor of the same run\n\n%s\nload %s at the start",
		b.results.Machine, number(b.results.Machine.LoadStart))

	var failed error
	for _, g := range chosen {
		if err := g.measure(b, ctx); err != nil {
			err = fmt.Errorf("group %s: %w", g.name, err)
			b.say("\n%v", err)
			b.results.Failed = append(b.results.Failed, err.Error())
			failed = errors.Join(failed, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return errors.Join(failed, b.finish(output))
}

// parse reads the command line.
func (b *bench) parse(args []string) (chosen []group, output string, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	names := flags.String("group", "engine,stream,rest,sandbox", "the groups to measure, separated by commas")
	flags.IntVar(&b.runs, "runs", 200, "samples of a short command; longer jobs take a fraction of it")
	flags.IntVar(&b.soak, "soak", 2000, "commands that group rest runs before it looks for what was left behind")
	flags.DurationVar(&b.rest, "rest", time.Minute, "how long agents at rest are watched")
	flags.DurationVar(&b.stall, "stall", 10*time.Second, "how long the stalled reader of group stream reads nothing")
	flags.StringVar(&b.agentd, "agentd", "bin/agentd", "the agent to measure")
	flags.StringVar(&output, "o", "bench/results.json", "the file for the results")
	if err := flags.Parse(args); err != nil {
		return nil, "", err
	}
	if flags.NArg() > 0 {
		return nil, "", fmt.Errorf("argument %q is not known", flags.Arg(0))
	}
	const fewestRuns, fewestSoak = 5, 100
	if b.runs < fewestRuns || b.soak < fewestSoak {
		return nil, "", fmt.Errorf("-runs %d -soak %d: want at least %d and %d", b.runs, b.soak, fewestRuns, fewestSoak)
	}
	known := make(map[string]group)
	for _, g := range groups {
		known[g.name] = g
	}
	for name := range strings.SplitSeq(*names, ",") {
		g, ok := known[name]
		if !ok {
			return nil, "", fmt.Errorf("-group %q: want some of %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ","))
		}
		chosen = append(chosen, g)
	}
	return chosen, output, nil
}

// prepare makes the folders. Symbolic links are resolved, because the sandbox follows none.
func (b *bench) prepare() (err error) {
	if b.agentd, err = filepath.Abs(b.agentd); err != nil {
		return fmt.Errorf("looking for agentd: %w", err)
	}
	if _, err := os.Stat(b.agentd); err != nil {
		return fmt.Errorf("looking for agentd (make build makes it): %w", err)
	}
	if b.self, err = os.Executable(); err != nil {
		return fmt.Errorf("looking for the own program: %w", err)
	}
	dir, err := os.MkdirTemp("", "execsession-bench-")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	if b.dir, err = filepath.EvalSymlinks(dir); err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	// Hiding a folder costs a rule for each of its neighbours, and TMPDIR may have a thousand.
	if b.private, err = os.MkdirTemp("/run", "execsession-bench-"); err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	b.workspace = filepath.Join(b.dir, "workspace")
	home := filepath.Join(b.dir, "home")
	// Login shells read the start-up files of an empty home: what a user has there may cost a hundred times the shell.
	err = errors.Join(os.Mkdir(b.workspace, 0o755), os.Mkdir(home, 0o755), os.Setenv("HOME", home))
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	return nil
}

// describeAgent asks the agent for its version, and so finds out early that it starts at all.
func (b *bench) describeAgent(ctx context.Context) error {
	a, err := b.startAgent(ctx, sandboxed)
	if err != nil {
		return err
	}
	status, err := a.GetStatus(ctx)
	b.results.Machine.Agent = status.GetVersion()
	return errors.Join(err, a.stop())
}

// finish writes the results and names what fell short.
func (b *bench) finish(output string) error {
	if err := b.results.Machine.end(); err != nil {
		return err
	}
	b.results.Ended = time.Now().UTC()
	m := b.results.Machine
	b.say("\nload %s at the start, %s at the end; %s %% of the processors' time was stolen; %s",
		number(m.LoadStart), number(m.LoadEnd), number(m.StolenPercent), b.results.Ended.Sub(b.results.Started).Round(time.Second))
	bars := 0
	for _, s := range b.results.Sections {
		for _, r := range s.Rows {
			if r.Bar != nil {
				bars++
			}
		}
	}
	missed := b.results.shortfalls()
	b.say("%d of %d bars pass", bars-len(missed), bars)
	for _, line := range missed {
		b.say("short: %s", line)
	}
	return b.results.save(output)
}

// section keeps and prints a table.
func (b *bench) section(group, title string, rows ...row) {
	s := section{Group: group, Title: title, Rows: rows}
	b.results.Sections = append(b.results.Sections, s)
	// A reader that is gone misses the rest of the table, not the results.
	_ = s.table(b.stdout)
}

func (b *bench) say(format string, args ...any) {
	_, _ = fmt.Fprintf(b.stdout, format+"\n", args...)
}

// share is a part of the wanted runs, for jobs that take longer than a short command.
func (b *bench) share(of, least int) int { return max(b.runs/of, least) }
