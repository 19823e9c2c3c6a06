package unifiedexec

import (
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// shellsHere are the shells of this machine: all read their start-up files each time, and a bash has a snapshot of them, too.
func shellsHere() map[string]ShellSettings {
	here := map[string]ShellSettings{}
	for name := range kinds {
		path, err := osexec.LookPath(name)
		if err != nil {
			continue
		}
		here[name] = ShellSettings{Path: path}
		if name == "bash" {
			here["bashFromSnapshot"] = ShellSettings{Path: path, Snapshot: true}
		}
	}
	return here
}

// writeStartup writes the start-up file that every shell reads as a login shell.
func writeStartup(t *testing.T, home, text string) {
	t.Helper()
	for _, name := range []string{".profile", ".zprofile"} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// startedUp makes an engine whose shells have read a start-up file, and whose snapshot is there if there is one to be.
func startedUp(t *testing.T, s Settings, startup string) *Engine {
	t.Helper()
	if s.Home == "" {
		s.Home = t.TempDir()
	}
	writeStartup(t, s.Home, startup)
	e := newEngine(t, Config{Environ: []string{"PATH=" + os.Getenv("PATH"), "INHERITED=1"}, Settings: s})
	if s.Shell.Snapshot {
		awaitSnapshot(t, e)
	}
	return e
}

func awaitSnapshot(t *testing.T, e *Engine) {
	t.Helper()
	exec(t, e, Command{Script: "true"}, 30_000)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		settings := e.settings.Load()
		if state := e.snapshot(settings, settings.shell); state != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no snapshot was taken")
		}
	}
}

func TestStartupFilesGiveWay(t *testing.T) {
	const startup = `
export FOO=profile PAGER=less TERM=xterm SECRET_TOKEN=leak EXECSESSION=forged OTHER=other EXCLUDED_1=excluded KEPT=profile
export MULTI='a
export SECRET_TOKEN=inner'
export PATH=/profbin:/usr/bin:/bin LANG=de_DE
unset GIT_PAGER
set -eu
`
	const show = `echo "$FOO $PAGER $TERM <${SECRET_TOKEN-}> $EXECSESSION <${OTHER-}> <${EXCLUDED_1-}> $LANG <${GIT_PAGER-}> $PATH $?"`
	cases := map[string]struct {
		reason   string
		settings Settings
		own      map[string]string
		script   string
		want     string
	}{
		"Fixed":       {"what is fixed and the secret filter hold, and the rest is the start-up file's", Settings{}, nil, show, "profile cat dumb <> 1 <other> <excluded> C.UTF-8 <cat> /profbin:/usr/bin:/bin 0\n"},
		"Secrets":     {"secrets may be kept", Settings{Environment: EnvironmentPolicy{KeepSecrets: true}}, nil, "echo $SECRET_TOKEN", "leak\n"},
		"Set":         {"what the policy sets holds, also against its own filters", Settings{PathPrepend: []string{"/first"}, Environment: EnvironmentPolicy{Set: map[string]string{"FOO": "it's \"policy\"", "PATH": "/polbin:/usr/bin:/bin", "SECRET_TOKEN": "set"}}}, nil, show, "it's \"policy\" cat dumb <set> 1 <other> <excluded> C.UTF-8 <cat> /first:/polbin:/usr/bin:/bin 0\n"},
		"Exclude":     {"what is excluded is not brought in", Settings{Environment: EnvironmentPolicy{Exclude: []string{"ex*_?"}}}, nil, show, "profile cat dumb <> 1 <other> <> C.UTF-8 <cat> /profbin:/usr/bin:/bin 0\n"},
		"IncludeOnly": {"nor what is not included; what commands get in any case has its own value", Settings{Environment: EnvironmentPolicy{IncludeOnly: []string{"f?o", "HOME"}}}, nil, show, "profile cat dumb <> 1 <> <> C.UTF-8 <cat> " + defaultPath + " 0\n"},
		"Prepend":     {"in front of what the start-up file made of PATH", Settings{PathPrepend: []string{"/first", "/second"}}, nil, "echo $PATH", "/first:/second:/profbin:/usr/bin:/bin\n"},
		"Own":         {"the call's own variables are above all", Settings{PathPrepend: []string{"/first"}, Environment: EnvironmentPolicy{Set: map[string]string{"FOO": "policy"}}}, map[string]string{"FOO": "own '\n\\", "PAGER": "more", "SECRET_TOKEN": "own", "PATH": "/own:/usr/bin:/bin", "TERM": ""}, show, "own '\n\\ more  <own> 1 <other> <excluded> C.UTF-8 <cat> /first:/own:/usr/bin:/bin 0\n"},
		"Several":     {"a value of several lines stays whole", Settings{}, nil, `echo "$MULTI"`, "a\nexport SECRET_TOKEN=inner\n"},
		"Children":    {"and programs get the same", Settings{}, map[string]string{"OWN": "own"}, "env | grep -E '^(OWN|PAGER|SECRET_TOKEN|FOO|_execsession.*|BASH_ENV)=' | sort", "FOO=profile\nOWN=own\nPAGER=cat\n"},
	}
	for shell, sh := range shellsHere() {
		for name, tc := range cases {
			t.Run(shell+"/"+name, func(t *testing.T) {
				tc.settings.Shell = sh
				e := startedUp(t, tc.settings, startup)
				if r := exec(t, e, Command{Script: tc.script, Env: tc.own}, 30_000); strings.ReplaceAll(r.Output, "inner'", "inner") != tc.want {
					t.Errorf("%s: %q, want %q", tc.reason, r.Output, tc.want)
				}
			})
		}
	}
}

