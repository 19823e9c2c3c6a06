package unifiedexec

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

func TestStartErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := write("plain", "text", 0o644)
	orphan := write("orphan", "#!/no/such/interpreter\n", 0o755)
	noise := write("noise", "\x00\x01\x02\x03", 0o755)
	e := newEngine(t, Config{Settings: Settings{Workdir: dir}})
	cases := map[string]struct {
		reason  string
		command Command
		want    StartError
	}{
		"MissingFolder":      {"a missing cwd is an error, not an exit code", Command{Script: "true", Workdir: "gone"}, StartError{Op: "chdir", Path: filepath.Join(dir, "gone"), Errno: syscall.ENOENT}},
		"FolderIsFile":       {"so is one that is no folder", Command{Argv: []string{"true"}, Workdir: plain}, StartError{Op: "chdir", Path: plain, Errno: syscall.ENOTDIR}},
		"MissingProgram":     {"looked up in PATH", Command{Argv: []string{"no-such-program"}}, StartError{Op: "exec", Path: "no-such-program", Errno: syscall.ENOENT}},
		"MissingPath":        {"by path", Command{Argv: []string{"/no/such/program"}}, StartError{Op: "exec", Path: "/no/such/program", Errno: syscall.ENOENT}},
		"NotExecutable":      {"no execute bit", Command{Argv: []string{"./plain"}}, StartError{Op: "exec", Path: plain, Errno: syscall.EACCES}},
		"Folder":             {"a folder is no program", Command{Argv: []string{dir}}, StartError{Op: "exec", Path: dir, Errno: syscall.EISDIR}},
		"MissingInterpreter": {"the kernel says ENOENT about the interpreter", Command{Argv: []string{orphan}}, StartError{Op: "exec", Path: orphan, Errno: syscall.ENOENT}},
		"NoFormat":           {"the kernel does not know the format", Command{Argv: []string{noise}}, StartError{Op: "exec", Path: noise, Errno: syscall.ENOEXEC}},
		"LargeArgument":      {"one string may hold 128 KiB", Command{Argv: []string{"/bin/echo", strings.Repeat("x", 200<<10)}}, StartError{Op: "exec", Path: "/bin/echo", Errno: syscall.E2BIG}},
		"ManyArguments":      {"and all together 2 MiB here", Command{Argv: append([]string{"/bin/echo"}, slicesRepeat(strings.Repeat("x", 100<<10), 100)...)}, StartError{Op: "exec", Path: "/bin/echo", Errno: syscall.E2BIG}},
		"MissingShell":       {"a kind of shell that is not installed", Command{Script: "true", Shell: "mksh"}, StartError{Op: "exec", Path: "mksh", Errno: syscall.ENOENT}},
	}
	for name, tc := range cases {
		for _, tty := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				c := tc.command
				c.TTY = tty
				_, err := e.Start(testContext(t), c)
				var got *StartError
				if !errors.As(err, &got) {
					t.Fatalf("%s: error %v", tc.reason, err)
				}
				if diff := cmp.Diff(tc.want, *got, cmpopts.IgnoreFields(StartError{}, "Detail")); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
				}
				if !errors.Is(err, tc.want.Errno) {
					t.Errorf("%v does not match %v", err, tc.want.Errno)
				}
			})
		}
	}
	if list := e.List(); len(list) != 0 {
		t.Errorf("List = %+v", list)
	}
}

// The kernel says only that a start is too large; the error says what of it, and how much may be.
func TestStartErrorOfALargeStart(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Environment: EnvironmentPolicy{Inherit: InheritNone}}})
	argv := []string{"/bin/true"}
	many := map[string]string{}
	for i := range 100 {
		many["V"+itoa(i)] = strings.Repeat("x", 100<<10)
	}
	for name, tc := range map[string]struct {
		command Command
		detail  string
	}{
		"Argument":  {Command{Argv: []string{"/bin/true", "a", strings.Repeat("x", 1<<17)}}, `^argument 2 has 131072 bytes, and one may have 131071; a script may be larger$`},
		"Variable":  {Command{Argv: argv, Env: map[string]string{"AB": strings.Repeat("x", 131_069)}}, `^the variable AB has 131069 bytes, and with its name and = one may have 131071$`},
		"Variables": {Command{Argv: argv, Env: many}, `^the variables take 10[0-9]{6} bytes and the arguments 18; together they may take [0-9]+$`},
	} {
		_, err := e.Start(testContext(t), tc.command)
		var got *StartError
		if !errors.As(err, &got) || got.Errno != syscall.E2BIG || !regexp.MustCompile(tc.detail).MatchString(got.Detail) {
			t.Errorf("%s: %v, want %s", name, err, tc.detail)
		}
	}
	if p := start(t, e, Command{Argv: argv, Env: map[string]string{"AB": strings.Repeat("x", 131_068)}}); waitExit(t, p).Code != 0 {
		t.Error("the largest variable is too large")
	}
}

