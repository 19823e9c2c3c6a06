package unifiedexec

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// settings are Settings that were checked and completed; they are never changed.
type settings struct {
	Settings
	// inherit is the environment that the policy is applied to.
	inherit []string
	user    account
	shell   shell
	// base is what every command with that shell gets.
	base []string
}

// complete checks settings and fills in what was left out.
func complete(s Settings, inherit []string) (*settings, error) {
	out := &settings{Settings: s, inherit: inherit, user: readAccount("/etc/passwd", os.Getuid())}
	out.Environment.Set = maps.Clone(s.Environment.Set)
	out.PathPrepend = slices.Clone(s.PathPrepend)
	if out.Start == nil {
		out.Start = syscall.ForkExec
	}
	if err := checkChoices(s); err != nil {
		return nil, err
	}
	if err := out.completePaths(); err != nil {
		return nil, err
	}
	if err := out.Limits.complete(); err != nil {
		return nil, err
	}
	path := lookup(out.environ("", out.Workdir, nil), "PATH")
	var err error
	if out.shell, err = detectShell(s.Shell.Path, out.user, path); err != nil {
		return nil, err
	}
	out.base = out.everyone(out.shell.path)
	return out, nil
}

func checkChoices(s Settings) error {
	choices := []struct {
		field, value string
		allowed      []string
	}{
		{"environment.inherit", string(s.Environment.Inherit), []string{"", string(InheritAll), string(InheritCore), string(InheritNone)}},
		{"shell.login", string(s.Shell.Login), []string{"", string(LoginAllowed), string(LoginForbidden)}},
		{"shell.persistence", string(s.Shell.Persistence), []string{"", string(PersistNone), string(PersistEnvironment)}},
	}
	for _, c := range choices {
		if !slices.Contains(c.allowed, c.value) {
			return &FieldError{Field: c.field, Value: shorten(c.value), Problem: "must be one of " + strings.Join(c.allowed[1:], ", ")}
		}
	}
	for name, value := range s.Environment.Set {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return &FieldError{Field: "environment.set", Value: shorten(name), Problem: "not a variable"}
		}
	}
	return nil
}

func (s *settings) completePaths() error {
	if s.Workdir == "" {
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		s.Workdir = dir
	}
	paths := map[string]string{"workdir": s.Workdir, "home": s.Home, "tempDir": s.TempDir}
	for _, dir := range s.PathPrepend {
		paths["pathPrepend"] = dir
		if !filepath.IsAbs(dir) || strings.Contains(dir, ":") {
			return &FieldError{Field: "pathPrepend", Value: shorten(dir), Problem: "not an absolute path without colons"}
		}
	}
	for field, path := range paths {
		if path != "" && (!filepath.IsAbs(path) || strings.ContainsRune(path, 0)) {
			return &FieldError{Field: field, Value: shorten(path), Problem: "not an absolute path"}
		}
	}
	return nil
}

// The bounds of the waits of the two calls.
const (
	minYield     = 250 * time.Millisecond
	maxYield     = 30 * time.Second
	minEmptyPoll = 5 * time.Second
)

// complete fills in the defaults that Limits documents.
func (l *Limits) complete() error {
	numbers := []struct {
		field string
		value *int
		unset int
	}{
		{"limits.maxProcesses", &l.MaxProcesses, 64},
		{"limits.protectedProcesses", &l.ProtectedProcesses, 8},
		{"limits.outputBytes", &l.OutputBytes, 1 << 20},
		{"limits.endedProcesses", &l.EndedProcesses, 64},
		{"limits.endedBytes", &l.EndedBytes, 8 << 20},
	}
	for _, n := range numbers {
		if *n.value < 0 {
			return &FieldError{Field: n.field, Problem: "is negative"}
		}
		if *n.value == 0 {
			*n.value = n.unset
		}
	}
	if l.BackgroundPollMax < 0 || l.EndedTime < 0 || l.MaxOutputTokens < 0 {
		return &FieldError{Field: "limits", Problem: "a duration or a count is negative"}
	}
	if l.BackgroundPollMax == 0 {
		l.BackgroundPollMax = 5 * time.Minute
	}
	l.BackgroundPollMax = max(l.BackgroundPollMax, minEmptyPoll)
	if l.EndedTime == 0 {
		l.EndedTime = 10 * time.Minute
	}
	return nil
}
