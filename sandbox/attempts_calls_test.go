package sandbox

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func call(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		return errno
	}
	return nil
}

func calling(number uintptr, args ...uintptr) func(actor) error {
	return func(actor) error { return call(number, args...) }
}

// address keeps the buffer alive for the rest of the process: attempts are short.
func address(buffer []byte) uintptr {
	kept = append(kept, buffer)
	return uintptr(unsafe.Pointer(&buffer[0]))
}

var kept [][]byte

func onAgent(number uintptr, rest ...uintptr) func(actor) error {
	return func(a actor) error { return call(number, append([]uintptr{uintptr(a.agent)}, rest...)...) }
}

func readingAgent(rel string) func(actor) error {
	return func(a actor) error { return open(a.proc(rel), unix.O_RDONLY) }
}

var processAttempts = map[string]func(actor) error{
	"read the agent's environment":  readingAgent("environ"),
	"read the agent's memory":       readingAgent("mem"),
	"read the agent's maps":         readingAgent("maps"),
	"list the agent's descriptors":  readingAgent("fd"),
	"open the agent's descriptor":   readingAgent("fd/0"),
	"name the agent's descriptor":   func(a actor) error { _, err := os.Readlink(a.proc("fd/0")); return err },
	"read through the agent's root": readingAgent("root/etc/passwd"),
	"see the agent in ps":           readingAgent("stat"),
	"ptrace attach":                 func(a actor) error { return call(unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(a.agent)) },
	"ptrace seize":                  func(a actor) error { return call(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(a.agent)) },
	"ptrace traceme":                calling(unix.SYS_PTRACE, unix.PTRACE_TRACEME),
	"process_vm_readv":              onAgent(unix.SYS_PROCESS_VM_READV),
	"process_vm_writev":             onAgent(unix.SYS_PROCESS_VM_WRITEV),
	"kcmp":                          func(a actor) error { return call(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(a.agent)) },
	"pidfd_getfd": func(a actor) error {
		fd, err := unix.PidfdOpen(a.agent, 0)
		if err != nil {
			return err
		}
		_, err = unix.PidfdGetfd(fd, 0, 0)
		return err
	},
	"signal by pidfd": func(a actor) error {
		fd, err := unix.PidfdOpen(a.agent, 0)
		if err != nil {
			return err
		}
		return unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
	},
	"kill":            func(a actor) error { return unix.Kill(a.agent, unix.SIGKILL) },
	"stop":            func(a actor) error { return unix.Kill(a.agent, unix.SIGSTOP) },
	"terminate":       func(a actor) error { return unix.Kill(a.agent, unix.SIGTERM) },
	"kill its thread": func(a actor) error { return unix.Tgkill(a.agent, a.agent, unix.SIGUSR1) },
	"kill its group": func(a actor) error {
		group, err := unix.Getpgid(a.agent)
		if err != nil {
			return err
		}
		return unix.Kill(-group, unix.SIGTERM)
	},
	"queue a signal": onAgent(unix.SYS_RT_SIGQUEUEINFO, uintptr(unix.SIGUSR1), address(make([]byte, 128))),
	// The kernel says nothing to the owner of a descriptor: the agent counts what arrives.
	"signal by SIGIO":             signalByOwner,
	"signal itself":               func(actor) error { return unix.Kill(os.Getpid(), 0) },
	"prlimit of the agent":        onAgent(unix.SYS_PRLIMIT64, unix.RLIMIT_NOFILE, address([]byte{3, 15: 0})),
	"prlimit of itself":           calling(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, address(make([]byte, 16))),
	"lower its mark":              calling(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_LOCKS, address(make([]byte, 16))),
	"lower its mark, high word":   lowerMarkFromAbove,
	"lower its mark by setrlimit": calling(unix.SYS_SETRLIMIT, unix.RLIMIT_LOCKS, address(make([]byte, 16))),
	"read its mark":               calling(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_LOCKS, 0, address(make([]byte, 16))),
	"read its mark by getrlimit":  calling(unix.SYS_GETRLIMIT, unix.RLIMIT_LOCKS, address(make([]byte, 16))),
	"affinity of the agent":       onAgent(unix.SYS_SCHED_SETAFFINITY, 8, address([]byte{1, 7: 0})),
	"affinity of itself":          calling(unix.SYS_SCHED_SETAFFINITY, 0, 8, address([]byte{1, 7: 0})),
	"scheduler of the agent":      onAgent(unix.SYS_SCHED_SETSCHEDULER, unix.SCHED_BATCH, address(make([]byte, 8))),
	"parameters of the agent":     onAgent(unix.SYS_SCHED_SETPARAM, address(make([]byte, 8))),
	"nice of the agent":           func(a actor) error { return call(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, uintptr(a.agent), 5) },
	"nice of the agent's group":   func(a actor) error { return call(unix.SYS_SETPRIORITY, unix.PRIO_PGRP, uintptr(a.agent), 5) },
	"nice of the user":            calling(unix.SYS_SETPRIORITY, unix.PRIO_USER, 0, 5),
	// 19 is free also where the tests themselves run at a low priority.
	"nice of itself":            calling(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, 19),
	"I/O priority of the agent": func(a actor) error { return call(unix.SYS_IOPRIO_SET, 1, uintptr(a.agent), 3<<13) },
	"I/O priority of the user":  calling(unix.SYS_IOPRIO_SET, 3, 0, 3<<13),
	"I/O priority of itself":    calling(unix.SYS_IOPRIO_SET, 1, 0, 3<<13),
	"signal everything at once": func(actor) error { return unix.Kill(-1, unix.SIGUSR1) },
	"look at the agent's pidfd": func(a actor) error { _, err := unix.PidfdOpen(a.agent, 0); return err },
	"process_madvise":           calling(unix.SYS_PROCESS_MADVISE),
	"affinity with a high word": func(a actor) error {
		return call(unix.SYS_SCHED_SETAFFINITY, uintptr(a.agent)|1<<40, 8, address([]byte{1, 7: 0}))
	},
	"prlimit of self, high word": calling(unix.SYS_PRLIMIT64, 1<<40, unix.RLIMIT_CORE, address(make([]byte, 16))),
}