func slicesRepeat(s string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

func TestFieldErrors(t *testing.T) {
	yes := true
	e := newEngine(t, Config{})
	cases := map[string]struct {
		reason  string
		command Command
		field   string
	}{
		"Nothing":       {"something must be run", Command{}, "script"},
		"Both":          {"only one thing can be run", Command{Script: "x", Argv: []string{"x"}}, "script"},
		"NULScript":     {"the kernel ends strings there", Command{Script: "a\x00b"}, "script"},
		"NULArgument":   {"the kernel ends strings there", Command{Argv: []string{"a", "b\x00"}}, "argv"},
		"EmptyProgram":  {"nothing has an empty name", Command{Argv: []string{""}}, "argv"},
		"NULWorkdir":    {"the kernel ends strings there", Command{Script: "x", Workdir: "\x00"}, "workdir"},
		"ShellOfArgv":   {"there is no shell", Command{Argv: []string{"x"}, Shell: "bash"}, "shell"},
		"LoginOfArgv":   {"there is no shell", Command{Argv: []string{"x"}, Login: &yes}, "login"},
		"Login":         {"forbidden by the settings", Command{Script: "x", Login: &yes}, "login"},
		"UnknownShell":  {"only known kinds", Command{Script: "x", Shell: "/usr/bin/fish"}, "shell"},
		"Timeout":       {"time does not run backwards", Command{Script: "x", Timeout: -time.Second}, "timeout"},
		"SizeOfPipe":    {"pipes have no size", Command{Script: "x", Size: Size{1, 1}}, "size"},
		"HalfASize":     {"a terminal has two sides", Command{Script: "x", TTY: true, Size: Size{Rows: 1}}, "size"},
		"DataUnused":    {"nobody would read it", Command{Script: "x", StdinData: []byte("x")}, "stdin_data"},
		"DataOnTTY":     {"a terminal has no end", Command{Script: "x", TTY: true, Stdin: StdinData}, "stdin_data"},
		"StdinMode":     {"unknown", Command{Script: "x", Stdin: 9}, "stdin"},
		"Loader":        {"steers the loader", Command{Script: "x", Env: map[string]string{"LD_PRELOAD": "/x.so"}}, "env.LD_PRELOAD"},
		"LoaderAudit":   {"steers the loader", Command{Script: "x", Env: map[string]string{"LD_AUDIT": ""}}, "env.LD_AUDIT"},
		"BashEnv":       {"runs before the script", Command{Script: "x", Env: map[string]string{"BASH_ENV": "/x"}}, "env.BASH_ENV"},
		"Env":           {"runs before the script", Command{Script: "x", Env: map[string]string{"ENV": "/x"}}, "env.ENV"},
		"ShellOpts":     {"changes what a script means", Command{Script: "x", Env: map[string]string{"SHELLOPTS": "xtrace"}}, "env.SHELLOPTS"},
		"BashOpts":      {"changes what a script means", Command{Script: "x", Env: map[string]string{"BASHOPTS": "extglob"}}, "env.BASHOPTS"},
		"PS4":           {"runs with xtrace", Command{Script: "x", Env: map[string]string{"PS4": "$(id)"}}, "env.PS4"},
		"PromptCommand": {"runs at each prompt", Command{Script: "x", Env: map[string]string{"PROMPT_COMMAND": "id"}}, "env.PROMPT_COMMAND"},
		"IFS":           {"changes what a script means", Command{Script: "x", Env: map[string]string{"IFS": "/"}}, "env.IFS"},
		"Function":      {"replaces commands", Command{Script: "x", Env: map[string]string{"BASH_FUNC_ls%%": "() { id; }"}}, "env.BASH_FUNC_ls%%"},
		"Marker":        {"says where the command runs", Command{Script: "x", Env: map[string]string{"EXECSESSION": "0"}}, "env.EXECSESSION"},
		"BadName":       {"no name", Command{Script: "x", Env: map[string]string{"A=B": "c"}}, "env"},
		"BadValue":      {"the kernel ends strings there", Command{Script: "x", Env: map[string]string{"A": "\x00"}}, "env.A"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := e.Start(testContext(t), tc.command)
			var got *FieldError
			if !errors.As(err, &got) || got.Field != tc.field {
				t.Errorf("%s: error %v, want one about %s", tc.reason, err, tc.field)
			}
		})
	}
}

