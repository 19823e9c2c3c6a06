package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// swap puts a link in the place of a path, which stays under another name.
type swap struct{ Path, Aside, Link string }

func (s swap) happen() error {
	if err := os.Rename(s.Path, s.Aside); err != nil {
		return err
	}
	return os.Symlink(s.Link, s.Path)
}

// bindMount is a mount of one folder onto another.
type bindMount struct {
	from, to string
	readOnly bool
}

func (b bindMount) make() error {
	if err := unix.Mount(b.from, b.to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %q: %w", b.to, err)
	}
	if !b.readOnly {
		return nil
	}
	if err := unix.Mount("", b.to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("making %q read-only: %w", b.to, err)
	}
	return nil
}

// run runs a program. If there are mounts, it gets a mount namespace of its own, so
// that nothing is left behind: the namespace of a thread that ends here.
func (s stage) run(cmd *exec.Cmd) error {
	if len(s.mounts) == 0 {
		return cmd.Run()
	}
	result := make(chan error, 1)
	go func() { // ends with the program
		runtime.LockOSThread() // never unlocked: Go destroys the thread
		result <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			for _, b := range s.mounts {
				if err := b.make(); err != nil {
					return err
				}
			}
			return cmd.Run()
		}()
	}()
	return <-result
}

// renaming renames within the base.
func renaming(from, to string) func(actor) error {
	return func(a actor) error { return unix.Rename(a.path(from), a.path(to)) }
}

