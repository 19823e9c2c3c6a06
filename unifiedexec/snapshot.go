package unifiedexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
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
	// failures counts the captures that failed by nothing that the files did; again is when the next may be tried.
	failures int
	again    time.Time
}

// The times between captures that fail, and how many may.
const (
	recaptureAfter = 10 * time.Second
	maxFailures    = 6
)

// get returns the snapshot if there is a fresh one. Else take says whether the caller has to take it.
func (s *snapshots) get(of *settings, sh shell) (state *shellState, take bool) {
	files := startupFiles(lookup(of.base, "HOME"))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == of && s.shell == sh && s.files == files {
		take = s.state == nil && !s.taking && !s.again.IsZero() && time.Now().After(s.again)
		s.taking = s.taking || take
		return s.state, take
	}
	if s.taking {
		return nil, false
	}
	s.of, s.shell, s.files, s.state, s.taking = of, sh, files, nil, true
	s.failures, s.again = 0, time.Time{}
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

// set notes the end of a capture. One that failed by nothing that the files did is tried again, later each time.
func (s *snapshots) set(state *shellState, fault captureFault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.taking, s.again = state, false, time.Time{}
	if state == nil && fault == faultOfOthers && s.failures < maxFailures {
		s.again = time.Now().Add(recaptureAfter << s.failures)
		s.failures++
	}
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

// captureFault says why there is no snapshot.
type captureFault int

const (
	// faultOfFiles: what the files do cannot be captured. It is not tried again until they change.
	faultOfFiles captureFault = iota
	// faultOfOthers: the shell could not start, took too long, or was killed.
	faultOfOthers
)

// takeSnapshot runs a login shell and a plain one of its own, which are no processes of the table's, and reads their reports.
func (e *Engine) takeSnapshot(s *settings, sh shell) (*shellState, captureFault) {
	plain, fault := e.capture(s, sh, false)
	if plain == nil {
		return nil, fault
	}
	login, fault := e.capture(s, sh, true)
	if login == nil || login.around != plain.around {
		// Limits and traps cannot be given to another shell, so that every login has to set its own.
		return nil, fault
	}
	return login.since(plain), faultOfFiles
}

// capture runs one shell and reads its report.
func (e *Engine) capture(s *settings, sh shell, login bool) (*captured, captureFault) {
	separator := newSeparator()
	plan, err := s.plan(Command{Script: captureScript(separator), Shell: sh.path, Login: &login, Timeout: captureTimeout})
	if err != nil {
		return nil, faultOfOthers
	}
	plan.finish()
	plan.retain = 4 * maxShellState
	id, _, err := e.table.reserve(Limits{MaxProcesses: 1 << 30})
	if err != nil {
		return nil, faultOfOthers
	}
	defer e.running.Done()
	p, err := e.launchAs(id, plan, entry{hidden: true}, nil)
	if err != nil {
		return nil, faultOfOthers
	}
	report := readStdout(p)
	if rec, _ := p.Exit(); rec.Reason != ReasonExited {
		return nil, faultOfOthers
	} else if rec.Code != 0 {
		return nil, faultOfFiles
	}
	return parseCapture(report, separator), faultOfFiles
}

// captured is what one of the shells told.
type captured struct {
	state *shellState
	// around are its limits and traps.
	around string
	// unexported are the declarations of the variables that are the shell's alone.
	unexported map[string]string
}

func captureScript(separator string) string {
	return reportScript(separator,
		`\builtin printf '%s\n' "$(</proc/self/limits)"; \builtin trap -p; `,
		`\builtin compgen -v | while IFS= \builtin read -r _execsession_name; do `+
			fmt.Sprintf(`\builtin printf '\n%%s\n' '%s'; `, separator+"=")+
			`\builtin declare -p "$_execsession_name" || :; done; `,
	)
}

// declaration is a variable as a bash tells it.
var declaration = regexp.MustCompile(`^declare -(\S+) (\w+)`)

// markLimit is the limit that is every process's mark.
var markLimit = regexp.MustCompile(`(?m)^Max file locks.*\n`)

// parseCapture is nil when the report is not whole.
func parseCapture(report, separator string) *captured {
	parts := splitReport(report, separator, stateSections+2)
	if parts == nil {
		return nil
	}
	c := &captured{state: newShellState(parts), around: markLimit.ReplaceAllString(parts[stateSections], ""), unexported: map[string]string{}}
	for text := range strings.SplitSeq("\n"+parts[stateSections+1], "\n"+separator+"=\n") {
		if found := declaration.FindStringSubmatch(text); len(found) == 3 && !strings.Contains(found[1], "x") {
			c.unexported[found[2]] = strings.TrimSuffix(text, "\n") + "\n"
		}
	}
	return c
}

// since is the state of a login shell with the unexported variables that its start-up files made. Those that a plain shell has, too, are the
// shell's own, but for the few that change how scripts are read.
func (c *captured) since(plain *captured) *shellState {
	state := *c.state
	for _, name := range slices.Sorted(maps.Keys(c.unexported)) {
		had, has := plain.unexported[name]
		if !has || (name == "IFS" || name == "PS4") && had != c.unexported[name] {
			state.variables += "\n" + c.unexported[name]
		}
	}
	return &state
}

// readStdout reads what a process writes until it ended. The process's timeout bounds that.
func readStdout(p *Process) string {
	reader := p.NewReader(ReaderOptions{})
	defer reader.Close()
	var out strings.Builder
	for {
		c, err := reader.Next(context.Background())
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		if c.Stream == StreamStdout {
			out.Write(c.Data)
		}
	}
}
