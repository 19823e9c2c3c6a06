package unifiedexec

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func persistentEngine(t *testing.T, home string) *Engine {
	t.Helper()
	return newEngine(t, Config{Settings: Settings{Home: home, Shell: ShellSettings{Path: "/bin/bash", Login: LoginForbidden, Persistence: PersistEnvironment}}})
}

func TestPersistence(t *testing.T) {
	cases := map[string]struct {
		reason string
		steps  []Command
		want   string
	}{
		"Folder":      {"the folder", []Command{{Script: "mkdir -p a/b; cd a/b"}, {Script: "basename $PWD; basename $(pwd)"}}, strings.Repeat("b\n", 2)},
		"Umask":       {"the file mask", []Command{{Script: "umask 027"}, {Script: "true"}, {Script: "umask"}}, "0027\n"},
		"Export":      {"an exported variable, of many lines and odd characters too", []Command{{Script: "export V=$'a\\n\"$x\\' \\\\b'"}, {Script: "printf '%s' \"$V\"; env | grep -c '^V='"}}, "a\n\"$x' \\b1\n"},
		"NotExported": {"a plain variable stays behind", []Command{{Script: "V=1"}, {Script: "echo \"<$V>\""}}, "<>\n"},
		"Function":    {"a function", []Command{{Script: "f() { echo \"f $1\"; }"}, {Script: "f x"}}, "f x\n"},
		"FunctionEnv": {"a function that programs get", []Command{{Script: "f() { echo \"f $1\"; }; export -f f"}, {Script: "true"}, {Script: "bash -c 'f x'"}}, "f x\n"},
		"Glob":        {"a function that needs an option to be read", []Command{{Script: "shopt -s extglob\nf() { case $1 in @(a|b)) echo yes;; esac; }"}, {Script: "f b"}}, "yes\n"},
		"Alias":       {"an alias, with the option that makes scripts use them", []Command{{Script: "shopt -s expand_aliases; alias hi='echo hello'"}, {Script: "hi you"}}, "hello you\n"},
		"Options":     {"options", []Command{{Script: "set -o pipefail -u; shopt -s nullglob"}, {Script: "set -o | grep -E '^(pipefail|nounset)' | tr -s ' \\t' ' '; echo /nothing*"}}, "nounset on\npipefail on\n\n"},
		"Errexit":     {"an option that ends scripts does not end the restoring", []Command{{Script: "set -e"}, {Script: "false; echo reached"}}, ""},
		"Noexec":      {"an option after which nothing would run is not kept", []Command{{Script: "set -o noexec"}, {Script: "echo runs"}}, "runs\n"},
		"ExitCode":    {"an exit keeps the state too", []Command{{Script: "export V=kept; exit 3"}, {Script: "echo $V"}}, "kept\n"},
		"Own":         {"what a command asks for wins", []Command{{Script: "export V=state"}, {Script: "echo $V", Env: map[string]string{"V": "own"}}}, "own\n"},
		"Workdir":     {"an explicit folder wins", []Command{{Script: "cd /tmp"}, {Script: "pwd", Workdir: "/usr"}}, "/usr\n"},
		"Large":       {"a script that no argument can hold", []Command{{Script: "export V=kept"}, {Script: "echo $V; x='" + strings.Repeat("x", 200<<10) + "'; echo ${#x}"}}, "kept\n204800\n"},
		"Closed":      {"the script does not see where the state came from", []Command{{Script: "export V=1"}, {Script: "test -e /proc/self/fd/7 && echo leaked; test -e /proc/self/fd/8 && echo leaked; trap"}}, "trap"},
		"Scripts":     {"a script may use the low descriptors itself", []Command{{Script: "exec 3>&1 4>&2 5>f 6>&1 7>&1 8>f 9>&1; export V=kept"}, {Script: "exec 4>my4; echo foo >&4; cat my4; echo $V"}, {Script: "cat my4; echo $V"}}, "foo\nkept\n"},
		"Traced":      {"tracing is kept, and only the script is traced", []Command{{Script: "set -x; export V=kept"}, {Script: "echo $V"}, {Script: "echo $V .", Env: map[string]string{"V": "own"}}}, "+ echo own .\nown .\n"},
		"Verbose":     {"and so is echoing, which tells of the trap that leaves the state", []Command{{Script: "set -v"}, {Script: "true\n:"}, {Script: "true\necho x"}}, "echo x\ntrue\nx\n{ _execsession_leave; } >/dev/null 2>&1\n"},
		"TracedApart": {"a trace on the report's own descriptor does not spoil it", []Command{{Script: "BASH_XTRACEFD=1; export V=kept; set -x"}, {Script: "set +x; echo $V"}}, "+ set +x\nkept\n"},
		"Shellopts":   {"exported names of the shell's own", []Command{{Script: "export SHELLOPTS BASHOPTS UID; set -o pipefail"}, {Script: "echo hi; env | grep -c -e ^SHELLOPTS=.*pipefail -e ^UID="}, {Script: "echo hi; env | grep -c -e ^SHELLOPTS=.*pipefail -e ^UID="}}, "hi\n2\n"},
		"Unset":       {"a variable that was unset stays so", []Command{{Script: "unset PAGER"}, {Script: "true"}, {Script: "echo \"<$PAGER>\""}}, "<>\n"},
		"Aliases":     {"aliases and functions of the engine's words", []Command{{Script: "shopt -s expand_aliases; alias export=false trap=false set=false builtin=false command=false printf=false; set() { echo no; }; printf() { echo no; }; V=kept; \\builtin export V"}, {Script: "\\builtin echo $V", Env: map[string]string{"W": "own"}}, {Script: "\\builtin echo $V"}}, "kept\n"},
		"Posix":       {"posix mode", []Command{{Script: "set -o posix; export V=kept"}, {Script: "true"}, {Script: "echo $V; set -o | grep -c 'posix.*on'"}}, "kept\n1\n"},
		"PosixOwn":    {"posix mode for one command", []Command{{Script: "export V=kept"}, {Script: "echo $V; set -o | grep -c 'posix.*on'", Env: map[string]string{"POSIXLY_CORRECT": "1"}}}, "kept\n1\n"},
		"Other":       {"another shell neither takes nor leaves anything", []Command{{Script: "export V=1"}, {Script: "export V=2; echo \"<$V>\"", Shell: "sh"}, {Script: "echo $V"}}, "1\n"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := persistentEngine(t, t.TempDir())
			var last Result
			for _, c := range tc.steps {
				last = exec(t, e, c, 30_000)
			}
			if name == "Closed" {
				last.Output = last.Output[:min(4, len(last.Output))]
			}
			if strings.HasPrefix(name, "Traced") || name == "Verbose" {
				// Two streams have no order.
				last.Output = sortedLines(last.Output)
			}
			if last.Output != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, last.Output, tc.want)
			}
		})
	}
}

