//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// What the attempts aim at. The files in /srv belong to the user of commands, so that only the sandbox keeps them.
const (
	outside      = "/srv/outside"
	outsideFile  = outside + "/file"
	denied       = "/srv/denied"
	agentProgram = "/execsession/bin/agentd"
	agentConfig  = "/execsession/config"
	agentJournal = "/execsession/journal"
)

func open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func opening(path string, flags int) func() error {
	return func() error { return open(path, flags) }
}

// workFolder is a new folder in the workspace.
func workFolder() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	return os.MkdirTemp(dir, "case-")
}

// inWorkFolder gives a new file name in the workspace.
func inWorkFolder(f func(path string) error) func() error {
	return func() error {
		dir, err := workFolder()
		if err != nil {
			return err
		}
		return f(filepath.Join(dir, "x"))
	}
}

func throughLink(target string, flags int) func() error {
	return inWorkFolder(func(path string) error {
		if err := os.Symlink(target, path); err != nil {
			return err
		}
		return open(path, flags)
	})
}

var fileAttempts = map[string]func() error{
	"write outside, by ..":                     func() error { return open("../srv/outside/file", unix.O_WRONLY) },
	"create outside":                           opening(outside+"/new", unix.O_CREAT|unix.O_WRONLY),
	"create in the root":                       opening("/new", unix.O_CREAT|unix.O_WRONLY),
	"write through a planted link":             throughLink(outsideFile, unix.O_WRONLY),
	"write passwd through a link":              throughLink("/etc/passwd", unix.O_WRONLY),
	"create through a planted link":            throughLink(outside+"/made", unix.O_WRONLY|unix.O_CREAT),
	"rename the workspace":                     renameWorkspace,
	"put a link over a writable root":          linkOverRoot,
	"hard link into the workspace":             inWorkFolder(func(path string) error { return unix.Link(outsideFile, path) }),
	"rename into the workspace":                inWorkFolder(func(path string) error { return unix.Rename(outsideFile, path) }),
	"rename out of the workspace":              renameOut,
	"rename outside":                           func() error { return unix.Rename(outsideFile, outside+"/renamed") },
	"rename the agent's folder":                func() error { return unix.Rename("/execsession", outside+"/agent") },
	"rename the outside's parent":              func() error { return unix.Rename(outside, "/srv/elsewhere") },
	"create agents' settings":                  createSettings,
	"rename a protected folder's parent":       func() error { return unix.Rename("/workspace/guarded", "/workspace/elsewhere") },
	"write a protected folder by another name": opening("/proc/self/root/workspace/guarded/inner/new", unix.O_CREAT|unix.O_WRONLY),
	"write a protected hook":                   opening("/workspace/.git/hooks", unix.O_CREAT|unix.O_WRONLY),
	"create protected settings":                opening("/workspace/.claude/settings.json", unix.O_CREAT|unix.O_WRONLY),
	"read what is denied in the workspace":     opening("/workspace/secret/key", unix.O_RDONLY),
	"create what is denied in the workspace":   opening("/workspace/secret/key", unix.O_CREAT|unix.O_WRONLY),
	"chmod outside":                            func() error { return unix.Chmod(outsideFile, 0o600) },
	"chown outside":                            func() error { return unix.Chown(outsideFile, 0, 0) },
	"utimes outside":                           func() error { return unix.Utimes(outsideFile, make([]unix.Timeval, 2)) },
	"chmod the agent's program":                func() error { return unix.Chmod(agentProgram, 0o700) },
	"chmod the agent's documents":              func() error { return unix.Chmod(agentConfig+"/session.json", 0) },
	"chmod the agent's journal":                func() error { return unix.Chmod(agentJournal, 0) },
	"chmod the agent's journals":               func() error { return unix.Chmod(agentJournal+"/processes", 0) },
	"truncate outside":                         func() error { return unix.Truncate(outsideFile, 1) },
	"open outside with O_TRUNC":                opening(outsideFile, unix.O_RDONLY|unix.O_TRUNC),
	"read the agent's documents":               opening(agentConfig+"/session.json", unix.O_RDONLY),
	"list the agent's journal":                 opening(agentJournal, unix.O_RDONLY|unix.O_DIRECTORY),
	"read through O_PATH":                      func() error { return readThroughPath(agentConfig + "/session.json") },
	"read by /proc/self/root":                  opening("/proc/self/root"+agentConfig+"/session.json", unix.O_RDONLY),
	"read by /proc/1/root":                     opening("/proc/1/root"+agentConfig+"/session.json", unix.O_RDONLY),
	"read from inside":                         func() error { return readFromInside(agentConfig, "session.json") },
	"write its own memory by file":             opening("/proc/self/mem", unix.O_RDWR),
	"write the agent's memory by file":         opening("/proc/1/mem", unix.O_RDWR),
	"read the agent's environment":             opening("/proc/1/environ", unix.O_RDONLY),
	"read the agent's maps":                    opening("/proc/1/maps", unix.O_RDONLY),
	"list the agent's descriptors":             opening("/proc/1/fd", unix.O_RDONLY|unix.O_DIRECTORY),
	"find a secret in a command line":          secretInCommandLine,
	"pass a hook to git":                       hookRunsConfined,
	"pass a monitor to git":                    monitorRunsConfined,
	"point git elsewhere":                      gitElsewhere,
	"read what is denied":                      opening(denied+"/secret", unix.O_RDONLY),
	"read what is denied by O_PATH":            func() error { return readThroughPath(denied + "/secret") },
	"read what is denied by root":              opening("/proc/self/root"+denied+"/secret", unix.O_RDONLY),
	"read what is denied from inside":          func() error { return readFromInside(denied, "secret") },
	"read the service account's token":         opening("/var/run/secrets/kubernetes.io/serviceaccount/token", unix.O_RDONLY),
	"give a file capabilities":                 giveCapabilities,
	"run a set-user-id program":                runSetUID,
	"run from a memfd":                         func() error { return execMemfd("create outside") },
	"look at itself from a memfd":              func() error { return execMemfd("look at itself") },
	"look at itself":                           lookAtItself,
	"execute a missing file":                   func() error { return syscall.Exec("/nonexistent", []string{"x"}, nil) },
	"execute what is not executable":           func() error { return syscall.Exec("/etc/passwd", []string{"x"}, nil) },
}