// lowerMarkFromAbove keeps the new limit at an address whose low half is 0.
func lowerMarkFromAbove(actor) error {
	const place = 1 << 33
	at, _, errno := unix.Syscall6(unix.SYS_MMAP, place, uintptr(os.Getpagesize()), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0)
	if errno != 0 {
		return fmt.Errorf("mapping: %w", errno)
	}
	if at != place {
		return fmt.Errorf("mapped at %#x", at)
	}
	return call(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_LOCKS, at)
}

func signalByOwner(a actor) error { return inputSignal(a.agent) }

// inputSignal makes the process the owner of a socket, which then has something to read.
func inputSignal(owner int) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(pair[0]), unix.F_SETOWN, owner); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(pair[0]), unix.F_SETFL, unix.O_ASYNC|unix.O_NONBLOCK); err != nil {
		return err
	}
	_, err = unix.Write(pair[1], []byte("x"))
	return err
}

var callAttempts = map[string]func(actor) error{
	"unshare a user namespace":  calling(unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
	"unshare a mount namespace": calling(unix.SYS_UNSHARE, unix.CLONE_NEWNS),
	"setns":                     calling(unix.SYS_SETNS, 0, 0),
	"clone a user namespace":    calling(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)),
	"clone a pid namespace":     calling(unix.SYS_CLONE, unix.CLONE_NEWPID|uintptr(unix.SIGCHLD)),
	"clone3":                    calling(unix.SYS_CLONE3, 0, 0),
	"io_uring_setup":            calling(unix.SYS_IO_URING_SETUP, 1, 0),
	"io_uring_enter":            calling(unix.SYS_IO_URING_ENTER),
	"mount":                     calling(unix.SYS_MOUNT),
	"umount2":                   calling(unix.SYS_UMOUNT2),
	"open_tree":                 calling(unix.SYS_OPEN_TREE),
	"move_mount":                calling(unix.SYS_MOVE_MOUNT),
	"fsopen":                    calling(unix.SYS_FSOPEN),
	"mount_setattr":             calling(unix.SYS_MOUNT_SETATTR),
	"pivot_root":                calling(unix.SYS_PIVOT_ROOT),
	"chroot":                    func(actor) error { return unix.Chroot("/") },
	"bpf":                       calling(unix.SYS_BPF),
	"perf_event_open":           calling(unix.SYS_PERF_EVENT_OPEN),
	"userfaultfd":               calling(unix.SYS_USERFAULTFD, 1),
	"keyctl":                    calling(unix.SYS_KEYCTL),
	"add_key":                   calling(unix.SYS_ADD_KEY),
	"request_key":               calling(unix.SYS_REQUEST_KEY),
	"name_to_handle_at":         calling(unix.SYS_NAME_TO_HANDLE_AT),
	"open_by_handle_at":         calling(unix.SYS_OPEN_BY_HANDLE_AT),
	"fanotify_init":             calling(unix.SYS_FANOTIFY_INIT),
	"init_module":               calling(unix.SYS_INIT_MODULE),
	"kexec_load":                calling(unix.SYS_KEXEC_LOAD),
	"reboot":                    calling(unix.SYS_REBOOT),
	"swapon":                    calling(unix.SYS_SWAPON),
	"acct":                      calling(unix.SYS_ACCT),
	"syslog":                    calling(unix.SYS_SYSLOG, 3),
	"quotactl":                  calling(unix.SYS_QUOTACTL),
	"move_pages":                calling(unix.SYS_MOVE_PAGES),
	"change the personality":    calling(unix.SYS_PERSONALITY, 0x0040000),
	"ask for the personality":   calling(unix.SYS_PERSONALITY, 0xffffffff),
	"x32 call":                  calling(0x40000000 + 39),
	"call that does not exist":  calling(100000),
	"memfd_create":              func(actor) error { _, err := unix.MemfdCreate("x", 0); return err },
	"landlock inside":           calling(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1),
	"getpriority, not refused":  calling(unix.SYS_GETPRIORITY, 0, 0),
}