// The first command has what the start-up files did, later ones what the one before left.
func TestPersistenceWithALogin(t *testing.T) {
	e := startedUp(t, Settings{Shell: ShellSettings{Path: "/bin/bash", Persistence: PersistEnvironment}}, "export FROM=profile PAGER=less\n")
	for i, want := range []string{"profile cat <>\n", "own more <kept>\n"} {
		r := exec(t, e, Command{Script: "echo $FROM $PAGER \"<$V>\"; export V=kept FROM=own PAGER=more"}, 30_000)
		if r.Output != want {
			t.Errorf("command %d: %q, want %q", i, r.Output, want)
		}
	}
}

// The variable by which a bash is told of its state is the session's if that sets it.
func TestPersistenceKeepsTheSessionsOwnFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte("X=read\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	shell := ShellSettings{Path: "/bin/bash", Login: LoginForbidden, Persistence: PersistEnvironment}
	e := newEngine(t, Config{Settings: Settings{Shell: shell, Environment: EnvironmentPolicy{Set: map[string]string{"BASH_ENV": file}}}})
	for i, want := range []string{"<> read\n", "<kept> read\n"} {
		r := exec(t, e, Command{Script: "echo \"<$V>\" $X; export V=kept; [ \"$(bash -c 'echo $X')\" = read ] || echo not for children"}, 30_000)
		if r.Output != want {
			t.Errorf("command %d: %q, want %q", i, r.Output, want)
		}
	}
}

func sortedLines(text string) string {
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}

func TestPersistenceOfALostFolder(t *testing.T) {
	e := persistentEngine(t, t.TempDir())
	exec(t, e, Command{Script: "mkdir gone; cd gone; rmdir ../gone"}, 30_000)
	r := exec(t, e, Command{Script: "pwd"}, 30_000)
	if r.Output != e.settings.Load().Workdir+"\n" || len(r.Notices) != 1 || !strings.Contains(r.Notices[0], "gone") {
		t.Errorf("%+v", r)
	}
	if r = exec(t, e, Command{Script: "pwd"}, 30_000); len(r.Notices) != 0 {
		t.Errorf("told twice: %+v", r)
	}
}

