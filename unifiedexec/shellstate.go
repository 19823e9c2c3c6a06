package unifiedexec

import (
	"crypto/rand"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// shellState is what a bash had at one moment that another can be given: folder, file mask, exported variables,
// functions, aliases and options.
type shellState struct {
	dir, umask string
	// exported are the names of the exported variables.
	exported []string
	// before comes ahead of the variables, because options change how what follows is read; after comes last.
	// posix is the option that changes what may be defined, and that a variable switches.
	before, variables, definitions, posix, after string
}

// maxShellState bounds what is kept of a shell.
const maxShellState = 1 << 20

// newSeparator makes a line that stands between the parts. It is new each time, so that nothing a
// profile prints is taken for it.
func newSeparator() string { return "execsession-" + rand.Text() }

// reportScript makes a bash tell its state, whatever functions and aliases there are, and more. It does not stop at errors, whatever
// the options are, and traces nothing once it has told them.
func reportScript(separator string, more ...string) string {
	between := fmt.Sprintf(`\builtin printf '\n%%s\n' '%s'; `, separator)
	parts := []string{
		`\builtin set +o; \builtin set +x; `,
		`\builtin printf '%s' "${PWD-}"; `,
		`\builtin umask; `,
		`\builtin compgen -e || :; `,
		`\builtin shopt -p || :; `,
		`\builtin export -p; `,
		`\builtin declare -f; \builtin declare -Fx; \builtin alias -p; `,
	}
	return between + strings.Join(append(parts, more...), between) + between + ":"
}

// splitReport takes a report apart, after whatever a profile printed before; nil when it is not whole.
func splitReport(report, separator string, sections int) []string {
	parts := strings.Split(report, "\n"+separator+"\n")
	if len(parts) != sections+2 || parts[sections+1] != "" || len(report) > maxShellState {
		return nil
	}
	return parts[1 : sections+1]
}

// stateSections is how many parts of a report are a state.
const stateSections = 7

// parseShellState reads a report; false when it is not whole.
func parseShellState(report, separator string) (*shellState, bool) {
	parts := splitReport(report, separator, stateSections)
	if parts == nil {
		return nil, false
	}
	return newShellState(parts), true
}

func newShellState(parts []string) *shellState {
	posix := "set +o posix\n"
	if strings.Contains(parts[0], "set -o posix\n") {
		posix = "set -o posix\n"
	}
	return &shellState{
		dir:      parts[1],
		umask:    onlyOctal.FindString(parts[2]),
		exported: strings.Fields(parts[3]),
		before:   withoutLines(parts[4], "login_shell", "restricted_shell"),
		// Multi-line values and bodies are the shell's own quoting, so these parts are passed on as they are.
		variables: exportsOfShells.ReplaceAllString(parts[5], "export $1"), definitions: parts[6],
		posix: posix, after: withoutLines(parts[0], "noexec", "onecmd", "privileged", "posix"),
	}
}

var onlyOctal = regexp.MustCompile(`^[0-7]+`)

// exportsOfShells are the exports of variables that every bash has for itself and lets nobody set.
var exportsOfShells = regexp.MustCompile(`(?m)^declare -\w*r\w* (SHELLOPTS|BASHOPTS|BASH_VERSINFO|UID|EUID|PPID)=.*$`)

// withoutLines drops the options that cannot, or must not, be set again, and lines that set none: traces of the report itself.
func withoutLines(text string, options ...string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 3 && (fields[0] == "set" || fields[0] == "shopt") && !slices.Contains(options, fields[2]) {
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
	b.WriteString(s.variables + "\n")
	fmt.Fprintf(&b, "export PWD=%s\n", quote(dir))
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if name != "PWD" && identifier.MatchString(name) && !slices.Contains(s.exported, name) {
			fmt.Fprintf(&b, "unset %s\n", name)
		}
	}
	// What is defined is read line by line, because the options before it and aliases change how it is read. The options of the
	// script come last: nothing of the engine's is then traced, and no error ends the shell.
	return s.before + quietly(b.String()) + s.definitions + "\n" + quietly("\\umask "+s.umask+"\n"+s.posix+settled+s.after)
}
