package unifiedexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// captureTimeout bounds how long a login shell may take for its start-up files.
const captureTimeout = 10 * time.Second

// snapshots holds, in memory only, what a login shell's start-up files make of a shell, so that a login
// costs what a plain shell costs. It is taken in the background when a login shell is first wanted,
// and again when the settings or a start-up file change.
type snapshots struct {
	mu     sync.Mutex
	of     *settings
	shell  shell
	files  string
	taking bool
	// state is nil when the files could not be captured; then login shells read them each time.
	state *shellState
}

// get returns the snapshot if there is a fresh one. Else take says whether the caller has to take it.
func (s *snapshots) get(of *settings, sh shell) (state *shellState, take bool) {
	files := startupFiles(lookup(of.base, "HOME"))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == of && s.shell == sh && s.files == files {
		return s.state, false
	}
	if s.taking {
		return nil, false
	}
	s.of, s.shell, s.files, s.state, s.taking = of, sh, files, nil, true
	return nil, true
}

// snapshot returns what a login shell's start-up files left, or nil; then it may be taken in the background.
func (e *Engine) snapshot(s *settings, sh shell) *shellState {
	state, take := e.snapshots.get(s, sh)
	if take {
		e.running.Go(func() { e.snapshots.set(e.takeSnapshot(s, sh)) })
	}
	return state
}

func (s *snapshots) set(state *shellState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.taking = state, false
}

// startupFiles tells the files that a login bash reads apart by what changes when they are written.
func startupFiles(home string) string {
	names := []string{"/etc/profile", "/etc/profile.d", "/etc/bash.bashrc", "/etc/bashrc", "/etc/environment"}
	for _, name := range []string{".bash_profile", ".bash_login", ".profile", ".bashrc", ".bash_aliases"} {
		names = append(names, filepath.Join(home, name))
	}
	dropIns, _ := filepath.Glob("/etc/profile.d/*")
	var b strings.Builder
	for _, name := range append(names, dropIns...) {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err == nil {
			fmt.Fprintf(&b, "%s %d %d %d %d.%d\n", name, st.Dev, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec)
		}
	}
	return b.String()
}

// takeSnapshot runs a login shell of its own, which is no process of the table's, and reads its report.
func (e *Engine) takeSnapshot(s *settings, sh shell) *shellState {
	login := true
	separator := newSeparator()
	plan, err := s.plan(Command{Script: reportScript(separator), Shell: sh.path, Login: &login, Timeout: captureTimeout})
	if err != nil {
		return nil
	}
	plan.finish()
	plan.retain = 4 * maxShellState
	id, _, err := e.table.reserve(Limits{MaxProcesses: 1 << 30})
	if err != nil {
		return nil
	}
	defer e.running.Done()
	p, err := e.launchAs(id, plan, entry{hidden: true}, nil)
	if err != nil {
		return nil
	}
	reader := p.NewReader(ReaderOptions{})
	defer reader.Close()
	var report strings.Builder
	for {
		// The shell's timeout bounds the wait.
		c, err := reader.Next(context.Background())
		if errors.Is(err, io.EOF) {
			break
		}
		if c.Stream == StreamStdout {
			report.Write(c.Data)
		}
	}
	if rec, _ := p.Exit(); rec.Reason != ReasonExited || rec.Code != 0 {
		return nil
	}
	state, _ := parseShellState(report.String(), separator)
	return state
}
