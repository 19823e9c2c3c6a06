package unifiedexec

import (
	"crypto/rand"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// shellState is what a bash had at one moment that another can be given: folder, exported variables,
// functions, aliases and options.
type shellState struct {
	dir string
	// exported are the names of the exported variables.
	exported []string
	// before comes ahead of the variables, because options change how what follows is read; after comes last.
	// posix is the option that changes what may be defined, and that a variable switches.
	before, variables, definitions, posix, after string
}

// maxShellState bounds what is kept of a shell.
const maxShellState = 1 << 20

// sections is how many parts the report of a shell has.
const sections = 6

// newSeparator makes a line that stands between the parts. It is new each time, so that nothing a
// profile prints is taken for it.
func newSeparator() string { return "execsession-" + rand.Text() }

// reportScript makes a bash tell its state. It does not stop at errors, whatever the options are.
func reportScript(separator string) string {
	between := fmt.Sprintf(`printf '\n%%s\n' '%s'`, separator)
	return strings.Join([]string{
		between, `printf '%s' "$PWD"`,
		between, `compgen -e || :`,
		between, `shopt -p || :`,
		between, `export -p`,
		between, `declare -f; alias -p`,
		between, `set +o`,
		between,
	}, "; ")
}

// parseShellState reads a report; false when it is not whole.
func parseShellState(report, separator string) (*shellState, bool) {
	parts := strings.Split(report, "\n"+separator+"\n")
	// The first is whatever a profile printed before.
	if len(parts) != sections+2 || parts[sections+1] != "" || len(report) > maxShellState {
		return nil, false
	}
	posix, after := "", withoutLines(parts[6], "noexec", "onecmd", "privileged", "posix")
	if strings.Contains(parts[6], "set -o posix\n") {
		posix = "set -o posix\n"
	}
	return &shellState{
		dir:      parts[1],
		exported: strings.Fields(parts[2]),
		before:   withoutLines(parts[3], "login_shell", "restricted_shell"),
		// Multi-line values and bodies are the shell's own quoting, so these parts are passed on as they are.
		variables: parts[4], definitions: parts[5], posix: posix, after: after,
	}, true
}

// withoutLines drops the options that cannot, or must not, be set again.
func withoutLines(text string, options ...string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) > 0 && !slices.Contains(options, fields[len(fields)-1]) {
			kept.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	return kept.String()
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// restore makes the script that gives a state to a fresh bash. What the state's shell had unset is unset again, and what has
// to hold above the state is settled after it.
func (s *shellState) restore(env []string, settled, dir string) string {
	var b strings.Builder
	b.WriteString(s.before + s.variables + "\n")
	fmt.Fprintf(&b, "export PWD=%s\n", quote(dir))
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if name != "PWD" && identifier.MatchString(name) && !slices.Contains(s.exported, name) {
			fmt.Fprintf(&b, "unset %s\n", name)
		}
	}
	b.WriteString(s.definitions + "\n" + s.posix + settled + s.after)
	return b.String()
}
