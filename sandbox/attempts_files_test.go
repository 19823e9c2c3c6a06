package sandbox

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// actor knows where an attempt finds what it attacks.
type actor struct {
	base     string
	agent    int
	abstract string
	// bystander is a process of another command.
	bystander int
}

func (a actor) path(rel string) string { return filepath.Join(a.base, rel) }

func (a actor) proc(rel string) string { return fmt.Sprintf("/proc/%d/%s", a.agent, rel) }

// attempts are everything that a command may try; each returns the errno that it met.
var attempts = func() map[string]func(actor) error {
	all := make(map[string]func(actor) error)
	for _, group := range []map[string]func(actor) error{fileAttempts, pathAttempts, deviceAttempts, processAttempts, signalAttempts, callAttempts, socketAttempts, networkAttempts, programAttempts} {
		maps.Copy(all, group)
	}
	return all
}()

func open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func opening(rel string, flags int) func(actor) error {
	return func(a actor) error { return open(a.path(rel), flags) }
}

var fileAttempts = map[string]func(actor) error{
	"create at the workspace's top": opening("workspace/new", unix.O_CREAT|unix.O_WRONLY),
	"create in home":                opening("home/new", unix.O_CREAT|unix.O_WRONLY),
	"create in tmp":                 opening("tmp/new", unix.O_CREAT|unix.O_WRONLY),
	"read outside":                  opening("outside/file", unix.O_RDONLY),
	"write outside":                 opening("outside/file", unix.O_WRONLY),
	"create outside":                opening("outside/new", unix.O_CREAT|unix.O_WRONLY),
	"mkdir outside":                 func(a actor) error { return unix.Mkdir(a.path("outside/dir"), 0o755) },
	"mkfifo outside":                func(a actor) error { return unix.Mkfifo(a.path("outside/fifo"), 0o644) },
	"symlink outside":               func(a actor) error { return unix.Symlink("x", a.path("outside/link")) },
	"unlink outside":                func(a actor) error { return unix.Unlink(a.path("outside/file")) },
	"truncate outside":              func(a actor) error { return unix.Truncate(a.path("outside/file"), 1) },
	"truncate in the workspace":     func(a actor) error { return unix.Truncate(a.path("workspace/a/file"), 8) },
	"open outside with O_TRUNC":     opening("outside/file", unix.O_RDONLY|unix.O_TRUNC),
	"open outside with O_TRUNC and mode 3": func(a actor) error {
		return open(a.path("outside/file"), 3|unix.O_TRUNC)
	},
	"openat2 outside with O_TRUNC": func(a actor) error {
		fd, err := unix.Openat2(unix.AT_FDCWD, a.path("outside/file"), &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_TRUNC})
		if err != nil {
			return err
		}
		return unix.Close(fd)
	},
	"write outside through a symlink": func(a actor) error {
		link := a.path("workspace/link-out")
		_ = os.Remove(link)
		if err := os.Symlink(a.path("outside/file"), link); err != nil {
			return err
		}
		return open(link, unix.O_WRONLY)
	},
	"write outside through /proc/self/root": func(a actor) error {
		return open("/proc/self/root"+a.path("outside/file"), unix.O_WRONLY)
	},
	"write outside through O_PATH": func(a actor) error {
		fd, err := unix.Open(a.path("outside/file"), unix.O_PATH, 0)
		if err != nil {
			return err
		}
		return open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY)
	},
	"hard link into the workspace": func(a actor) error {
		return unix.Link(a.path("outside/file"), a.path("workspace/hard"))
	},
	"rename into the workspace": func(a actor) error {
		return unix.Rename(a.path("outside/file"), a.path("workspace/moved"))
	},
	"rename out of the workspace": func(a actor) error {
		if err := os.WriteFile(a.path("workspace/out"), nil, 0o644); err != nil {
			return err
		}
		return unix.Rename(a.path("workspace/out"), a.path("outside/out"))
	},
	"rename between folders of the workspace": func(a actor) error {
		if err := os.WriteFile(a.path("workspace/a/x"), nil, 0o644); err != nil {
			return err
		}
		return unix.Rename(a.path("workspace/a/x"), a.path("workspace/b/x"))
	},
	"write and rename as an editor": func(a actor) error {
		if err := os.WriteFile(a.path("workspace/file.tmp"), []byte("x"), 0o644); err != nil {
			return err
		}
		return os.Rename(a.path("workspace/file.tmp"), a.path("workspace/file"))
	},
	"rename the workspace":   func(a actor) error { return unix.Rename(a.path("workspace"), a.path("elsewhere")) },
	"read hidden":            opening("agent/config/profile.json", unix.O_RDONLY),
	"write hidden":           opening("agent/journal/log", unix.O_WRONLY),
	"create hidden":          opening("agent/journal/new", unix.O_CREAT|unix.O_WRONLY),
	"unlink hidden":          func(a actor) error { return unix.Unlink(a.path("agent/journal/log")) },
	"read beside hidden":     opening("agent/bin/readme", unix.O_RDONLY),
	"create beside hidden":   opening("agent/new", unix.O_CREAT|unix.O_WRONLY),
	"list the parent":        opening("agent", unix.O_RDONLY|unix.O_DIRECTORY),
	"list /":                 func(actor) error { return open("/", unix.O_RDONLY|unix.O_DIRECTORY) },
	"hard link hidden":       func(a actor) error { return unix.Link(a.path("agent/config/profile.json"), a.path("workspace/h")) },
	"rename hidden's parent": func(a actor) error { return unix.Rename(a.path("agent"), a.path("workspace/agent")) },
	"read hidden through O_PATH": func(a actor) error {
		fd, err := unix.Open(a.path("agent/config"), unix.O_PATH, 0)
		if err != nil {
			return err
		}
		return open(fmt.Sprintf("/proc/self/fd/%d/profile.json", fd), unix.O_RDONLY)
	},
	"read hidden from inside": func(a actor) error {
		if err := unix.Chdir(a.path("agent/config")); err != nil {
			return err
		}
		return open("profile.json", unix.O_RDONLY)
	},
	"the folder is the workspace": func(a actor) error {
		dir, err := os.Getwd()
		if err == nil && dir != a.path("workspace") {
			return fmt.Errorf("in %s", dir)
		}
		return err
	},
}

