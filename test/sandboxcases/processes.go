//go:build linux

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// agent is the process id that agentd has, which starts all commands of a pod.
const agent = 1

// attempts are all that are made in this program.
var attempts = func() map[string]func() error {
	all := make(map[string]func() error)
	for _, group := range []map[string]func() error{fileAttempts, processAttempts, callAttempts, socketAttempts, proxyAttempts, archAttempts} {
		maps.Copy(all, group)
	}
	return all
}()

func call(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		return errno
	}
	return nil
}

func calling(number uintptr, args ...uintptr) func() error {
	return func() error { return call(number, args...) }
}

// address is where a buffer is; buffers live as long as the process.
func address(buffer []byte) uintptr {
	kept = append(kept, buffer)
	return uintptr(unsafe.Pointer(&buffer[0]))
}

var kept [][]byte

func withAgent(f func(pidfd int) error) func() error {
	return func() error {
		fd, err := unix.PidfdOpen(agent, 0)
		if err != nil {
			return err
		}
		return f(fd)
	}
}

// onAnother acts on another process of the same user and sandbox.
func onAnother(f func(pid int) error) func() error {
	return func() error {
		other := exec.Command("sleep", "60") //nolint:noctx // killed below
		if err := other.Start(); err != nil {
			return err
		}
		err := f(other.Process.Pid)
		_ = other.Process.Kill()
		_ = other.Wait()
		return err
	}
}

func limit(resource int) func() error {
	return calling(unix.SYS_PRLIMIT64, agent, uintptr(resource), address([]byte{3, 15: 0}))
}

var processAttempts = map[string]func() error{
	"ptrace attach":          calling(unix.SYS_PTRACE, unix.PTRACE_ATTACH, agent),
	"ptrace seize":           calling(unix.SYS_PTRACE, unix.PTRACE_SEIZE, agent),
	"ptrace another command": onAnother(func(pid int) error { return call(unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(pid)) }),
	"ptrace traceme":         calling(unix.SYS_PTRACE, unix.PTRACE_TRACEME),
	"process_vm_readv":       calling(unix.SYS_PROCESS_VM_READV, agent),
	"process_vm_writev":      calling(unix.SYS_PROCESS_VM_WRITEV, agent),
	"pidfd_getfd":            withAgent(func(fd int) error { _, err := unix.PidfdGetfd(fd, 0, 0); return err }),
	"kill":                   func() error { return unix.Kill(agent, unix.SIGKILL) },
	"stop":                   func() error { return unix.Kill(agent, unix.SIGSTOP) },
	"terminate":              func() error { return unix.Kill(agent, unix.SIGTERM) },
	"signal by pidfd":        withAgent(func(fd int) error { return unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0) }),
	// It ends what runs under the same rules, this process's parent too, so that nothing is sent.
	"signal everything":           func() error { return unix.Kill(-1, 0) },
	"signal by SIGIO":             signalByOwner,
	"limit the agent's files":     limit(unix.RLIMIT_NOFILE),
	"limit the agent's time":      limit(unix.RLIMIT_CPU),
	"limit the agent's memory":    limit(unix.RLIMIT_AS),
	"take the agent's processors": calling(unix.SYS_SCHED_SETAFFINITY, agent, 8, address([]byte{1, 7: 0})),
	"schedule the agent":          calling(unix.SYS_SCHED_SETSCHEDULER, agent, unix.SCHED_BATCH, address(make([]byte, 8))),
	"renice the agent":            calling(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, agent, 5),
	"renice the user":             calling(unix.SYS_SETPRIORITY, unix.PRIO_USER, 0, 5),
	"renice the group":            calling(unix.SYS_SETPRIORITY, unix.PRIO_PGRP, 0, 5),
	"slow the agent's disk":       calling(unix.SYS_IOPRIO_SET, 1, agent, 3<<13),
	"look at its descriptors":     ownDescriptors,
	"look at its environment":     ownEnvironment,
	"dump core":                   dumpCore,
	"open 100000 descriptors":     openMany,
	"20000 refused sockets":       refusedSockets,
}

func signalByOwner() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(pair[0]), unix.F_SETOWN, agent); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(pair[0]), unix.F_SETFL, unix.O_ASYNC|unix.O_NONBLOCK); err != nil {
		return err
	}
	_, err = unix.Write(pair[1], []byte("x"))
	return err
}

// ownDescriptors finds what came along beyond the three: Go's own are closed on exec.
func ownDescriptors() error {
	for fd := 3; fd < 1024; fd++ {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			name, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			return fmt.Errorf("descriptor %d is %s", fd, name)
		}
	}
	return nil
}

