package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/klog/v2"

	"execsession.dev/agentd/client"
	"execsession.dev/agentd/toolset/codex"
	"execsession.dev/agentd/wire"
)

// Exit codes of the plugin itself; see the package's documentation.
const (
	exitNoRecord = 254
	exitFailure  = 255
)

// Stdio is the plugin's standard input, output and error.
type Stdio struct {
	In       *os.File
	Out, Err io.Writer
}

// codeError ends the plugin with a code; with a nil error it has nothing to say.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *codeError) Unwrap() error { return e.err }

// Main runs the plugin and gives its exit code. An empty version is that of the module.
func Main(arguments []string, version string, stdio Stdio) int {
	// client-go logs what a user can not act on, such as streams that a closed connection
	// left; what went wrong is in the errors.
	klog.SetLogger(logr.Discard())
	root := newRoot(version, stdio)
	root.SetArgs(arguments)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	code := exitFailure
	if ending, ok := errors.AsType[*codeError](err); ok {
		code, err = ending.code, ending.err
	}
	if err != nil {
		fmt.Fprintf(stdio.Err, "error: %s\n", oneLine(err))
	}
	return code
}

func oneLine(err error) string {
	return codex.Escape(strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", "; ")), " "))
}

// plugin is what every command shares.
type plugin struct {
	Stdio
	version string
	kube    *genericclioptions.ConfigFlags
}

func newRoot(version string, stdio Stdio) *cobra.Command {
	p := &plugin{Stdio: stdio, version: version, kube: genericclioptions.NewConfigFlags(true)}
	if version == "" {
		p.version = moduleVersion()
	}
	root := &cobra.Command{
		Use:           "kubectl-execsession",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl execsession"},
		Short:         "Run commands in sandboxed sessions",
		Long:          "Makes sessions, runs commands in them and looks after what runs there.\n--local and --socket run the same engine on this machine, without a cluster.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return fmt.Errorf("unknown command %q: see `%s --help`", args[0], cmd.CommandPath())
		},
	}
	root.SetIn(stdio.In)
	root.SetOut(stdio.Out)
	root.SetErr(stdio.Err)
	p.kube.AddFlags(root.PersistentFlags())
	root.AddCommand(p.newCreate(), p.newRun(), p.newExec(), p.newStdin(), p.newLogs(), p.newPs(),
		p.newInterrupt(), p.newStop(), p.newSignal(), p.newExplain(), p.newVersion())
	return root
}

// explain names the thing that an error of the engine is about.
func (e *engine) explain(err error, process int32) error {
	var broken *client.ConnectionError
	switch {
	case err == nil:
		return nil
	case client.Reason(err) == wire.ReasonUnknownProcess:
		return fmt.Errorf("%s knows no process %d: it never ran there, its end was already told, or it is kept no longer", e.name, process)
	case errors.As(err, &broken):
		return fmt.Errorf("%s: %w", e.name, err)
	}
	if answered, ok := errors.AsType[*client.Error](err); ok && answered.Code == codes.Unimplemented {
		return fmt.Errorf("%s is older than this plugin and does not know this call", e.name)
	}
	return err
}
