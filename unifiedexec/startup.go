package unifiedexec

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
)

// A start-up file may set what it wants, and still the policy, what is fixed and what the call asks for hold for the command.
// So a shell that reads start-up files starts with the session's variables alone, and what is here runs between them and the
// script. It has to do in every shell, under every option, without a program of its own, and without a file that a shell makes for
// a here-document where it may write nothing.

// readsStartupFiles is whether a shell reads a file of HOME before a script. A zsh always does.
func (sh shell) readsStartupFiles(login bool) bool { return login || sh.kind == kindZsh }

// keptByShells are the variables that shells keep themselves, or that change whom they run as in a zsh.
var keptByShells = []string{"PWD", "OLDPWD", "SHLVL", "_", "UID", "EUID", "GID", "EGID", "USERNAME", "PPID"}

// assignable is whether a script may set a variable. The others can only be given at the start; no start-up depends on them.
func assignable(name string) bool {
	return identifier.MatchString(name) && !slices.Contains(keptByShells, name)
}

// atStart are those of a call's variables that a shell gets at its start although it reads start-up files.
func atStart(own map[string]string) map[string]string {
	given := maps.Clone(own)
	maps.DeleteFunc(given, func(name, _ string) bool { return assignable(name) })
	return given
}

// checkSizes refuses what the kernel would refuse as a variable of a program, if it were told at the start.
func checkSizes(program string, own map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if len(name)+len(own[name])+2 > largestArgument {
			return &StartError{Op: "exec", Path: program, Errno: syscall.E2BIG, Detail: "the variable " + shorten(name) + " is larger than 131071 bytes"}
		}
	}
	return nil
}

// A word that begins with a backslash is no alias.

// settle makes the script that follows start-up files. exported says what they exported; nil means that the shell has to look.
func (s *settings) settle(sh shell, env []string, own map[string]string, exported []string) string {
	var b strings.Builder
	policy := s.Environment
	if policy.filters() {
		if exported == nil {
			b.WriteString(dropExcluded(sh, policy))
		}
		for _, name := range exported {
			if assignable(name) && policy.excludes(name) {
				b.WriteString(sh.unset(name))
			}
		}
	}
	var held []string
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		_, set := policy.Set[name]
		_, fixed := fixedEnvironment[name]
		_, asked := own[name]
		switch {
		case set || fixed || asked || policy.excludes(name):
			held = appendAssignment(held, name, value)
		case name == "PATH" && len(s.PathPrepend) > 0:
			prefix := quote(s.prepended(""))
			fmt.Fprintf(&b, "case ${PATH-} in %s*) ;; *) %s;; esac\n", prefix, sh.guarded(name, "export PATH="+prefix+`"${PATH-}"`))
		}
	}
	b.WriteString(sh.export(held))
	b.WriteString(sh.stayIn(lookup(env, "PWD")))
	return quietly(b.String())
}

// stayIn makes the lines that undo a change of the folder: a command runs where the call says.
func (sh shell) stayIn(dir string) string {
	return fmt.Sprintf("case ${PWD-} in %s) ;; *) %s;; esac\n", quote(dir), sh.guarded("PWD", "cd "+quote(dir))) + sh.unset("OLDPWD")
}

// settleOwn is settle for a shell that gets what an earlier command left: only what the call asks for is above that.
func settleOwn(sh shell, env []string, own map[string]string) string {
	var held []string
	for _, name := range slices.Sorted(maps.Keys(own)) {
		held = appendAssignment(held, name, lookup(env, name))
	}
	return quietly(sh.export(held))
}

// quietly keeps what lines of the engine's say out of a command's output.
func quietly(lines string) string {
	if lines == "" {
		return ""
	}
	return "{\n" + lines + "} 2>/dev/null\n"
}

// appendAssignment writes a variable as a shell would read it, if a script may set it.
func appendAssignment(to []string, name, value string) []string {
	if !assignable(name) {
		return to
	}
	return append(to, name+"="+quote(value))
}

// export makes the lines that set variables. One that a start-up file made read-only must end neither the shell nor the rest.
func (sh shell) export(assignments []string) string {
	if sh.kind == kindBash && len(assignments) > 0 {
		return sh.guarded("", "export "+strings.Join(assignments, " ")) // A bash goes on with the others.
	}
	var b strings.Builder
	for _, assignment := range assignments {
		name, _, _ := strings.Cut(assignment, "=")
		b.WriteString(sh.guarded(name, "export "+assignment))
	}
	return b.String()
}

func (sh shell) unset(name string) string { return sh.guarded(name, "unset "+name) }

func (sh shell) guarded(name, line string) string {
	if sh.kind == kindZsh {
		// Such an error ends a zsh in any case, and some names are arrays of its own that stand for other variables.
		return fmt.Sprintf("case ${(t)%s-} in array*|*readonly*) ;; *) \\%s ;; esac\n", name, line)
	}
	return `\command ` + line + " || :\n"
}

// dropExcluded makes a shell unset what its start-up files exported against the policy. A line of a value that looks like another
// export does no harm: only excluded names are unset.
func dropExcluded(sh shell, policy EnvironmentPolicy) string {
	list, unset := `\export -p`, `\command unset "$_execsession_name" || :`
	if sh.kind == kindZsh {
		list, unset = `\typeset +x`, `case ${(Pt)_execsession_name} in *readonly*) ;; *) \unset "$_execsession_name" ;; esac`
	}
	cases := []string{"''|[0-9]*|*[!A-Za-z0-9_]*|_execsession_*|" + strings.Join(keptByShells, "|") + ") ;;"}
	excluded := slices.Clone(policy.Exclude)
	if !policy.KeepSecrets {
		excluded = append(excluded, secretPatterns...)
	}
	if len(excluded) > 0 {
		cases = append(cases, shellPatterns(excluded)+") "+unset+" ;;")
	}
	if len(policy.IncludeOnly) > 0 {
		cases = append(cases, shellPatterns(policy.IncludeOnly)+") ;;", "*) "+unset+" ;;")
	}
	return fmt.Sprintf(`_execsession_newline='
'
_execsession_exports=$(%s)
while case $_execsession_exports in '') false ;; esac; do
_execsession_name=${_execsession_exports%%%%"$_execsession_newline"*}
case $_execsession_exports in *"$_execsession_newline"*) _execsession_exports=${_execsession_exports#*"$_execsession_newline"} ;; *) _execsession_exports= ;; esac
_execsession_name=${_execsession_name%%%%=*}
_execsession_name=${_execsession_name##* }
case $_execsession_name in
%s
esac
done
\unset _execsession_newline _execsession_exports _execsession_name
`, list, strings.Join(cases, "\n"))
}

// shellPatterns writes patterns of a policy, which ignore case, as those of a shell.
func shellPatterns(patterns []string) string {
	written := make([]string, len(patterns))
	for i, pattern := range patterns {
		var b strings.Builder
		b.WriteString("''") // A pattern may be empty.
		for _, c := range []byte(pattern) {
			upper, lower := strings.ToUpper(string(rune(c))), strings.ToLower(string(rune(c)))
			switch {
			case c == '*' || c == '?' || c == '_' || c >= '0' && c <= '9':
				b.WriteByte(c)
			case c < 0x80 && upper != lower:
				b.WriteString("[" + lower + upper + "]")
			default:
				b.WriteString(quote(string([]byte{c})))
			}
		}
		written[i] = b.String()
	}
	return strings.Join(written, "|")
}
