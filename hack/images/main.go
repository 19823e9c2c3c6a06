package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

const usage = `usage: images COMMAND
  product -manager FILE -agentd FILE [-certs FILE] -o ARCHIVE   write the product's image
  workspace -o ARCHIVE                                          write the example workspace's image
  builder -o ARCHIVE                                            write a Go image for the Dockerfile
  tools                                                         print the archive of the tests' tools, made once
  compare ARCHIVE OTHER                                         compare two images
  push ARCHIVE NAME                                             upload an image to a registry
`

// Names of the images. They are contract: the chart and the examples mention them.
const (
	productName   = "execsession.dev/execsession:dev"
	workspaceName = "execsession.dev/workspace:dev"
	builderName   = "execsession.dev/go-builder:dev"
	toolsName     = "execsession.dev/tools:dev"
)

// errUsage is a command line that makes no sense; the usage says the rest.
var errUsage = errors.New("unknown command line")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if errors.Is(err, errUsage) {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	archive := flags.String("o", "", "archive to write")
	manager := flags.String("manager", "", "the operator's static binary")
	agentd := flags.String("agentd", "", "the agent's static binary")
	certs := flags.String("certs", "", "certificate authorities to trust, PEM")
	if err := flags.Parse(args[1:]); err != nil {
		return errUsage
	}
	if args[0] == "compare" && flags.NArg() == 2 {
		return compare(flags.Arg(0), flags.Arg(1), stdout)
	}
	if args[0] == "push" && flags.NArg() == 2 {
		return push(ctx, flags.Arg(0), flags.Arg(1), stdout)
	}
	if args[0] == "tools" && len(args) == 1 {
		made, err := tools(ctx)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(stdout, made)
		return err
	}
	if *archive == "" || flags.NArg() > 0 {
		return errUsage
	}
	var result image
	var err error
	switch args[0] {
	case "product":
		result, err = product(*manager, *agentd, *certs)
	case "workspace":
		result, err = workspace(ctx)
	case "builder":
		result, err = builder(ctx)
	default:
		return errUsage
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(*archive), 0o755); err != nil { //nolint:gosec // the caller names the archive
		return fmt.Errorf("writing %s: %w", *archive, err)
	}
	if err := result.write(*archive); err != nil {
		return fmt.Errorf("writing %s: %w", *archive, err)
	}
	_, err = fmt.Fprintf(stdout, "%s: %s\n", *archive, result.name)
	return err
}
