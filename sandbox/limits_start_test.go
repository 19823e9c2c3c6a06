package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestLimitedStartIsAStart: but for its limits, a process cannot tell how it was started.
func TestLimitedStartIsAStart(t *testing.T) {
	s := newStage(t, true)
	launchers := map[string]*Launcher{"direct": newTestLauncher(t, s), "limited": newLimitedLauncher(t, s, map[string]uint64{"fsize": 1 << 30})}
	described := make(map[string]map[string]any)
	for name, launcher := range launchers {
		argv, environment := s.asSelf("describe")
		status, output := runOutput(t, launcher.Start, s.base+"/workspace/a", argv, environment)
		var said map[string]any
		if err := json.Unmarshal([]byte(output), &said); err != nil {
			t.Fatalf("%s: status %#x, %v: %s", name, status, err, output)
		}
		described[name] = said
	}
	if diff := cmp.Diff(described["direct"], described["limited"]); diff != "" {
		t.Errorf("direct (-) and limited (+) differ:\n%s", diff)
	}
	if described["limited"]["program"] != s.binary || described["limited"]["descriptor 2"] == nil {
		t.Errorf("got %v", described["limited"])
	}
}

// TestLimitedStartShowsTheProgram: once a start is answered, the process is the wanted program.
func TestLimitedStartShowsTheProgram(t *testing.T) {
	launcher := newLimitedLauncher(t, newStage(t, true), map[string]uint64{"nofile": 64})
	want, err := filepath.EvalSymlinks("/bin/sleep")
	check(t, err)
	for range 50 {
		pidfd := -1
		pid, err := launcher.Start("/bin/sleep", []string{"sleep", "600"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{PidFD: &pidfd}})
		check(t, err)
		program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || program != want {
			t.Errorf("got %q %v, want %q", program, err, want)
		}
		check(t, unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0))
		check(t, unix.Close(pidfd))
		if status := wait(t, pid); status.Signal() != unix.SIGKILL {
			t.Fatalf("got %#x", status)
		}
	}
}

// startErrors are the ways in which a start fails that is not the sandbox's fault.
func startErrors(t *testing.T, s stage) map[string]func() (argv0 string, argv []string, attr *syscall.ProcAttr) {
	t.Helper()
	at := func(rel string) string { return filepath.Join(s.base, rel) }
	write := func(rel, text string) string {
		check(t, os.WriteFile(at(rel), []byte(text), 0o755))
		return at(rel)
	}
	check(t, os.Symlink("loop", at("workspace/loop")))
	closed, err := os.Open(os.DevNull)
	check(t, err)
	number := closed.Fd() + 500
	closed.Close()
	program := func(argv0 string, arguments ...string) func() (string, []string, *syscall.ProcAttr) {
		return func() (string, []string, *syscall.ProcAttr) {
			return argv0, append([]string{argv0}, arguments...), &syscall.ProcAttr{Dir: at("workspace"), Sys: &syscall.SysProcAttr{}}
		}
	}
	with := func(change func(*syscall.ProcAttr)) func() (string, []string, *syscall.ProcAttr) {
		return func() (string, []string, *syscall.ProcAttr) {
			attr := &syscall.ProcAttr{Sys: &syscall.SysProcAttr{}}
			change(attr)
			return "/bin/true", []string{"true"}, attr
		}
	}
	return map[string]func() (string, []string, *syscall.ProcAttr){
		"nothing wrong":                program("/bin/true"),
		"relative":                     program("a/../script", "x"),
		"missing":                      program(at("nothing")),
		"empty name":                   program(""),
		"NUL in the name":              program("/bin/true\x00"),
		"NUL in an argument":           program("/bin/true", "a\x00b"),
		"not executable":               program(at("outside/file")),
		"folder":                       program(s.base),
		"through a file":               program(at("outside/file/x")),
		"loop of links":                program(at("workspace/loop")),
		"long name":                    program("/" + strings.Repeat("x", 300)),
		"long path":                    program(strings.Repeat("/x", 3000)),
		"longer than arguments may be": program(strings.Repeat("/x", 100_000)),
		"no format":                    program(write("workspace/noise", "\x00\x01\x02\x03")),
		"missing interpreter":          program(write("workspace/orphan", "#!/no/such/interpreter\n")),
		"hidden by the policy":         program(write("agent/config/program", "#!/bin/sh\n")),
		"large argument":               program("/bin/true", strings.Repeat("x", 200<<10)),
		"many arguments":               program("/bin/true", slices.Repeat([]string{strings.Repeat("x", 100<<10)}, 100)...),
		"missing folder":               with(func(a *syscall.ProcAttr) { a.Dir = at("nowhere") }),
		"folder is a file":             with(func(a *syscall.ProcAttr) { a.Dir = at("outside/file") }),
		"no such descriptor":           with(func(a *syscall.ProcAttr) { a.Files = []uintptr{number} }),
		"no terminal":                  with(func(a *syscall.ProcAttr) { a.Files = []uintptr{0, 1, 2}; a.Sys.Setsid, a.Sys.Setctty = true, true }),
		"no group":                     with(func(a *syscall.ProcAttr) { a.Sys.Setpgid, a.Sys.Pgid = true, 1<<29 }),
	}
}