// pathAttempts attack what a policy protects below a writable folder, and what it denies.
var pathAttempts = map[string]func(actor) error{
	"read protected":                opening("workspace/.git/config", unix.O_RDONLY),
	"write protected":               opening("workspace/.git/config", unix.O_WRONLY),
	"truncate protected":            func(a actor) error { return unix.Truncate(a.path("workspace/.git/config"), 0) },
	"create in protected":           opening("workspace/.git/hooks/pre-commit", unix.O_CREAT|unix.O_WRONLY),
	"unlink in protected":           func(a actor) error { return unix.Unlink(a.path("workspace/.git/config")) },
	"chmod protected":               func(a actor) error { return unix.Chmod(a.path("workspace/.git/config"), 0o777) },
	"set protected's times":         func(a actor) error { return unix.Utimes(a.path("workspace/.git/config"), make([]unix.Timeval, 2)) },
	"rename protected":              renaming("workspace/.git", "workspace/git"),
	"remove protected":              func(a actor) error { return unix.Rmdir(a.path("workspace/.git")) },
	"hard link protected":           func(a actor) error { return unix.Link(a.path("workspace/.git/config"), a.path("workspace/hard")) },
	"create in protected's parent":  opening("workspace/sub/new", unix.O_CREAT|unix.O_WRONLY),
	"remove protected's parent":     func(a actor) error { return unix.Rmdir(a.path("workspace/sub")) },
	"rename protected's parent":     renaming("workspace/sub", "workspace/moved"),
	"unmount protected":             func(a actor) error { return unix.Unmount(a.path("workspace/.git"), unix.MNT_DETACH) },
	"write protected through a cwd": writeFromInside,
	"write protected through /proc/self/root": func(a actor) error {
		return open("/proc/self/root"+a.path("workspace/.git/config"), unix.O_WRONLY)
	},
	"write protected through O_PATH": func(a actor) error {
		fd, err := unix.Open(a.path("workspace/.git/config"), unix.O_PATH, 0)
		if err != nil {
			return err
		}
		return open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY)
	},
	"write protected through a symlink": func(a actor) error {
		if err := os.Symlink(a.path("workspace/.git"), a.path("workspace/alias")); err != nil {
			return err
		}
		return open(a.path("workspace/alias/config"), unix.O_WRONLY)
	},
	"replace protected": func(a actor) error {
		if err := os.MkdirAll(a.path("workspace/evil"), 0o755); err != nil {
			return err
		}
		return unix.Rename(a.path("workspace/evil"), a.path("workspace/.git"))
	},
	"exchange protected": func(a actor) error {
		if err := os.MkdirAll(a.path("workspace/evil"), 0o755); err != nil {
			return err
		}
		return unix.Renameat2(unix.AT_FDCWD, a.path("workspace/evil"), unix.AT_FDCWD, a.path("workspace/.git"), unix.RENAME_EXCHANGE)
	},
	// Case 6: by another name of the parent. Where that cannot be renamed, its errno is the answer.
	"write protected through its renamed parent": func(a actor) error {
		if err := unix.Rename(a.path("workspace/sub"), a.path("workspace/moved")); err != nil {
			return err
		}
		return open(a.path("workspace/moved/.claude/settings.json"), unix.O_WRONLY)
	},
	"rename out of protected's parent": func(a actor) error {
		if err := os.WriteFile(a.path("workspace/sub/x"), nil, 0o644); err != nil {
			return err
		}
		return unix.Rename(a.path("workspace/sub/x"), a.path("workspace/x"))
	},

	"read denied in the workspace":   opening("workspace/secret/key", unix.O_RDONLY),
	"create denied in the workspace": opening("workspace/secret/new", unix.O_CREAT|unix.O_WRONLY),
	"rename denied in the workspace": renaming("workspace/secret", "workspace/open"),
	"list denied in the workspace": func(a actor) error {
		entries, err := os.ReadDir(a.path("workspace/secret"))
		if err == nil && len(entries) > 0 {
			return fmt.Errorf("found %s", entries[0].Name())
		}
		return err
	},

	"read a match":             opening("outside/a.key", unix.O_RDONLY),
	"read a deep match":        opening("outside/deep/er/b.key", unix.O_RDONLY),
	"read beside a deep match": opening("outside/deep/er/file", unix.O_RDONLY),
	"read a match by a link":   opening("outside/link-to-a-match", unix.O_RDONLY),
	"hard link a match":        func(a actor) error { return unix.Link(a.path("outside/a.key"), a.path("workspace/hard.key")) },
	"rename a match's parent":  renaming("outside/deep", "workspace/deep"),
	"read a match through /proc/self/root": func(a actor) error {
		return open("/proc/self/root"+a.path("outside/a.key"), unix.O_RDONLY)
	},
	"read a match through the agent's root": func(a actor) error {
		return open(a.proc("root"+a.path("outside/a.key")), unix.O_RDONLY)
	},
	"read a match through O_PATH": func(a actor) error {
		fd, err := unix.Open(a.path("outside/a.key"), unix.O_PATH, 0)
		if err != nil {
			return err
		}
		return open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY)
	},
	"read a match from inside": func(a actor) error {
		if err := unix.Chdir(a.path("outside")); err != nil {
			return err
		}
		return open("a.key", unix.O_RDONLY)
	},
	"git status": func(actor) error { return execShell("git status --short") },
	"git diff":   func(actor) error { return execShell("git diff") },
	"git add":    func(actor) error { return execShell("git add a/file") },
	"git commit": func(actor) error {
		return execShell("git -c user.name=a -c user.email=a@example.com commit --allow-empty -m x")
	},
	"git config":          func(actor) error { return execShell("git config core.fsmonitor ./evil") },
	"git init":            func(actor) error { return execShell("git init") },
	"edit a tracked file": func(actor) error { return execShell("echo x >> a/file") },

	"read /etc/passwd": func(actor) error { return open("/etc/passwd", unix.O_RDONLY) },
	"read /etc/group":  func(actor) error { return open("/etc/group", unix.O_RDONLY) },

	"create in what home is now": opening("home/planted", unix.O_CREAT|unix.O_WRONLY),
	"create in what home was":    opening("home-before/kept", unix.O_CREAT|unix.O_WRONLY),
	"write where the link leads": opening("home/file", unix.O_WRONLY),
}

func writeFromInside(a actor) error {
	if err := unix.Chdir(a.path("workspace/.git/hooks")); err != nil {
		return err
	}
	return open(filepath.Join("..", "config"), unix.O_WRONLY)
}