func renameWorkspace() error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	return unix.Rename(dir, outside+"/workspace")
}

// linkOverRoot tries to exchange a root that is granted for a link to elsewhere, as a command would before the next one starts.
func linkOverRoot() error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := os.Symlink(outside, filepath.Join(dir, "planted")); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return unix.Rename(filepath.Join(dir, "planted"), dir)
}

func renameOut() error {
	return inWorkFolder(func(path string) error {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		return unix.Rename(path, outside+"/out")
	})()
}

func createSettings() error {
	dir, err := workFolder()
	if err != nil {
		return err
	}
	for _, name := range []string{".bashrc", ".mcp.json", ".vscode/tasks.json", ".claude/settings.json"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func readThroughPath(path string) error {
	fd, err := unix.Open(path, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	return open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY)
}

func readFromInside(dir, name string) error {
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	return open(name, unix.O_RDONLY)
}

// secretInCommandLine reads every command line there is: the agent's has the keys that verify, and none that signs.
func secretInCommandLine() error {
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		lower := bytes.ToLower(line)
		for _, word := range []string{"secret", "token", "password", "private"} {
			if bytes.Contains(lower, []byte(word)) {
				return fmt.Errorf("%s holds %q", path, word)
			}
		}
	}
	return nil
}

// payload is a script that makes an attempt and leaves what it met beside itself.
func payload(dir string) (script string, met func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	left := filepath.Join(dir, "met")
	script = filepath.Join(dir, "payload")
	text := fmt.Sprintf("#!/bin/sh\n%s='create outside' %s >%s\n", attemptVariable, self, left)
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		return "", nil, err
	}
	return script, func() error {
		said, err := os.ReadFile(left)
		switch {
		case err != nil:
			return fmt.Errorf("the payload did not run: %w", err)
		case bytes.Contains(said, []byte(`"outcome":"EACCES"`)):
			return unix.EACCES
		}
		return fmt.Errorf("the payload met %s", said)
	}, nil
}

