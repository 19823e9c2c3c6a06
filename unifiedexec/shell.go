package unifiedexec

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// shellKind says how a shell is spoken to.
type shellKind string

const (
	kindBash shellKind = "bash"
	kindZsh  shellKind = "zsh"
	// kindSh is every shell that speaks POSIX and takes -l and -c.
	kindSh shellKind = "sh"
)

// shell is a program that runs scripts.
type shell struct {
	kind shellKind
	path string
}

// kinds says what a program is by its base name.
var kinds = map[string]shellKind{
	"bash": kindBash, "zsh": kindZsh, "sh": kindSh, "dash": kindSh, "ash": kindSh, "ksh": kindSh, "mksh": kindSh,
}

// places are where a shell is looked for when PATH does not lead to it.
var places = map[string][]string{
	"bash": {"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"},
	"zsh":  {"/bin/zsh", "/usr/bin/zsh", "/usr/local/bin/zsh"},
	"sh":   {"/bin/sh", "/usr/bin/sh"},
}

// detectShell finds the session's shell: the configured one, the user's, bash, zsh, sh.
func detectShell(configured string, user account, path string) (shell, error) {
	if configured != "" {
		kind, ok := kinds[filepath.Base(configured)]
		switch {
		case !filepath.IsAbs(configured):
			return shell{}, &FieldError{Field: "shell.path", Value: shorten(configured), Problem: "not an absolute path"}
		case !ok:
			return shell{}, &FieldError{Field: "shell.path", Value: shorten(configured), Problem: "not a shell that can be used: " + knownShells}
		}
		if errno := executable(configured); errno != 0 {
			return shell{}, &FieldError{Field: "shell.path", Value: shorten(configured), Problem: errno.Error()}
		}
		return shell{kind: kind, path: configured}, nil
	}
	if kind, ok := kinds[filepath.Base(user.shell)]; ok && executable(user.shell) == 0 {
		return shell{kind: kind, path: user.shell}, nil
	}
	for _, name := range []string{"bash", "zsh", "sh"} {
		if found, ok := findShell(name, path); ok {
			return found, nil
		}
	}
	// An image without any shell still runs programs; a script then says which path is missing.
	return shell{kind: kindSh, path: "/bin/sh"}, nil
}

const knownShells = "bash, zsh, sh, dash, ash, ksh or mksh"

// shellFor finds the shell of one command. A path in the request says only the kind: which
// program that is stays the session's choice.
func (s *settings) shellFor(request string) (shell, error) {
	if request == "" {
		return s.shell, nil
	}
	name := filepath.Base(request)
	if _, ok := kinds[name]; !ok {
		return shell{}, &FieldError{Field: "shell", Value: shorten(request), Problem: "unknown shell, use " + knownShells}
	}
	if filepath.Base(s.shell.path) == name {
		return s.shell, nil
	}
	path := lookup(s.environ(s.shell.path, s.Workdir, nil), "PATH")
	if found, ok := findShell(name, path); ok {
		return found, nil
	}
	return shell{}, &StartError{Op: "exec", Path: name, Errno: syscall.ENOENT, Detail: "there is no such shell here"}
}

func findShell(name, path string) (shell, bool) {
	var candidates []string
	for _, dir := range filepath.SplitList(path) {
		if filepath.IsAbs(dir) {
			candidates = append(candidates, filepath.Join(dir, name))
		}
	}
	for _, candidate := range append(candidates, places[name]...) {
		if executable(candidate) == 0 {
			return shell{kind: kinds[name], path: candidate}, true
		}
	}
	return shell{}, false
}

// executable says why a path is no program, or 0.
func executable(path string) syscall.Errno {
	mode, errno := modeOf(path)
	switch {
	case errno != 0:
		return errno
	case mode&unix.S_IFMT == unix.S_IFDIR:
		return syscall.EISDIR
	case mode&0o111 == 0:
		return syscall.EACCES
	}
	return 0
}

// largestArgument is what the kernel takes as one argument, its final NUL included.
const largestArgument = 128 << 10

// preambleFD and scriptFD are where a preamble waits for a shell, and a script that is too large for an argument. Some
// shells know only one digit, and start-up files, which come before, seldom use these.
const (
	preambleFD = 7
	scriptFD   = 8
)

func descriptorFile(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// closing makes the command that takes a descriptor from a shell.
func closing(fd int) string { return fmt.Sprintf("exec %d<&-", fd) }

// argv makes the arguments that run a script, and what has to wait for them at scriptFD. No program is needed to read that: the
// command's PATH need not lead to one. The descriptor is closed before anything of the script runs.
func (sh shell) argv(script string, login bool) (argv []string, waiting string) {
	flag := "-c"
	if login {
		flag = "-lc"
	}
	switch {
	case len(script)+len(sourcing)+2 <= largestArgument:
		return []string{sh.path, flag, script}, ""
	case sh.kind == kindSh:
		// Here a sourced script means what it does as an argument, also a return outside of any function.
		return []string{sh.path, flag, ". " + descriptorFile(scriptFD)}, closing(scriptFD) + "; " + script
	}
	return []string{sh.path, flag, fmt.Sprintf(`eval "%s; $(<%s)"`, closing(scriptFD), descriptorFile(scriptFD))}, script
}

// sourcing goes before a script whose shell reads a preamble.
var sourcing = fmt.Sprintf("{ . %s; } 2>/dev/null || exit 126", descriptorFile(preambleFD))

// readByBash is whether a shell runs, by itself, the file that a variable names. Then the script is still all of its argument. A
// login bash does not, nor does one in its POSIX mode, and the session may have such a variable of its own.
func (sh shell) readByBash(env []string, login bool) bool {
	return sh.kind == kindBash && !login && !hasVariable(env, "BASH_ENV", "POSIXLY_CORRECT", "SHELLOPTS")
}

// quoteArgv writes arguments so that a shell would read them back.
func quoteArgv(argv []string) string {
	quoted := make([]string, len(argv))
	for i, arg := range argv {
		quoted[i] = quote(arg)
	}
	return strings.Join(quoted, " ")
}

func quote(arg string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./=:,@%+", r)
	}
	if arg != "" && strings.IndexFunc(arg, func(r rune) bool { return !plain(r) }) < 0 {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}
