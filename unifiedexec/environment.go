package unifiedexec

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var (
	// coreNames are what InheritCore keeps.
	coreNames = []string{"PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "USER"}

	// secretPatterns are dropped unless EnvironmentPolicy.KeepSecrets.
	secretPatterns = []string{"*KEY*", "*SECRET*", "*TOKEN*"}

	// fixedEnvironment keeps output plain and programs from waiting in a pager. A command's own Env may change it.
	fixedEnvironment = map[string]string{
		"NO_COLOR":  "1",
		"TERM":      "dumb",
		"COLORTERM": "",
		"LANG":      "C.UTF-8",
		"LC_CTYPE":  "C.UTF-8",
		"LC_ALL":    "C.UTF-8",
		"PAGER":     "cat",
		"GIT_PAGER": "cat",
		"GH_PAGER":  "cat",
		markerName:  "1",
	}

	// steeringNames and steeringPrefixes make the loader or a shell run something before the command.
	steeringNames = []string{
		"BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "IFS", "BASH_LOADABLES_PATH",
		"BASH_XTRACEFD", "ZDOTDIR", "FPATH", "GCONV_PATH", "GLIBC_TUNABLES", "LOCPATH", "NLSPATH",
	}
	steeringPrefixes = []string{"LD_", "BASH_FUNC_"}
)

// markerName tells a command where it runs.
const markerName = "EXECSESSION"

// checkOverrides refuses variables of a request that would steer the loader or a shell's start.
func checkOverrides(env map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		field := "env." + shorten(name)
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return &FieldError{Field: "env", Value: shorten(name), Problem: "not a variable's name"}
		case strings.ContainsRune(env[name], 0):
			return &FieldError{Field: field, Problem: "the value holds a NUL byte"}
		case steers(name):
			return &FieldError{Field: field, Problem: "not allowed, because it steers how programs or shells start"}
		case name == markerName:
			return &FieldError{Field: field, Problem: "not allowed, because it says where the command runs"}
		}
	}
	return nil
}

func steers(name string) bool {
	return slices.Contains(steeringNames, name) ||
		slices.ContainsFunc(steeringPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// environ makes a command's environment: what every command with that shell gets, and last the command's own.
func (s *settings) environ(shell, dir string, own map[string]string) []string {
	env := s.base
	if env == nil || shell != s.shell.path {
		env = s.everyone(shell)
	}
	env = setVariable(append(make([]string, 0, len(env)+len(own)+1), env...), "PWD", dir)
	for name, value := range own {
		if name == "PATH" {
			value = s.prepended(value)
		}
		env = setVariable(env, name, value)
	}
	return env
}

// everyone makes what every command gets, sorted by name: the policy over what is inherited, what
// programs expect, and what is fixed.
func (s *settings) everyone(shell string) []string {
	vars := s.inherited()
	if s.Home != "" {
		vars["HOME"] = s.Home
	}
	if s.TempDir != "" {
		vars["TMPDIR"] = s.TempDir
	}
	maps.Copy(vars, s.Environment.Set)
	if only := s.Environment.IncludeOnly; len(only) > 0 {
		maps.DeleteFunc(vars, func(name, _ string) bool { return !matchAny(only, name) })
	}
	s.fillIn(vars, shell)
	maps.Copy(vars, fixedEnvironment)
	vars["PATH"] = s.prepended(vars["PATH"])
	delete(vars, "OLDPWD")
	env := make([]string, 0, len(vars))
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, name+"="+vars[name])
	}
	return env
}

func (s *settings) prepended(path string) string {
	return strings.Join(append(slices.Clone(s.PathPrepend), path), ":")
}

// setVariable sets a variable in a list that is sorted by name.
func setVariable(env []string, name, value string) []string {
	i, found := findVariable(env, name)
	if found {
		env[i] = name + "=" + value
		return env
	}
	return slices.Insert(env, i, name+"="+value)
}

func findVariable(env []string, name string) (int, bool) {
	return slices.BinarySearchFunc(env, name, func(entry, name string) int {
		has, _, _ := strings.Cut(entry, "=")
		return strings.Compare(has, name)
	})
}

// inherited is what the policy leaves of the engine's environment.
func (s *settings) inherited() map[string]string {
	env := make(map[string]string)
	policy := s.Environment
	if policy.Inherit == InheritNone {
		return env
	}
	for _, entry := range s.inherit {
		name, value, ok := strings.Cut(entry, "=")
		switch {
		case !ok || name == "":
		case policy.Inherit == InheritCore && !slices.Contains(coreNames, name):
		case policy.excludes(name):
		default:
			env[name] = value
		}
	}
	return env
}

// excludes is whether the policy keeps a variable out, wherever it comes from. Set is above that, but for IncludeOnly.
func (p EnvironmentPolicy) excludes(name string) bool {
	return !p.KeepSecrets && matchAny(secretPatterns, name) || matchAny(p.Exclude, name) ||
		len(p.IncludeOnly) > 0 && !matchAny(p.IncludeOnly, name)
}

// filters is whether the policy may exclude anything.
func (p EnvironmentPolicy) filters() bool {
	return !p.KeepSecrets || len(p.Exclude) > 0 || len(p.IncludeOnly) > 0
}

// fillIn sets what programs expect and nobody gave, also for a user without a passwd entry.
func (s *settings) fillIn(env map[string]string, shell string) {
	home := s.user.home
	if s.Home != "" {
		home = s.Home
	}
	if home == "" {
		home = "/"
	}
	tmp := s.TempDir
	if tmp == "" {
		tmp = "/tmp"
	}
	defaults := map[string]string{"PATH": defaultPath, "HOME": home, "TMPDIR": tmp, "SHELL": shell}
	if s.user.name != "" {
		defaults["USER"], defaults["LOGNAME"] = s.user.name, s.user.name
	}
	for name, value := range defaults {
		if env[name] == "" {
			env[name] = value
		}
	}
}

func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matchName(p, name) })
}

// matchName matches a whole name, ignoring case; * is any stretch, ? any one byte.
func matchName(pattern, name string) bool {
	pattern, name = strings.ToUpper(pattern), strings.ToUpper(name)
	// star and after remember where to go on when the last * must take one byte more.
	star, after := -1, 0
	p, n := 0, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, after = p, n
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
			p++
			n++
		case star >= 0:
			after++
			p, n = star+1, after
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// lookup returns a variable of an environment list.
func lookup(env []string, name string) string {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// hasVariable is whether any of some names is in an environment list that is sorted by name.
func hasVariable(env []string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		_, found := findVariable(env, name)
		return found
	})
}

// clean makes a folder's path absolute against a base.
func clean(base, path string) string {
	if !filepath.IsAbs(path) {
		path = filepath.Join(base, path)
	}
	return filepath.Clean(path)
}