// A command that goes on in the background leaves nothing.
func TestBackgroundCommandLeavesNoState(t *testing.T) {
	e := persistentEngine(t, t.TempDir())
	exec(t, e, Command{Script: "export V=before"}, 30_000)
	r := exec(t, e, Command{Script: "export V=background; read go", Stdin: StdinOpen}, 250)
	if r = writeStdin(t, e, r.ProcessID, "go\n", 30_000); r.Exit == nil || r.Exit.Code != 0 {
		t.Fatalf("%+v", r)
	}
	if r = exec(t, e, Command{Script: "echo $V"}, 30_000); r.Output != "before\n" {
		t.Errorf("%q", r.Output)
	}
}

// Whoever relies on the state is told why it was not kept, and the state before stays.
func TestPersistenceTellsWhatItLost(t *testing.T) {
	cases := map[string]struct {
		command Command
		want    string
	}{
		"Trap":       {Command{Script: "trap 'echo bye' EXIT; export V=lost"}, "exit trap"},
		"Exec":       {Command{Script: "export V=lost; exec true"}, "exec"},
		"Descriptor": {Command{Script: "exec 28>mine; export V=lost"}, "descriptor 28"},
		"Both":       {Command{Script: "exec 28>&1 29>&2; export V=lost"}, "descriptor 28"},
		"Closed":     {Command{Script: "exec 28>&- 29>&-; export V=lost"}, "descriptor 28"},
		"Killed":     {Command{Script: "export V=lost; kill -KILL $$"}, "did not end by itself"},
		"Large":      {Command{Script: "f() { : " + strings.Repeat("x", maxShellState) + "; }; V=lost"}, "larger"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := persistentEngine(t, t.TempDir())
			exec(t, e, Command{Script: "export V=before"}, 30_000)
			r := exec(t, e, tc.command, 30_000)
			if len(r.Notices) != 1 || !strings.HasPrefix(r.Notices[0], "the shell's state was not kept: ") || !strings.Contains(r.Notices[0], tc.want) {
				t.Errorf("%+v", r)
			}
			if len(r.Output) > 10 {
				t.Errorf("more than the command's output: %q", r.Output)
			}
			if mine, err := os.ReadFile(filepath.Join(e.settings.Load().Workdir, "mine")); err == nil && len(mine) > 0 {
				t.Errorf("the script's own file holds %q", mine)
			}
			if r = exec(t, e, Command{Script: "echo $V"}, 30_000); r.Output != "before\n" || len(r.Notices) != 0 {
				t.Errorf("afterwards: %+v", r)
			}
		})
	}
}

