package unifiedexec

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// policyOnly is what a policy makes of variables, without what every command gets.
func policyOnly(t *testing.T, policy EnvironmentPolicy, environ ...string) map[string]string {
	t.Helper()
	s, err := complete(Settings{Environment: policy, Workdir: "/"}, environ)
	if err != nil {
		t.Fatal(err)
	}
	added, err := complete(Settings{Environment: EnvironmentPolicy{Inherit: InheritNone}, Workdir: "/"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	base := added.environ("/bin/sh", "/", nil)
	out := map[string]string{}
	for _, entry := range s.environ("/bin/sh", "/", nil) {
		if !slices.Contains(base, entry) {
			name, value, _ := strings.Cut(entry, "=")
			out[name] = value
		}
	}
	return out
}

func TestEnvironmentPolicy(t *testing.T) {
	inherited := []string{"PATH=/x", "USER=u", "LOGNAME=u", "FOO=foo", "Api_Key=1", "MY_SECRET_2=2", "TOKENS=3", "EMPTY=", "broken"}
	cases := map[string]struct {
		reason string
		policy EnvironmentPolicy
		want   map[string]string
	}{
		"All":           {"all but what looks like a secret", EnvironmentPolicy{}, map[string]string{"PATH": "/x", "USER": "u", "LOGNAME": "u", "FOO": "foo", "EMPTY": ""}},
		"AllSecrets":    {"secrets on request", EnvironmentPolicy{KeepSecrets: true}, map[string]string{"PATH": "/x", "USER": "u", "LOGNAME": "u", "FOO": "foo", "EMPTY": "", "Api_Key": "1", "MY_SECRET_2": "2", "TOKENS": "3"}},
		"Core":          {"only the core names", EnvironmentPolicy{Inherit: InheritCore}, map[string]string{"PATH": "/x", "USER": "u", "LOGNAME": "u"}},
		"None":          {"nothing", EnvironmentPolicy{Inherit: InheritNone}, map[string]string{}},
		"Exclude":       {"patterns are whole names and ignore case", EnvironmentPolicy{Exclude: []string{"f*", "U?ER", "OG"}}, map[string]string{"PATH": "/x", "LOGNAME": "u", "EMPTY": ""}},
		"Set":           {"set adds and overrides, also what excludes would drop", EnvironmentPolicy{Inherit: InheritCore, Exclude: []string{"NEW"}, Set: map[string]string{"PATH": "/y", "NEW": "n", "A_KEY": "k"}}, map[string]string{"PATH": "/y", "USER": "u", "LOGNAME": "u", "NEW": "n", "A_KEY": "k"}},
		"IncludeOnly":   {"also removes what set added", EnvironmentPolicy{Set: map[string]string{"NEW": "n", "FOO2": "f"}, IncludeOnly: []string{"FOO*", "PATH"}}, map[string]string{"PATH": "/x", "FOO": "foo", "FOO2": "f"}},
		"SetFixed":      {"what is fixed stays so", EnvironmentPolicy{Inherit: InheritNone, Set: map[string]string{"PAGER": "less", "TERM": "xterm"}}, map[string]string{}},
		"ProfilesSteer": {"a profile may set what a request may not", EnvironmentPolicy{Inherit: InheritNone, Set: map[string]string{"LD_LIBRARY_PATH": "/l"}}, map[string]string{"LD_LIBRARY_PATH": "/l"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := policyOnly(t, tc.policy, inherited...)
			// The user of this machine fills in what is missing.
			for _, n := range []string{"USER", "LOGNAME"} {
				if tc.want[n] == "" {
					delete(got, n)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestEveryCommandGets(t *testing.T) {
	e := newEngine(t, Config{Environ: []string{"LANG=de_DE", "NO_COLOR=", "GIT_PAGER=less", "EXECSESSION=old", "OLDPWD=/x", "SOME_TOKEN=t"}})
	r := exec(t, e, Command{Argv: []string{"/usr/bin/env"}, Env: map[string]string{"MINE": "m", "TERM": "xterm", "SOME_TOKEN": "own"}}, 30_000)
	got := map[string]string{}
	for line := range strings.Lines(r.Output) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		got[name] = value
	}
	want := maps.Clone(fixedEnvironment)
	maps.Copy(want, map[string]string{
		"MINE": "m", "TERM": "xterm", "SOME_TOKEN": "own", "PATH": defaultPath, "TMPDIR": "/tmp",
		"PWD": e.settings.Load().Workdir, "SHELL": e.settings.Load().shell.path,
	})
	// These are the user's, and one without an account has only a home.
	for _, n := range []string{"HOME", "USER", "LOGNAME"} {
		if value, ok := got[n]; ok {
			want[n] = value
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestHomeAndFriendsWithoutAnAccount(t *testing.T) {
	cases := map[string]struct {
		reason   string
		settings settings
		want     map[string]string
	}{
		"Nothing":  {"a user without a passwd entry", settings{}, map[string]string{"HOME": "/", "TMPDIR": "/tmp", "PATH": defaultPath, "USER": "", "SHELL": "/bin/sh"}},
		"Account":  {"a passwd entry", settings{user: account{name: "u", home: "/home/u"}}, map[string]string{"HOME": "/home/u", "USER": "u", "LOGNAME": "u"}},
		"Settings": {"the settings win over what the runtime made up", settings{inherit: []string{"HOME=/", "TMPDIR=/x"}, Settings: Settings{Home: "/h", TempDir: "/t"}}, map[string]string{"HOME": "/h", "TMPDIR": "/t"}},
		"Set":      {"the profile wins over the settings", settings{Settings: Settings{Home: "/h", Environment: EnvironmentPolicy{Set: map[string]string{"HOME": "/p"}}}}, map[string]string{"HOME": "/p"}},
		"Only":     {"a filter does not take what every command needs", settings{Settings: Settings{Home: "/h", Environment: EnvironmentPolicy{IncludeOnly: []string{"X"}}}}, map[string]string{"HOME": "/h", "PATH": defaultPath}},
		"Prepend":  {"in front of PATH", settings{inherit: []string{"PATH=/a"}, Settings: Settings{PathPrepend: []string{"/p", "/q"}}}, map[string]string{"PATH": "/p:/q:/a"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			env := tc.settings.environ("/bin/sh", "/", nil)
			for name, want := range tc.want {
				if got := lookup(env, name); got != want {
					t.Errorf("%s: %s is %q, want %q", tc.reason, name, got, want)
				}
			}
		})
	}
}

func TestMatchName(t *testing.T) {
	cases := map[[2]string]bool{
		{"*KEY*", "KEY"}: true, {"*KEY*", "my_api_key_2"}: true, {"*KEY*", "KE"}: false, {"A?C", "abc"}: true, {"A?C", "ac"}: false,
		{"", ""}: true, {"*", ""}: true, {"a*b*c", "aXbbXc"}: true, {"a*b", "abc"}: false, {"***", "x"}: true, {"a", "ab"}: false, {"a*", "b"}: false,
	}
	for in, want := range cases {
		if got := matchName(in[0], in[1]); got != want {
			t.Errorf("%q %q: %v", in[0], in[1], got)
		}
	}
}

func TestReadAccount(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(file, []byte("root:x:0:0:root:/root:/bin/bash\nbroken\nu:x:1000:1000::/home/u:/bin/zsh"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := readAccount(file, 1000); got != (account{"u", "/home/u", "/bin/zsh"}) {
		t.Errorf("%+v", got)
	}
	if got := readAccount(file, 1234567); got != (account{}) {
		t.Errorf("%+v", got)
	}
	if got := readAccount(file+"x", 0); got != (account{}) {
		t.Errorf("%+v", got)
	}
}

func TestShellChoice(t *testing.T) {
	yes, no := true, false
	cases := map[string]struct {
		reason   string
		settings ShellSettings
		command  Command
		want     string
	}{
		"Default":      {"the session's shell, a login shell where that is allowed", ShellSettings{}, Command{Script: "x"}, "/bin/bash -lc x"},
		"NoLogin":      {"on request", ShellSettings{}, Command{Script: "x", Login: &no}, "/bin/bash -c x"},
		"Login":        {"on request", ShellSettings{}, Command{Script: "x", Login: &yes}, "/bin/bash -lc x"},
		"Forbidden":    {"never", ShellSettings{Login: LoginForbidden}, Command{Script: "x"}, "/bin/bash -c x"},
		"ForbiddenNo":  {"asking for none is fine", ShellSettings{Login: LoginForbidden}, Command{Script: "x", Login: &no}, "/bin/bash -c x"},
		"Configured":   {"the settings' path", ShellSettings{Path: "/bin/dash"}, Command{Script: "x"}, "/bin/dash -lc x"},
		"Kind":         {"by kind", ShellSettings{}, Command{Script: "x", Shell: "sh"}, "/bin/sh -lc x"},
		"PathIsKind":   {"a path says only the kind", ShellSettings{}, Command{Script: "x", Shell: "/home/agent/evil/sh"}, "/bin/sh -lc x"},
		"SameKindKept": {"the session's own program of that kind", ShellSettings{Path: "/usr/bin/bash"}, Command{Script: "x", Shell: "bash"}, "/usr/bin/bash -lc x"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, err := complete(Settings{Shell: tc.settings, Workdir: "/"}, []string{"PATH=/bin:/usr/bin"})
			if err != nil {
				t.Fatal(err)
			}
			if tc.settings.Path == "" {
				s.shell, s.base = shell{kind: kindBash, path: "/bin/bash"}, nil
			}
			p, err := s.plan(tc.command)
			p.finish()
			if err != nil || strings.Join(p.argv, " ") != tc.want {
				t.Errorf("%s: %q %v, want %q", tc.reason, p.argv, err, tc.want)
			}
		})
	}
}

func TestDetectShell(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"bash", "zsh"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cases := map[string]struct {
		reason string
		user   account
		path   string
		want   shell
	}{
		"Account": {"the user's own", account{shell: dir + "/zsh"}, "/bin", shell{kindZsh, dir + "/zsh"}},
		"Unknown": {"one that is not known is passed over", account{shell: "/usr/sbin/nologin"}, dir, shell{kindBash, dir + "/bash"}},
		"Gone":    {"one that is not there is passed over", account{shell: "/nowhere/zsh"}, dir, shell{kindBash, dir + "/bash"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := detectShell("", tc.user, tc.path)
			if err != nil || got != tc.want {
				t.Errorf("%s: %+v %v, want %+v", tc.reason, got, err, tc.want)
			}
		})
	}
}

func TestSettingsErrors(t *testing.T) {
	cases := map[string]struct {
		settings Settings
		field    string
	}{
		"Inherit":     {Settings{Environment: EnvironmentPolicy{Inherit: "Some"}}, "environment.inherit"},
		"Set":         {Settings{Environment: EnvironmentPolicy{Set: map[string]string{"A=": ""}}}, "environment.set"},
		"Login":       {Settings{Shell: ShellSettings{Login: "Maybe"}}, "shell.login"},
		"Persistence": {Settings{Shell: ShellSettings{Persistence: "Forever"}}, "shell.persistence"},
		"Relative":    {Settings{Shell: ShellSettings{Path: "bash"}}, "shell.path"},
		"Fish":        {Settings{Shell: ShellSettings{Path: "/usr/bin/fish"}}, "shell.path"},
		"NoShell":     {Settings{Shell: ShellSettings{Path: "/nowhere/bash"}}, "shell.path"},
		"Workdir":     {Settings{Workdir: "x"}, "workdir"},
		"Home":        {Settings{Home: "x"}, "home"},
		"Prepend":     {Settings{PathPrepend: []string{"/a:/b"}}, "pathPrepend"},
		"Limit":       {Settings{Limits: Limits{MaxProcesses: -1}}, "limits.maxProcesses"},
		"Time":        {Settings{Limits: Limits{EndedTime: -1}}, "limits"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := New(Config{Settings: tc.settings})
			var field *FieldError
			if !errors.As(err, &field) || field.Field != tc.field {
				t.Errorf("error %v, want one about %s", err, tc.field)
			}
		})
	}
}