// A start-up file that makes a variable read-only has the last word on it, and does not end the shell.
func TestStartupFilesMayMakeReadOnly(t *testing.T) {
	for name, sh := range shellsHere() {
		t.Run(name, func(t *testing.T) {
			e := startedUp(t, Settings{Shell: sh}, "export COLORTERM=x MY_TOKEN=t; readonly COLORTERM MY_TOKEN\n")
			if r := exec(t, e, Command{Script: "echo runs $TERM"}, 30_000); r.Output != "runs dumb\n" {
				t.Errorf("%q", r.Output)
			}
		})
	}
}

// A call's own variables are the command's: start-up files are the session's and see none of them.
func TestStartupFilesDoNotSeeOwnVariables(t *testing.T) {
	other := t.TempDir()
	for _, name := range []string{".profile", ".bash_profile", ".zprofile", ".zshenv"} {
		if err := os.WriteFile(filepath.Join(other, name), []byte("export FROM=other\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	no := false
	for name, sh := range shellsHere() {
		t.Run(name, func(t *testing.T) {
			e := startedUp(t, Settings{Shell: sh}, `export FROM="session<${OWN-}>"`+"\n")
			own := map[string]string{"HOME": other, "OWN": "own", "POSIXLY_CORRECT": "1", "not-a-name": "odd"}
			const show = `echo "$FROM $HOME $OWN $POSIXLY_CORRECT"; env | grep -c not-a-name=odd`
			r := exec(t, e, Command{Script: show, Env: own}, 30_000)
			// Some shells drop what they cannot name.
			if got, _, _ := strings.Cut(r.Output, "\n"); got != "session<> "+other+" own 1" {
				t.Errorf("%q", r.Output)
			}
			if r = exec(t, e, Command{Script: `echo "<${FROM-}> $HOME"`, Env: own, Login: &no}, 30_000); r.Output != "<> "+other+"\n" {
				t.Errorf("without a login: %q", r.Output)
			}
		})
	}
}

// The first call and later ones, which have a snapshot, are alike.
func TestIdenticalCallsAreAlike(t *testing.T) {
	home := t.TempDir()
	writeStartup(t, home, "export PATH=/profile:$PATH\n")
	e := newEngine(t, Config{Settings: Settings{Home: home, Shell: ShellSettings{Path: "/bin/bash", Snapshot: true}}})
	c := Command{Script: "echo $PATH $HOME", Env: map[string]string{"PATH": "/own:/usr/bin:/bin", "HOME": "/elsewhere"}}
	first := exec(t, e, c, 30_000)
	awaitSnapshot(t, e)
	if later := exec(t, e, c, 30_000); first.Output != later.Output || later.Output != "/own:/usr/bin:/bin /elsewhere\n" {
		t.Errorf("first %q, later %q", first.Output, later.Output)
	}
}

// A script that is too large for an argument is read without any program, and means what it does as an argument.
func TestLargeScript(t *testing.T) {
	const begin = "line=1\nx='"
	large := strings.Repeat("a", 200<<10)
	cases := map[string]struct {
		reason, script, want string
		code                 int
	}{
		"Whole":       {"nothing is lost, nor is the input", "'\necho ${#x} ${0##*/} $#; read line && echo $line", "204800 SHELL 0\nfed\n", 0},
		"Hidden":      {"where it came from is closed", "'\ntest -e /proc/self/fd/7 && echo leaked; test -e /proc/self/fd/8 && echo leaked; echo end", "end\n", 0},
		"Descriptors": {"it may use all low descriptors", "'\nexec 3>three 4>&1 5>&1 6>&1 7>&1 8>eight 9>&1\necho a >&4; echo b >&9; echo c >&8; while read l; do echo $l; done <eight; echo ${#x}", "a\nb\nc\n204800\n", 0},
		"Exit":        {"its code is the script's", "'\nexit 7", "", 7},
		"NoNewline":   {"a comment at the end", "'\necho end # comment", "end\n", 0},
	}
	for name, sh := range shellsHere() {
		for _, login := range []bool{false, true} {
			sh.Login = LoginAllowed
			e := startedUp(t, Settings{Shell: sh}, "")
			for caseName, tc := range cases {
				c := Command{
					Script: begin + large + tc.script, Login: &login, Stdin: StdinData, StdinData: []byte("fed\n"),
					Env: map[string]string{"PATH": "/nowhere"},
				}
				r := exec(t, e, c, 30_000)
				if want := strings.ReplaceAll(tc.want, "SHELL", filepath.Base(sh.Path)); r.Output != want || r.Exit == nil || r.Exit.Code != tc.code {
					t.Errorf("%s login=%v %s: %s: %q %+v, want %q", name, login, caseName, tc.reason, r.Output, r.Exit, want)
				}
			}
		}
	}
}

// What a bash says about a script, it says as if the script was all of its argument: from a snapshot, with a state, and of a large one.
func TestScriptIsAllOfTheArgument(t *testing.T) {
	settings := map[string]ShellSettings{
		"Plain": {Login: LoginForbidden}, "Snapshot": {Snapshot: true}, "State": {Login: LoginForbidden, Persistence: PersistEnvironment},
	}
	for name, sh := range settings {
		sh.Path = "/bin/bash"
		e := startedUp(t, Settings{Shell: sh}, "shopt -s expand_aliases extglob; alias ll='echo alias'\n")
		exec(t, e, Command{Script: "shopt -s expand_aliases extglob; alias ll='echo alias'"}, 30_000)
		padding := "\nx='" + strings.Repeat("a", 200<<10) + "'\n"
		for _, tc := range []struct{ reason, script, want string }{
			{"the first line", "nosuch", "/bin/bash: line 1: nosuch: command not found\n"},
			{"the second line", "\necho $LINENO; nosuch 2>&1", "2\n/bin/bash: line 2: nosuch: command not found\n"},
			{"a return outside of a function", "return 3 2>&1; echo $?", "/bin/bash: line 1: return: can only `return' from a function or sourced script\n2\n"},
			{"a large one", padding + "echo $LINENO; nosuch 2>&1", "3\n/bin/bash: line 3: nosuch: command not found\n"},
			{"a return of a large one", padding + "return 3 2>/dev/null; echo $?", "2\n"},
			{"the code before the first command", "echo $? $# ${0##*/} $-", "0 0 bash hBc\n"},
		} {
			if r := exec(t, e, Command{Script: tc.script}, 30_000); r.Output != tc.want {
				t.Errorf("%s: %s: %q, want %q", name, tc.reason, r.Output, tc.want)
			}
		}
		if name == "Plain" {
			continue
		}
		// What was there before the script holds from its first word on.
		if r := exec(t, e, Command{Script: "ll; case a in @(a|b)) echo glob;; esac"}, 30_000); r.Output != "alias\nglob\n" {
			t.Errorf("%s: %q", name, r.Output)
		}
	}
}
