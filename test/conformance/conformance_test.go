package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"execsession.dev/cmd/kubectl-execsession/app"
)

// patience bounds every wait; the machine may be busy.
const patience = time.Minute

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"kubectl-execsession": func() {
		os.Exit(app.Main(os.Args[1:], "conformance", app.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
	}})
}

func TestScripts(t *testing.T) {
	folder := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", folder, "execsession.dev/cmd/agentd")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building agentd: %v\n%s", err, said)
	}
	testscript.Run(t, testscript.Params{
		Dir: scriptFolder,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", folder+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("SOCKET", filepath.Join(env.WorkDir, "run", "s"))
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			// No other script, and no other run of these tests, sleeps for as long.
			env.Setenv("NAP", fmt.Sprintf("%d%03d", 4_000_000+os.Getpid(), scriptsBegun.Add(1)))
			for _, name := range []string{"run", "ws", "home"} {
				if err := os.MkdirAll(filepath.Join(env.WorkDir, name), 0o700); err != nil {
					return err
				}
			}
			return nil
		},
		RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"serve":        serve,
			"exec_command": execCommand,
			"write_stdin":  writeStdin,
			"poll":         poll,
			"plugin":       plugin,
			"waitfile":     waitFile,
			"gone":         gone,
		},
	})
}

// scriptsBegun tells the scripts' NAPs apart.
var scriptsBegun atomic.Int64

// expand puts in the session id, and this script's own numbers for NAP1 to NAP9.
func expand(ts *testscript.TestScript, text string) string {
	text = strings.ReplaceAll(text, "$ID", ts.Getenv("ID"))
	return napNumber.ReplaceAllString(text, ts.Getenv("NAP")+"$1")
}

var napNumber = regexp.MustCompile(`\bNAP([1-9])\b`)

// eventually fails the script when f stays false.
func eventually(ts *testscript.TestScript, what string, f func() bool) {
	for deadline := time.Now().Add(patience); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			ts.Fatalf("it did not happen within %s: %s", patience, what)
		}
	}
}

// serve starts agentd and ends it with the script.
func serve(ts *testscript.TestScript, negated bool, args []string) {
	if negated {
		ts.Fatalf("usage: serve [ARG...]")
	}
	socket := ts.Getenv("SOCKET")
	program := filepath.Join(strings.Split(ts.Getenv("PATH"), string(os.PathListSeparator))[0], "agentd")
	agent := exec.Command(program, append([]string{"serve", "--local", "--workspace", ts.MkAbs("ws"), "--socket", socket, "--stop-grace", "1s"}, args...)...)
	agent.Env = environ(ts)
	var stderr strings.Builder
	agent.Stderr = &stderr
	ts.Check(agent.Start())
	ended := make(chan error, 1)
	go func() { ended <- agent.Wait() }()
	ts.Defer(func() {
		_ = agent.Process.Signal(syscall.SIGTERM) // It may have ended by itself.
		select {
		case err := <-ended:
			if err != nil {
				ts.Logf("agentd: %v\n%s", err, stderr.String())
			}
		case <-time.After(patience):
			_ = agent.Process.Kill()
			<-ended
			ts.Logf("agentd did not end and was killed")
		}
	})
	eventually(ts, "agentd serves", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
}

// environ is what the script's programs have.
func environ(ts *testscript.TestScript) []string {
	vars := []string{}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "WORK", "SOCKET", "MY_TOKEN", "MY_VALUE", "AGENTD_LEDGER"} {
		if value := ts.Getenv(name); value != "" {
			vars = append(vars, name+"="+value)
		}
	}
	return vars
}

func execCommand(ts *testscript.TestScript, negated bool, args []string) {
	flags := []string{}
	if len(args) > 1 && args[0] == "-mode" {
		flags, args = []string{"--mode", args[1]}, args[2:]
	}
	call(ts, negated, "exec", flags, args)
}

func writeStdin(ts *testscript.TestScript, negated bool, args []string) {
	call(ts, negated, "stdin", nil, args)
}

// call makes one call of a tool and checks its result, or its error.
func call(ts *testscript.TestScript, negated bool, tool string, flags, args []string) {
	if len(args) == 0 {
		ts.Fatalf("usage: the call's JSON and what to check")
	}
	arguments := expand(ts, args[0])
	err := ts.Exec("kubectl-execsession", append(append([]string{tool, "--socket", ts.Getenv("SOCKET")}, flags...), arguments)...)
	if negated {
		checkError(ts, err, args[1:])
		return
	}
	ts.Check(err)
	checkResult(ts, lastResult(ts), args[1:])
}