// TestLimitedStartErrors: what is wrong with a program is told as a direct start tells it.
func TestLimitedStartErrors(t *testing.T) {
	s := newStage(t, true)
	check(t, os.WriteFile(filepath.Join(s.base, "workspace/script"), []byte("#!/bin/sh\nexit 0\n"), 0o755))
	direct, limited := newTestLauncher(t, s), newLimitedLauncher(t, s, map[string]uint64{"fsize": 1 << 30})
	for name, prepare := range startErrors(t, s) {
		t.Run(name, func(t *testing.T) {
			var got []error
			for _, launcher := range []*Launcher{direct, limited} {
				argv0, argv, attr := prepare()
				pidfd := -1
				attr.Sys.PidFD = &pidfd
				pid, err := launcher.Start(argv0, argv, attr)
				got = append(got, err)
				if err == nil {
					check(t, unix.Close(pidfd))
					wait(t, pid)
					continue
				}
				if pid != 0 || pidfd != -1 {
					t.Errorf("with the error come process %d and descriptor %d", pid, pidfd)
				}
				if _, bare := err.(syscall.Errno); !bare { //nolint:errorlint // the contract is a bare errno
					t.Errorf("got %T %v, want a bare errno", err, err)
				}
			}
			if got[0] != got[1] { //nolint:errorlint // bare errnos
				t.Errorf("direct: %v, limited: %v", got[0], got[1])
			}
			if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
				t.Errorf("a child was left: %v", err)
			}
		})
	}
}

// TestLimitedStartLeavesNothing starts many, good and bad, at the same time.
func TestLimitedStartLeavesNothing(t *testing.T) {
	s := newStage(t, true)
	descriptors := func() []os.DirEntry {
		entries, err := os.ReadDir("/proc/self/fd")
		check(t, err)
		return entries
	}
	before := len(descriptors())
	launcher := newLimitedLauncher(t, s, map[string]uint64{"nofile": 64, "fsize": 1 << 30})
	var group sync.WaitGroup
	failures := make(chan error, 1000)
	for range 10 {
		group.Go(func() {
			for i := range 20 {
				ended := make(chan struct{})
				argv0 := []string{"/bin/true", "/no/such"}[i%2]
				pid, err := launcher.StartWatched(argv0, []string{"x"}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}}, Watch{OnEnd: func() { close(ended) }})
				if i%2 == 1 && err == unix.ENOENT { //nolint:errorlint // the contract is a bare errno
					err = nil
				} else if err == nil {
					_, err = syscall.Wait4(pid, nil, 0, nil)
				}
				if err != nil {
					failures <- err
				}
				<-ended // a second end would close it again, and panic
			}
		})
	}
	group.Wait()
	close(failures)
	for err := range failures {
		t.Error(err)
	}
	check(t, launcher.Close())
	if left := awaitUnfiltered(); left > 0 {
		t.Errorf("%d threads stayed confined", left)
	}
	if after := descriptors(); len(after) > before {
		t.Errorf("%d descriptors became %d: %v", before, len(after), after)
	}
}

// TestLimitedDenials: what a limited command is refused is told like that of any other.
func TestLimitedDenials(t *testing.T) {
	requireDenials(t)
	s := newStage(t, true)
	launcher := newLimitedLauncher(t, s, map[string]uint64{"nofile": 64})
	_, denials := watchOne(t, launcher, []string{s.binary}, roleVariable+"="+roleFlood, "CALLS=3", raceOptions)
	counted := make(map[string]uint64)
	for _, d := range denials {
		counted[d.Rule+" "+d.Program] += d.Count
	}
	if diff := cmp.Diff(map[string]uint64{"socket " + s.binary: 3, "mounts " + s.binary: 1}, counted); diff != "" {
		t.Error(diff)
	}
}
