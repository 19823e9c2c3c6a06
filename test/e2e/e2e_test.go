package e2e

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptDeadline bounds one command of a script; a healthy one takes seconds.
const scriptDeadline = 3 * time.Minute

func TestScripts(t *testing.T) {
	env := fromEnvironment(t)
	testscript.Run(t, env.params(filepath.Join("testdata", "script")))
}

func TestDisruptive(t *testing.T) {
	env := fromEnvironment(t)
	files, err := filepath.Glob(filepath.Join("testdata", "disruptive", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("finding the disruptive scripts: %v (found %d)", err, len(files))
	}
	for _, file := range files {
		// testscript runs its scripts in parallel; one at a time here, since each disturbs all.
		t.Run("alone", func(t *testing.T) {
			params := env.params("")
			params.Dir, params.Files = "", []string{file}
			testscript.Run(t, params)
		})
	}
}

// environment is what the scripts need of the outside.
type environment struct {
	kubeconfig, bin string
}

func fromEnvironment(t *testing.T) environment {
	t.Helper()
	env := environment{kubeconfig: os.Getenv("EXECSESSION_E2E_KUBECONFIG"), bin: os.Getenv("EXECSESSION_E2E_BIN")}
	if env.kubeconfig == "" || env.bin == "" {
		t.Skip("EXECSESSION_E2E_KUBECONFIG and EXECSESSION_E2E_BIN are not set; `make test` boots a cluster and sets them")
	}
	return env
}

func (env environment) params(dir string) testscript.Params {
	return testscript.Params{
		Dir:                 dir,
		Setup:               env.setup,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"eventually": eventually,
			"jsonfield":  jsonField,
			"forge":      forge,
		},
	}
}

// setup gives a script its own namespace, which enforces the restricted standard.
func (env environment) setup(e *testscript.Env) error {
	namespace := "e2e-" + randomHex()
	home := filepath.Join(e.WorkDir, "home")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return fmt.Errorf("making the script's home: %w", err)
	}
	kubeconfig := filepath.Join(home, "kubeconfig")
	config, err := os.ReadFile(env.kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	if err := os.WriteFile(kubeconfig, config, 0o600); err != nil {
		return fmt.Errorf("copying the kubeconfig: %w", err)
	}
	e.Setenv("HOME", home)
	e.Setenv("KUBECONFIG", kubeconfig)
	e.Setenv("PATH", env.bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	e.Setenv("NAMESPACE", namespace)
	kubectl := func(ctx context.Context, args ...string) error {
		cmd := exec.CommandContext(ctx, filepath.Join(env.bin, "kubectl"), args...)
		cmd.Env = e.Vars
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := kubectl(ctx, "create", "namespace", namespace); err != nil {
		return err
	}
	e.Defer(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		// The namespace goes away by itself; the next script does not wait for it.
		_ = kubectl(ctx, "delete", "namespace", namespace, "--wait=false")
	})
	if err := kubectl(ctx, "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"); err != nil {
		return err
	}
	return kubectl(ctx, "config", "set-context", "--current", "--namespace="+namespace)
}

// eventually TIMEOUT COMMAND [ARG...] runs the command until it succeeds. What is true within the time is seen by a try
// that begins after it: how long a try takes is the machine's.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	timeout := timeoutArg(ts, "eventually", args)
	deadline := time.Now().Add(timeout)
	for {
		late := time.Now().After(deadline)
		err := ts.Exec(args[1], args[2:]...)
		if (err == nil) != neg {
			return
		}
		if late {
			ts.Fatalf("eventually %s: still %v after %s", strings.Join(args[1:], " "), err, timeout)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func timeoutArg(ts *testscript.TestScript, command string, args []string) time.Duration {
	if len(args) < 2 {
		ts.Fatalf("usage: %s TIMEOUT COMMAND [ARG...]", command)
	}
	timeout, err := time.ParseDuration(args[0])
	if err != nil || timeout > scriptDeadline {
		ts.Fatalf("%s: timeout %q: must be a duration of at most %s", command, args[0], scriptDeadline)
	}
	return timeout
}

// jsonfield VAR FIELD sets VAR to a field of the object that the last command printed.
func jsonField(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: jsonfield VAR FIELD")
	}
	var object map[string]any
	if err := json.Unmarshal([]byte(ts.ReadFile("stdout")), &object); err != nil {
		ts.Fatalf("jsonfield: what was printed is no JSON object: %v", err)
	}
	value, ok := object[args[1]]
	if !ok {
		ts.Fatalf("jsonfield: no field %q in %v", args[1], object)
	}
	ts.Setenv(args[0], fmt.Sprint(value))
}

// forge FILE OLD NEW writes a signed document with its payload changed and its signature kept.
func forge(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: forge FILE OLD NEW")
	}
	path := ts.MkAbs(args[0])
	data := ts.ReadFile(path)
	forged := strings.ReplaceAll(data, args[1], args[2])
	if forged == data {
		ts.Fatalf("forge: %q is not in %s", args[1], data)
	}
	if err := os.WriteFile(path, []byte(forged), 0o600); err != nil {
		ts.Fatalf("forge: %v", err)
	}
}

func randomHex() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // Never fails.
	return hex.EncodeToString(b[:])
}