// lastResult reads what the last call printed, and remembers its session.
func lastResult(ts *testscript.TestScript) map[string]any {
	var result map[string]any
	decoder := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	decoder.UseNumber()
	if err := decoder.Decode(&result); err != nil {
		ts.Fatalf("the result is no JSON: %v", err)
	}
	if id, ok := result["session_id"]; ok {
		ts.Setenv("ID", fmt.Sprint(id))
	}
	return result
}

func checkError(ts *testscript.TestScript, err error, patterns []string) {
	exited, ok := errors.AsType[*exec.ExitError](err)
	said := ts.ReadFile("stderr")
	if !ok || exited.ExitCode() != 255 || strings.Count(said, "\n") != 1 {
		ts.Fatalf("the call gave %v and said %q, want exit code 255 and one line", err, said)
	}
	for _, pattern := range patterns {
		if !regexp.MustCompile(pattern).MatchString(said) {
			ts.Fatalf("the call said %q, want a match of %q", said, pattern)
		}
	}
}

func checkResult(ts *testscript.TestScript, result map[string]any, checks []string) {
	for _, check := range checks {
		name, absent := strings.CutPrefix(check, "!")
		split := strings.IndexAny(name, "=<")
		if split < 0 {
			if _, there := field(result, name); there == absent {
				ts.Fatalf("check %q: the result is %v", check, result)
			}
			continue
		}
		value, there := field(result, name[:split])
		want := name[split+1:]
		if name[split] == '<' {
			got, err := strconv.ParseFloat(value, 64)
			limit, bad := strconv.ParseFloat(want, 64)
			if err != nil || bad != nil || got >= limit {
				ts.Fatalf("check %q: it is %s", check, value)
			}
			continue
		}
		if !there || !regexp.MustCompile("^(?s:"+want+")$").MatchString(value) {
			ts.Fatalf("check %q: it is %q, in %v", check, value, result)
		}
	}
}

// field gives a field of the result as text, and whether it is there.
func field(result map[string]any, path string) (string, bool) {
	var value any = result
	for name := range strings.SplitSeq(path, ".") {
		object, ok := value.(map[string]any)
		if !ok {
			return "", false
		}
		if value, ok = object[name]; !ok {
			return "", false
		}
	}
	list, ok := value.([]any)
	if !ok {
		return fmt.Sprint(value), true
	}
	var parts []string
	for _, item := range list {
		parts = append(parts, fmt.Sprint(item))
	}
	return strings.Join(parts, "; "), true
}

// poll polls until the command ended.
func poll(ts *testscript.TestScript, negated bool, checks []string) {
	if negated {
		ts.Fatalf("usage: poll CHECK...")
	}
	output := ""
	for deadline := time.Now().Add(patience); ; {
		ts.Check(ts.Exec("kubectl-execsession", "stdin", "--socket", ts.Getenv("SOCKET"), `{"session_id":`+ts.Getenv("ID")+`,"yield_time_ms":30000}`))
		result := lastResult(ts)
		text, _ := field(result, "output")
		output += text
		if _, ended := field(result, "exit_code"); ended {
			result["output"] = output
			checkResult(ts, result, checks)
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("the command does not end; its output is %q", output)
		}
	}
}

// plugin is kubectl-execsession at the script's socket.
func plugin(ts *testscript.TestScript, negated bool, args []string) {
	if len(args) == 0 {
		ts.Fatalf("usage: plugin COMMAND [ARG...]")
	}
	for i, arg := range args {
		args[i] = expand(ts, arg)
	}
	err := ts.Exec("kubectl-execsession", append([]string{args[0], "--socket", ts.Getenv("SOCKET")}, args[1:]...)...)
	if (err != nil) != negated {
		ts.Fatalf("plugin %s: %v", strings.Join(args, " "), err)
	}
}

func waitFile(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 1 {
		ts.Fatalf("usage: waitfile FILE")
	}
	eventually(ts, args[0]+" is there", func() bool {
		_, err := os.Stat(ts.MkAbs(args[0]))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			ts.Fatalf("looking for %s: %v", args[0], err)
		}
		return err == nil
	})
}

// gone checks that no process has such a command line: at once, for what ended is to have ended.
func gone(ts *testscript.TestScript, negated bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: gone REGEXP")
	}
	pattern := regexp.MustCompile(expand(ts, args[0]))
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	ts.Check(err)
	var found []string
	for _, line := range lines {
		text, err := os.ReadFile(line)
		if err == nil && pattern.Match([]byte(strings.ReplaceAll(strings.TrimRight(string(text), "\x00"), "\x00", " "))) {
			found = append(found, line)
		}
	}
	if (len(found) > 0) != negated {
		ts.Fatalf("processes with a command line like %q: %q", args[0], found)
	}
}