func TestStarterErrorsPassThrough(t *testing.T) {
	boxed := errors.New("the box could not be built")
	e := newEngine(t, Config{Settings: Settings{Start: func(string, []string, *syscall.ProcAttr) (int, error) { return 0, boxed }}})
	_, err := e.Start(testContext(t), Command{Script: "true"})
	var startErr *StartError
	if !errors.Is(err, boxed) || errors.As(err, &startErr) {
		t.Errorf("error %v", err)
	}
	if err := e.Configure(Settings{}); err != nil {
		t.Fatal(err)
	}
	waitExit(t, start(t, e, Command{Script: "true"}))
}

// A command may bring its own starter, which starts it and nothing else: not the shells that take a login's snapshot.
func TestStarterOfOneCommand(t *testing.T) {
	var own, others atomic.Int32
	counting := func(count *atomic.Int32) StartFunc {
		return func(argv0 string, argv []string, attr *syscall.ProcAttr) (int, error) {
			count.Add(1)
			return syscall.ForkExec(argv0, argv, attr)
		}
	}
	e := newEngine(t, Config{Settings: Settings{Start: counting(&others), Shell: ShellSettings{Path: "/bin/bash", Snapshot: true}}})
	waitExit(t, start(t, e, Command{Script: "true", Login: new(true), Start: counting(&own)}))
	eventually(t, "the snapshot's two shells start", func() bool { return others.Load() == 2 })
	if own.Load() != 1 {
		t.Errorf("the command's starter started %d, want one", own.Load())
	}
}

// A number that would make a signal reach everybody is refused.
func TestStarterReturnsNonsense(t *testing.T) {
	for _, pid := range []int{-1, 0, 1} {
		e := newEngine(t, Config{Settings: Settings{Start: func(string, []string, *syscall.ProcAttr) (int, error) { return pid, nil }}})
		if p, err := e.Start(testContext(t), Command{Script: "true"}); err == nil {
			t.Errorf("process %+v", p.Info())
		}
		if list := e.List(); len(list) != 0 {
			t.Errorf("List = %+v", list)
		}
	}
}

// A starter that does not know pidfds is served too.
func TestStarterWithoutPidfd(t *testing.T) {
	e := newEngine(t, Config{Settings: Settings{Start: func(argv0 string, argv []string, attr *syscall.ProcAttr) (int, error) {
		plain := *attr.Sys
		plain.PidFD = nil
		return syscall.ForkExec(argv0, argv, &syscall.ProcAttr{Dir: attr.Dir, Env: attr.Env, Files: attr.Files, Sys: &plain})
	}}})
	if rec := waitExit(t, start(t, e, Command{Script: "exit 6"})); rec.Code != 6 {
		t.Errorf("record %+v", rec)
	}
}

// Nor what whoever started this process ignores: nohup ignores SIGHUP, a shell in the background SIGINT, and make,
// by glibc's posix_spawn, signal 32.
func TestChildInheritsNothing(t *testing.T) {
	signal.Ignore(unix.SIGHUP, unix.SIGINT)
	t.Cleanup(func() { signal.Reset(unix.SIGHUP, unix.SIGINT) })
	for _, number := range untouchedSignals {
		if err := rtSigaction(number, &sigaction{handler: sigIgnore}, nil); err != nil {
			t.Fatal(err)
		}
	}
	e := newEngine(t, Config{})
	for _, tty := range []bool{false, true} {
		r := exec(t, e, Command{Argv: []string{"/bin/sh", "-c", "ls -1 /proc/$$/fd; ps -o sid= -p $$ | tr -d ' ' >sid; test $(cat sid) = $$ && echo leader; grep -E '^Sig(Blk|Ign)' /proc/self/status"}, TTY: tty}, 30_000)
		got := strings.ReplaceAll(r.Output, "\r", "")
		want := "0\n1\n2\nleader\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
		if got != want {
			t.Errorf("tty=%v: %q, want %q", tty, got, want)
		}
	}
}

func TestWorkdir(t *testing.T) {
	base := t.TempDir()
	if err := os.MkdirAll(filepath.Join(base, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, Config{Settings: Settings{Workdir: base}})
	for workdir, want := range map[string]string{"": base, "a": base + "/a", "a/../a/b": base + "/a/b", "/": "/", base + "/a": base + "/a"} {
		if r := exec(t, e, Command{Script: "pwd; echo $PWD", Workdir: workdir}, 30_000); r.Output != want+"\n"+want+"\n" {
			t.Errorf("workdir %q: %q, want %q", workdir, r.Output, want)
		}
	}
}