func git(dir string, args ...string) error {
	cmd := exec.Command("git", append([]string{"-c", "user.name=n", "-c", "user.email=e@example.com"}, args...)...) //nolint:noctx // who runs the case bounds it
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", attemptVariable+"=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %s: %w: %s", args[0], err, out)
	}
	return nil
}

// hookRunsConfined plants a hook, in a repository and in one nested in it, which git runs as a command's child.
func hookRunsConfined() error {
	dir, err := workFolder()
	if err != nil {
		return err
	}
	for _, repo := range []string{dir, filepath.Join(dir, "nested")} {
		if err := os.MkdirAll(repo, 0o700); err != nil {
			return err
		}
		if err := git(repo, "init", "-q"); err != nil {
			return err
		}
		script, met, err := payload(repo)
		if err != nil {
			return err
		}
		if err := os.Rename(script, filepath.Join(repo, ".git/hooks/pre-commit")); err != nil {
			return err
		}
		if err := git(repo, "commit", "-q", "--allow-empty", "-m", "x"); err != nil {
			return err
		}
		if err := met(); !errors.Is(err, unix.EACCES) {
			return fmt.Errorf("in %s: %w", repo, err)
		}
	}
	return unix.EACCES
}

func monitorRunsConfined() error {
	dir, err := workFolder()
	if err != nil {
		return err
	}
	script, met, err := payload(dir)
	if err != nil {
		return err
	}
	for _, args := range [][]string{{"init", "-q"}, {"config", "core.fsmonitor", script}, {"status"}} {
		if err := git(dir, args...); err != nil {
			return err
		}
	}
	return met()
}

// gitElsewhere lets a .git file lead out of the workspace: git follows it, and can write nothing there.
func gitElsewhere() error {
	dir, err := workFolder()
	if err != nil {
		return err
	}
	if err := git(dir, "init", "-q", "--separate-git-dir", outside+"/repository"); err == nil {
		return errors.New("git wrote outside")
	} else if !strings.Contains(err.Error(), "Permission denied") {
		return err
	}
	return unix.EACCES
}

// giveCapabilities tries what setcap does.
func giveCapabilities() error {
	return inWorkFolder(func(path string) error {
		if err := os.WriteFile(path, nil, 0o700); err != nil {
			return err
		}
		version2 := append([]byte{1, 0, 0, 2}, bytes.Repeat([]byte{0xff}, 16)...)
		return unix.Setxattr(path, "security.capability", version2, 0)
	})()
}

// runSetUID runs a program that would make its caller root, and says who it is.
func runSetUID() error {
	const program = "/usr/bin/whoami"
	info, err := os.Stat(program)
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeSetuid == 0 {
		return fmt.Errorf("%s is not set-user-id here", program)
	}
	// Without an entry in passwd it fails, which is no root either.
	said, _ := exec.Command(program).CombinedOutput() //nolint:noctx // who runs the case bounds it
	if len(said) == 0 || bytes.Contains(said, []byte("root")) {
		return fmt.Errorf("it says %q", said)
	}
	return nil
}

func execMemfd(attempt string) error {
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	source, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	target := os.NewFile(uintptr(fd), "memfd")
	if _, err := io.Copy(target, source); err != nil {
		return err
	}
	// #nosec G204 -- that is the attempt
	return syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", fd), []string{"x"}, []string{attemptVariable + "=" + attempt})
}

func lookAtItself() error {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for _, want := range []string{
		"\nNoNewPrivs:\t1\n", "\nSeccomp:\t2\n", "\nCapEff:\t0000000000000000\n", "\nCapPrm:\t0000000000000000\n", "\nCapBnd:\t0000000000000000\n",
	} {
		if !bytes.Contains(data, []byte(want)) {
			return fmt.Errorf("its status lacks %q", strings.TrimSpace(want))
		}
	}
	return nil
}