var deviceAttempts = map[string]func(actor) error{
	"write /dev/null":   func(actor) error { return open("/dev/null", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC) },
	"read /dev/zero":    func(actor) error { return open("/dev/zero", unix.O_RDONLY) },
	"read /dev/urandom": func(actor) error { return open("/dev/urandom", unix.O_RDONLY) },
	"write stderr by name": func(actor) error {
		return open("/dev/stderr", unix.O_WRONLY)
	},
	"list /dev": func(actor) error { return open("/dev", unix.O_RDONLY|unix.O_DIRECTORY) },
	"open a disk": func(actor) error {
		if disk := anyDisk(); disk != "" {
			return open(disk, unix.O_RDONLY)
		}
		return unix.EACCES // counted as skipped by the test that prints the reason
	},
	"use a new terminal": func(actor) error {
		fd, err := newTerminal()
		if err != nil {
			return err
		}
		if _, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err != nil {
			return err
		}
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
	},
	"TIOCSTI":                terminalCall(unix.TIOCSTI),
	"TIOCSTI with high bits": terminalCall(unix.TIOCSTI | 1<<40),
	"TIOCLINUX":              terminalCall(unix.TIOCLINUX),
	"TIOCSETD":               terminalCall(unix.TIOCSETD),
	"write core_pattern":     func(actor) error { return open("/proc/sys/kernel/core_pattern", unix.O_WRONLY) },
	"write /proc/self/mem":   func(actor) error { return open("/proc/self/mem", unix.O_RDWR) },
	"read /proc/self/status": func(actor) error { return open("/proc/self/status", unix.O_RDONLY) },
	"write /sys":             func(actor) error { return open("/sys/kernel/mm/transparent_hugepage/enabled", unix.O_WRONLY) },
}

func anyDisk() string {
	for _, pattern := range []string{"/dev/vd?", "/dev/sd?", "/dev/nvme?n?", "/dev/loop?"} {
		if paths, _ := filepath.Glob(pattern); len(paths) > 0 {
			return paths[0]
		}
	}
	return ""
}

// newTerminal opens both ends by path, as programs do, and returns the second one.
func newTerminal() (int, error) {
	main, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.IoctlSetPointerInt(main, unix.TIOCSPTLCK, 0); err != nil {
		return -1, err
	}
	number, err := unix.IoctlGetUint32(main, unix.TIOCGPTN)
	if err != nil {
		return -1, err
	}
	return unix.Open(fmt.Sprintf("/dev/pts/%d", number), unix.O_RDWR|unix.O_NOCTTY, 0)
}

func terminalCall(command uintptr) func(actor) error {
	return func(actor) error {
		fd, err := newTerminal()
		if err != nil {
			return err
		}
		return call(unix.SYS_IOCTL, uintptr(fd), command, address(make([]byte, 64)))
	}
}

var programAttempts = map[string]func(actor) error{
	"status": func(actor) error {
		data, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return err
		}
		for _, want := range []string{
			"\nNoNewPrivs:\t1\n", "\nSeccomp:\t2\n", "\nCapEff:\t0000000000000000\n", "\nCapPrm:\t0000000000000000\n", "\nCapInh:\t0000000000000000\n",
		} {
			if !strings.Contains(string(data), want) {
				return fmt.Errorf("status lacks %q", want)
			}
		}
		return nil
	},
	"descriptors": func(actor) error {
		for fd := 3; fd < 256; fd++ {
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			if err == nil && flags&unix.FD_CLOEXEC == 0 { // Go's own are close-on-exec, those that came along are not
				name, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
				return fmt.Errorf("descriptor %d is %s", fd, name)
			}
		}
		return nil
	},
	"environment": func(actor) error {
		if slices.ContainsFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "AGENT_SECRET") }) {
			return fmt.Errorf("the agent's environment came along")
		}
		return nil
	},
	"write outside from a memfd": func(a actor) error { return execMemfd(a, "write outside") },
	"status from a memfd":        func(a actor) error { return execMemfd(a, "status") },
	"gain a user by setuid": func(a actor) error {
		return execAttempt(a.path("agent/bin/setuid.test"), "has no other user")
	},
	"has no other user": func(actor) error {
		if os.Geteuid() != os.Getuid() {
			return fmt.Errorf("euid is %d, uid %d", os.Geteuid(), os.Getuid())
		}
		return nil
	},
	"run hidden": func(a actor) error {
		return syscall.Exec(a.path("agent/config/profile.json"), []string{"x"}, nil)
	},
	"run through a shell": func(a actor) error {
		return execShell("echo x > /dev/null && ls / > /dev/null && cat " + a.path("outside/file") + " > workspace-copy && ! (echo y >> " + a.path("outside/file") + ") 2> /dev/null")
	},
}
