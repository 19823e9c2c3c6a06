package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// builtVersion is the version of all that the tests run.
const builtVersion = "v1.2.3-script"

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"kubectl-execsession": func() {
		version = builtVersion // The linker's work in a real build.
		main()
	}})
}

// buildAgentd gives the folder of a fresh agentd.
func buildAgentd(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", folder, "-ldflags", "-X execsession.dev/agentd.Version="+builtVersion, "execsession.dev/cmd/agentd")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building agentd: %v\n%s", err, said)
	}
	return folder
}

// TestScripts runs what a user would type, against a real agentd that is built here.
func TestScripts(t *testing.T) {
	folder := buildAgentd(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", folder+string(os.PathListSeparator)+env.Getenv("PATH"))
			plugin, err := exec.LookPath("kubectl-execsession")
			if err != nil {
				return err
			}
			env.Setenv("PLUGIN", plugin)
			// Nothing else on this machine sleeps for as long.
			env.Setenv("NAP", strconv.Itoa(4_000_000+os.Getpid()))
			env.Setenv("KUBECONFIG", filepath.Join(env.WorkDir, "no-kubeconfig"))
			return os.MkdirAll(filepath.Join(env.WorkDir, "run"), 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code":     runForCode,
			"waitfile": waitForFile,
		},
	})
}

// runForCode is `code N PROGRAM [ARG...]`: the program must exit with N.
func runForCode(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) < 2 {
		ts.Fatalf("usage: code N PROGRAM [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exited, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exited.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// waitForFile is `waitfile FILE`: it waits until the file is there.
func waitForFile(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 1 {
		ts.Fatalf("usage: waitfile FILE")
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, err := os.Stat(ts.MkAbs(args[0]))
		if err == nil {
			return
		}
		if !errors.Is(err, fs.ErrNotExist) || time.Now().After(deadline) {
			ts.Fatalf("waiting for %s: %v", args[0], err)
		}
	}
}
