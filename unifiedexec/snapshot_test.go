package unifiedexec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A login from a snapshot is what the login was that read the files.
func TestSnapshotIsWhatTheLoginWas(t *testing.T) {
	home := t.TempDir()
	writeStartup(t, home, `
umask 027; cd /; V=x MULTI='a
b'; ARRAY=(one 'two three'); declare -i NUMBER=3; declare -A MAP=([k]=v); readonly FIXED=f; IFS=:; PS4='> '
set -o pipefail; shopt -s nullglob; export E=e; alias ll='echo alias'; shopt -s expand_aliases
f() { echo function; }
`)
	e := newEngine(t, Config{Settings: Settings{Home: home, Shell: ShellSettings{Path: "/bin/bash", Snapshot: true}}})
	c := Command{Script: `umask; pwd; echo "$V|$MULTI|${ARRAY[1]}|$NUMBER|${MAP[k]}|$E|$IFS|$PS4|${OLDPWD-none}"; NUMBER+=2; echo $NUMBER
(FIXED=x) 2>/dev/null || echo fixed
env | grep -c -e ^V= -e ^NUMBER=; set -o | grep pipefail | tr -s '\t ' ' '; echo /nothing*; ll; f
set -- a:b; echo $1 $#; trap`}
	want := "0027\n" + e.settings.Load().Workdir + "\nx|a\nb|two three|3|v|e|:|> |none\n5\nfixed\n0\npipefail on\n\nalias\nfunction\na b 1\n"
	first := exec(t, e, c, 30_000)
	awaitSnapshot(t, e)
	later := exec(t, e, c, 30_000)
	if first.Output != want || later.Output != want {
		t.Errorf("first %q, later %q, want %q", first.Output, later.Output, want)
	}
}

// What no snapshot can hold makes every login a true one.
func TestSnapshotIsNotTakenOfLimitsAndTraps(t *testing.T) {
	cases := map[string]struct{ startup, script, want string }{
		"Limit": {"ulimit -S -n 512", "ulimit -n", "512\n"},
		"Trap":  {"trap 'echo bye' EXIT", "true", "bye\n"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			writeStartup(t, home, tc.startup+"\n")
			e := newEngine(t, Config{Settings: Settings{Home: home, Shell: ShellSettings{Path: "/bin/bash", Snapshot: true}}})
			for range 2 {
				if r := exec(t, e, Command{Script: tc.script}, 30_000); r.Output != tc.want {
					t.Errorf("%q, want %q", r.Output, tc.want)
				}
				awaitCapture(t, e)
			}
			settings := e.settings.Load()
			if state, take := e.snapshots.get(settings, settings.shell); state != nil || take {
				t.Errorf("a snapshot was taken (%v) or will be (%v)", state != nil, take)
			}
		})
	}
}

// awaitCapture waits until no capture is on its way.
func awaitCapture(t *testing.T, e *Engine) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		e.snapshots.mu.Lock()
		taking := e.snapshots.taking
		e.snapshots.mu.Unlock()
		if !taking {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the capture does not end")
		}
	}
}

// Whoever stops everything stops what is in the table, and not what the engine does for itself.
func TestStopAllLeavesTheCapture(t *testing.T) {
	home := t.TempDir()
	writeStartup(t, home, `export FROM=profile
case $BASH_EXECUTION_STRING in *compgen*) : >$HOME/captures; until [ -e $HOME/go ]; do sleep 0.05; done ;; esac
`)
	e := newEngine(t, Config{Settings: Settings{Home: home, Shell: ShellSettings{Path: "/bin/bash", Snapshot: true}}})
	exec(t, e, Command{Script: "true"}, 30_000)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(home, "captures")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is captured")
		}
	}
	p := start(t, e, Command{Argv: []string{"/bin/sleep", nap}})
	if stopped, err := e.StopAll(testContext(t), 0); err != nil || len(stopped) != 1 || stopped[0].ID != p.ID() {
		t.Errorf("%+v %v", stopped, err)
	}
	if err := os.WriteFile(filepath.Join(home, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	awaitCapture(t, e)
	awaitSnapshot(t, e)
}

// A capture that was killed is tried again, but not at once, and not for ever.
func TestCaptureIsTriedAgain(t *testing.T) {
	home := t.TempDir()
	writeStartup(t, home, `echo x >>$HOME/logins
case $BASH_EXECUTION_STRING in *compgen*) [ -e $HOME/well ] || kill -KILL $$ ;; esac
`)
	e := newEngine(t, Config{Settings: Settings{Home: home, Shell: ShellSettings{Path: "/bin/bash", Snapshot: true}}})
	logins := func() int {
		data, err := os.ReadFile(filepath.Join(home, "logins"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(data), "x")
	}
	exec(t, e, Command{Script: "true"}, 30_000)
	awaitCapture(t, e)
	exec(t, e, Command{Script: "true"}, 30_000)
	awaitCapture(t, e)
	if n := logins(); n > 3 {
		t.Errorf("%d logins, where two were asked for and one was captured", n)
	}
	due := func() bool {
		e.snapshots.mu.Lock()
		defer e.snapshots.mu.Unlock()
		if e.snapshots.again.IsZero() {
			return false
		}
		e.snapshots.again = time.Now().Add(-time.Second)
		return true
	}
	tries := 1
	for ; due(); tries++ {
		exec(t, e, Command{Script: "true"}, 30_000)
		awaitCapture(t, e)
		if tries > maxFailures {
			t.Fatal("it is tried for ever")
		}
	}
	if tries != maxFailures+1 {
		t.Errorf("%d tries", tries)
	}
	// Files that change are new files.
	if err := os.WriteFile(filepath.Join(home, "well"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	writeStartup(t, home, "export FROM=changed\n")
	awaitSnapshot(t, e)
}