var socketAttempts = map[string]func(actor) error{
	"TCP":              socket(unix.AF_INET, unix.SOCK_STREAM, 0),
	"TCP over IPv6":    socket(unix.AF_INET6, unix.SOCK_STREAM, 0),
	"TCP, nonblocking": socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP),
	"UDP":              socket(unix.AF_INET, unix.SOCK_DGRAM, 0),
	"UDP over IPv6":    socket(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP),
	"ping socket":      socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP),
	"raw socket":       socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
	"MPTCP":            socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP),
	"SCTP":             socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP),
	"packet socket":    socket(unix.AF_PACKET, unix.SOCK_RAW, 0),
	"vsock":            socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0),
	"AF_ALG":           socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
	"AF_KEY":           socket(unix.AF_KEY, unix.SOCK_RAW, 2),
	"Bluetooth":        socket(unix.AF_BLUETOOTH, unix.SOCK_RAW, 0),
	"TIPC pair":        func(actor) error { _, err := unix.Socketpair(unix.AF_TIPC, unix.SOCK_STREAM, 0); return err },
	"netlink route":    socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE),
	"netlink audit":    socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT),
	"Unix socket":      socket(unix.AF_UNIX, unix.SOCK_STREAM, 0),
	"Unix pair":        func(actor) error { _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0); return err },
	"fast open":        fastOpen,
	"fast open by option": func(actor) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)
	},
	"the agent's abstract socket": func(a actor) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		return unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + a.abstract})
	},
	"a Unix socket in the workspace": func(a actor) error {
		return serveAndConnect(a.path("workspace/socket"))
	},
	"its own abstract socket": func(actor) error {
		return serveAndConnect(fmt.Sprintf("@execsession-attempt-%d", os.Getpid()))
	},
}

func socket(family, kind, protocol int) func(actor) error {
	return func(actor) error {
		_, err := unix.Socket(family, kind, protocol)
		return err
	}
}

func fastOpen(actor) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	return unix.Sendto(pair[0], []byte("x"), unix.MSG_FASTOPEN, nil)
}

func serveAndConnect(name string) error {
	server, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(server, &unix.SockaddrUnix{Name: name}); err != nil {
		return err
	}
	if err := unix.Listen(server, 1); err != nil {
		return err
	}
	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	return unix.Connect(client, &unix.SockaddrUnix{Name: name})
}

// execAttempt replaces this process by another attempt of that binary; what it prints is the outcome.
func execAttempt(binary, attempt string) error {
	environment := []string{"ATTEMPT=" + attempt}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "ATTEMPT=") {
			environment = append(environment, variable)
		}
	}
	return syscall.Exec(binary, []string{binary}, environment)
}

func execMemfd(a actor, attempt string) error {
	fd, err := unix.MemfdCreate("copy", 0)
	if err != nil {
		return err
	}
	source, err := os.Open(a.path("agent/bin/sandbox.test"))
	if err != nil {
		return err
	}
	target := os.NewFile(uintptr(fd), "memfd")
	if _, err := io.Copy(target, source); err != nil {
		return err
	}
	err = execAttempt(fmt.Sprintf("/proc/self/fd/%d", fd), attempt)
	runtime.KeepAlive(target)
	return err
}

func execShell(script string) error {
	out, err := exec.Command("/bin/sh", "-c", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