func ownEnvironment() error {
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		for _, foreign := range []string{"AGENTD_", "LD_", "GIT_", "BASH_ENV", "PYTHONSTARTUP", "SSH_AUTH_SOCK"} {
			// What keeps pagers and prompts of git away, and whose the workspace is, agentd sets for every command.
			if strings.HasPrefix(name, foreign) && !slices.Contains([]string{"GIT_PAGER", "GIT_TERMINAL_PROMPT"}, name) && !strings.HasPrefix(name, "GIT_CONFIG_") {
				return fmt.Errorf("%s is set", name)
			}
		}
	}
	return nil
}

// dumpCore asks for a core as far as its limits let it, and aborts.
func dumpCore() error {
	child := exec.Command("sh", "-c", "ulimit -c unlimited 2>/dev/null; kill -ABRT $$") //nolint:noctx // ends by itself
	_ = child.Run()
	status, ok := child.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return fmt.Errorf("it ended with %v", child.ProcessState)
	}
	if status.CoreDump() {
		return errors.New("a core was dumped")
	}
	return nil
}

func openMany() error {
	for range 100_000 {
		if _, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
	}
	return nil
}

func refusedSockets() error {
	var last error
	for range 20_000 {
		if _, last = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); !errors.Is(last, unix.EACCES) {
			break
		}
	}
	return last
}

var callAttempts = map[string]func() error{
	"clone3":             calling(unix.SYS_CLONE3, 0, 0),
	"clone NEWUSER":      calling(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)),
	"unshare NEWUSER":    calling(unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
	"setns":              calling(unix.SYS_SETNS, 0, 0),
	"mount":              calling(unix.SYS_MOUNT),
	"open_tree":          calling(unix.SYS_OPEN_TREE),
	"fsopen":             calling(unix.SYS_FSOPEN),
	"move_mount":         calling(unix.SYS_MOVE_MOUNT),
	"pivot_root":         calling(unix.SYS_PIVOT_ROOT),
	"chroot":             func() error { return unix.Chroot("/") },
	"bpf":                calling(unix.SYS_BPF),
	"perf_event_open":    calling(unix.SYS_PERF_EVENT_OPEN),
	"userfaultfd":        calling(unix.SYS_USERFAULTFD, 1),
	"keyctl":             calling(unix.SYS_KEYCTL),
	"add_key":            calling(unix.SYS_ADD_KEY),
	"io_uring_setup":     calling(unix.SYS_IO_URING_SETUP, 1, 0),
	"io_uring_enter":     calling(unix.SYS_IO_URING_ENTER),
	"io_uring_register":  calling(unix.SYS_IO_URING_REGISTER),
	"TIOCSTI":            terminalCall(unix.TIOCSTI),
	"TIOCSTI, high bits": terminalCall(unix.TIOCSTI | 1<<40),
	"TIOCLINUX":          terminalCall(unix.TIOCLINUX),
	"TIOCSETD":           terminalCall(unix.TIOCSETD),
}

func terminalCall(command uintptr) func() error {
	return func() error {
		main, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.IoctlSetPointerInt(main, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		number, err := unix.IoctlGetUint32(main, unix.TIOCGPTN)
		if err != nil {
			return err
		}
		fd, err := unix.Open(fmt.Sprintf("/dev/pts/%d", number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return call(unix.SYS_IOCTL, uintptr(fd), command, address(make([]byte, 64)))
	}
}

// programs are attempts made by programs that everybody has.
var programs = map[string][]string{
	"bwrap":                 {"bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"},
	"unshare -r":            {"unshare", "-r", "true"},
	"strace":                {"strace", "-f", "true"},
	"curl":                  {"curl", "-sS", "--max-time", "20", "http://192.0.2.1/"},
	"curl IPv6":             {"curl", "-sS", "--max-time", "20", "http://[2001:db8::1]/"},
	"wget":                  {"wget", "-q", "-T", "20", "-t", "1", "-O", "/dev/null", "http://192.0.2.1/"},
	"nc":                    {"nc", "-w", "20", "192.0.2.1", "80"},
	"ssh":                   {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "192.0.2.1", "true"},
	"getent":                {"getent", "hosts", "example.com"},
	"bash /dev/tcp":         {"bash", "-c", "exec 3<>/dev/tcp/192.0.2.1/80"},
	"python socket":         {"python3", "-c", "import socket; socket.create_connection(('192.0.2.1', 80), 20)"},
	"through the loader":    {"sh", "-c", "cp /usr/bin/touch loaded && exec $(ls /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.* 2>/dev/null | head -1) ./loaded " + outside + "/loaded"},
	"a copy of busybox":     {"sh", "-c", "cp $(command -v busybox) busybox && exec ./busybox touch " + outside + "/busybox"},
	"read the denied files": {"cat", denied + "/secret"},
}