func writeProfile(t *testing.T, home, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(home, ".bash_profile"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSnapshotOfALogin(t *testing.T) {
	home := t.TempDir()
	writeProfile(t, home, "echo chatter; export FROM=profile MULTI=$'a\\nb'; f() { echo function; }; shopt -s expand_aliases; alias ll='echo alias'; unset TMPDIR; echo x >>$HOME/reads\n")
	e := newEngine(t, Config{Settings: Settings{Home: home, Shell: ShellSettings{Path: "/bin/bash", Snapshot: true, Login: LoginAllowed}}})
	c := Command{Script: "echo $FROM \"$MULTI\"; f; ll; echo \"<$TMPDIR>\""}
	want := "profile a\nb\nfunction\nalias\n<>\n"
	if r := exec(t, e, c, 30_000); r.Output != "chatter\n"+want {
		t.Fatalf("a true login: %q", r.Output)
	}
	settle := func(script, want string) {
		t.Helper()
		c.Script = script
		var r Result
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if r = exec(t, e, c, 30_000); r.Output == want {
				return
			}
		}
		t.Fatalf("%q, want %q", r.Output, want)
	}
	settle(c.Script, want)
	reads := func() int {
		data, err := os.ReadFile(filepath.Join(home, "reads"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(data), "x")
	}
	before := reads()
	for range 5 {
		exec(t, e, c, 30_000)
	}
	if after := reads(); after != before {
		t.Errorf("the profile was read %d times more", after-before)
	}
	own := c
	own.Script, own.Env = "echo $FROM", map[string]string{"FROM": "own"}
	if r := exec(t, e, own, 30_000); r.Output != "own\n" {
		t.Errorf("own variable: %q", r.Output)
	}
	writeProfile(t, home, "export FROM=changed\n")
	settle("echo $FROM", "changed\n")
	for _, info := range e.List() {
		if strings.Contains(info.Command, "compgen") {
			t.Errorf("the engine's own process is listed: %+v", info)
		}
	}
}

func TestSnapshotThatCannotBeTaken(t *testing.T) {
	home := t.TempDir()
	writeProfile(t, home, "export FROM=profile; case $BASH_EXECUTION_STRING in *compgen*) exit 3;; esac\n")
	e := newEngine(t, Config{Settings: Settings{Home: home, Shell: ShellSettings{Path: "/bin/bash", Snapshot: true, Login: LoginAllowed}}})
	for range 4 {
		if r := exec(t, e, Command{Script: "echo $FROM"}, 30_000); r.Output != "profile\n" {
			t.Errorf("%q", r.Output)
		}
	}
}

// settled runs a script until its output is what a snapshot makes of it.
func settled(t *testing.T, e *Engine, c Command, want string) {
	t.Helper()
	var r Result
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if r = exec(t, e, c, 30_000); r.Output == want {
			return
		}
	}
	t.Fatalf("%q, want %q", r.Output, want)
}

// The shell whose start-up files are captured reads nobody's input.
func TestSnapshotShellReadsNothing(t *testing.T) {
	home := t.TempDir()
	writeProfile(t, home, "read -r line; export GOT=\"<$line>\"\n")
	e := newEngine(t, Config{Settings: Settings{Home: home, Shell: ShellSettings{Path: "/bin/bash", Snapshot: true, Login: LoginAllowed}}})
	c := Command{Script: "echo $GOT", Stdin: StdinData, StdinData: []byte("mine\n")}
	if r := exec(t, e, c, 30_000); r.Output != "<mine>\n" {
		t.Fatalf("a true login: %q", r.Output)
	}
	settled(t, e, c, "<>\n")
}

// Start-up files that hang are given up, and whatever they started with them; logins then are true ones.
func TestSnapshotShellThatHangs(t *testing.T) {
	home := t.TempDir()
	writeProfile(t, home, "export FROM=profile; case $BASH_EXECUTION_STRING in *compgen*) echo hangs >$HOME/hangs; sleep "+nap+";; esac\n")
	e := newEngine(t, Config{StopGrace: 100 * time.Millisecond, Settings: Settings{Home: home, Shell: ShellSettings{Path: "/bin/bash", Snapshot: true, Login: LoginAllowed}}})
	exec(t, e, Command{Script: "true"}, 30_000)
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		_, err := os.Stat(filepath.Join(home, "hangs"))
		if err == nil && len(running(t, "sleep NAP")) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v; %v still run", err, running(t, "sleep NAP"))
		}
	}
	if r := exec(t, e, Command{Script: "echo $FROM"}, 30_000); r.Output != "profile\n" {
		t.Errorf("%q", r.Output)
	}
}

// Variables that no shell can name do not spoil what is captured.
func TestSnapshotWithOddNames(t *testing.T) {
	home := t.TempDir()
	writeProfile(t, home, "echo chatter; export FROM=profile\n")
	environ := append(os.Environ(), "ODD-NAME=1", "1DIGIT=2", "WITH.DOT=3")
	e := newEngine(t, Config{Environ: environ, Settings: Settings{Home: home, Shell: ShellSettings{Path: "/bin/bash", Snapshot: true, Login: LoginAllowed}}})
	settled(t, e, Command{Script: "echo $FROM"}, "profile\n")
}

func TestParseShellState(t *testing.T) {
	const sep = "S"
	whole := "chatter\nS\nset -o pipefail\nset -o noexec\n+ builtin set +x\nset +o posix\n\nS\n/dir\nS\n0027\n\nS\nA\nB\n\nS\nshopt -s extglob\nshopt -u login_shell\n\nS\ndeclare -x A=\"1\"\ndeclare -rx SHELLOPTS=\"x\"\n\nS\nf ()\n{ :; }\n\nS\n"
	state, ok := parseShellState(whole, sep)
	want := &shellState{
		dir: "/dir", umask: "0027", exported: []string{"A", "B"}, before: "shopt -s extglob\n", variables: "declare -x A=\"1\"\nexport SHELLOPTS\n",
		definitions: "f ()\n{ :; }\n", posix: "set +o posix\n", after: "set -o pipefail\n",
	}
	if diff := cmp.Diff(want, state, cmp.AllowUnexported(shellState{})); !ok || diff != "" {
		t.Errorf("%v\n%s", ok, diff)
	}
	for name, report := range map[string]string{"Empty": "", "NoMarker": "chatter", "Cut": whole[:len(whole)-5], "Large": whole + strings.Repeat("x", maxShellState)} {
		if _, ok := parseShellState(report, sep); ok {
			t.Errorf("%s was taken", name)
		}
	}
}
