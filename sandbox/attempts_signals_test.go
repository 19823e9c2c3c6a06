package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	maps.Copy(expected, map[string]string{
		"signal another command":                     "EPERM",
		"look for another command":                   "EPERM",
		"signal another command's group":             "EPERM",
		"signal another command's thread":            "EPERM",
		"signal another command's tid":               "EPERM",
		"queue a signal to another command":          "EPERM",
		"signal another command by pidfd":            "EPERM",
		"signal the agent by the number of a thread": "EPERM",
		"preempt the agent":                          "EPERM",
		"signal a child":                             "",
		"signal a child by pidfd":                    "",
		"queue a signal to a child":                  "",
		"queue a signal in the kernel's name":        "EPERM",
		"signal a child's group":                     "",
		"signal a child in its own session":          "",
		"signal everything while it has a child":     "",
		"signal a child's thread":                    "",
		"signal that does not exist":                 "EINVAL",
		"signal a child that is gone":                "ESRCH",
		"pidfd that does not exist":                  "EBADF",
		"pidfd that is none":                         "EBADF",
		"signal its own group":                       "",
		"signal its own group by number":             "",
		"catch its own signal":                       "",
		"catch a queued signal":                      "",
		"catch its own SIGIO":                        "",
		"signal a thread of its own":                 "",
		"signal a thread of its own by tkill":        "",
		"own a socket by FIOSETOWN":                  "",
		"own a socket by SIOCSPGRP":                  "",
		"own a socket by F_SETOWNEX":                 "EPERM",
		"SIGIO of a program with one thread":         "",
		"SIGIO by FIOASYNC":                          "",
		"SIGIO from a terminal":                      "",
		"SIGIO from a terminal by FIOASYNC":          "",
		"SIGIO from a descriptor that is not":        "EBADF",
		"disown a socket":                            "",
		"timeout of a command":                       "",
		"jobs of a shell":                            "",
		"kill 0 of a shell":                          "",
	})
}

// signalAttempts are what a command does with its own processes, which has to work, and what it tries with those of another command.
var signalAttempts = map[string]func(actor) error{
	"signal another command":            func(a actor) error { return unix.Kill(a.bystander, unix.SIGKILL) },
	"look for another command":          func(a actor) error { return unix.Kill(a.bystander, 0) },
	"signal another command's group":    func(a actor) error { return unix.Kill(-a.bystander, unix.SIGKILL) },
	"signal another command's thread":   func(a actor) error { return unix.Tgkill(a.bystander, a.bystander, unix.SIGKILL) },
	"signal another command's tid":      func(a actor) error { return call(unix.SYS_TKILL, uintptr(a.bystander), uintptr(unix.SIGKILL)) },
	"queue a signal to another command": func(a actor) error { return queueSignal(a.bystander, unix.SIGTERM, siQueue) },
	"signal another command by pidfd": func(a actor) error {
		fd, err := unix.PidfdOpen(a.bystander, 0)
		if err != nil {
			return err
		}
		return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	},
	"signal the agent by the number of a thread": func(a actor) error {
		entries, err := os.ReadDir(a.proc("task"))
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if thread := atoi(entry.Name()); thread != a.agent {
				return unix.Kill(thread, unix.SIGTERM)
			}
		}
		return errors.New("the agent has one thread only")
	},

	"preempt the agent": func(a actor) error { return unix.Tgkill(a.agent, a.agent, unix.SIGURG) },

	"signal a child": onChild(nil, func(pid int) error { return unix.Kill(pid, unix.SIGTERM) }),
	"signal a child by pidfd": onChild(nil, func(pid int) error {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		return unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
	}),
	"queue a signal to a child":              onChild(nil, func(pid int) error { return queueSignal(pid, unix.SIGTERM, siQueue) }),
	"queue a signal in the kernel's name":    onChild(nil, func(pid int) error { return queueSignal(pid, unix.SIGTERM, siUser) }),
	"signal a child's group":                 onChild(&syscall.SysProcAttr{Setpgid: true}, func(pid int) error { return unix.Kill(-pid, unix.SIGTERM) }),
	"signal a child in its own session":      onChild(&syscall.SysProcAttr{Setsid: true}, func(pid int) error { return unix.Kill(pid, unix.SIGTERM) }),
	"signal everything while it has a child": onChild(&syscall.SysProcAttr{Setsid: true}, func(int) error { return unix.Kill(-1, unix.SIGTERM) }),
	"signal a child's thread":                onChild(nil, func(pid int) error { return unix.Tgkill(pid, pid, unix.SIGTERM) }),
	"signal that does not exist":             onChild(nil, func(pid int) error { return unix.Kill(pid, 65) }),
	"signal a child that is gone": func(actor) error {
		cmd := exec.Command("/bin/true")
		if err := cmd.Run(); err != nil {
			return err
		}
		return unix.Kill(cmd.Process.Pid, unix.SIGTERM)
	},
	"pidfd that does not exist": func(actor) error { return unix.PidfdSendSignal(-1, unix.SIGTERM, nil, 0) },
	"pidfd that is none":        func(actor) error { return unix.PidfdSendSignal(0, unix.SIGTERM, nil, 0) },
	"signal its own group":      catching(unix.SIGUSR1, func() error { return unix.Kill(0, unix.SIGUSR1) }),
	"signal its own group by number": catching(unix.SIGUSR1, func() error {
		return unix.Kill(-unix.Getpgrp(), unix.SIGUSR1)
	}),
	"catch its own signal":       catching(unix.SIGUSR1, func() error { return unix.Kill(os.Getpid(), unix.SIGUSR1) }),
	"catch a queued signal":      catching(unix.SIGUSR1, func() error { return queueSignal(os.Getpid(), unix.SIGUSR1, siUser) }),
	"catch its own SIGIO":        catching(unix.SIGIO, func() error { return inputSignal(os.Getpid()) }),
	"signal a thread of its own": catching(unix.SIGUSR1, func() error { return unix.Tgkill(os.Getpid(), os.Getpid(), unix.SIGUSR1) }),
	"signal a thread of its own by tkill": catching(unix.SIGUSR1, func() error {
		return onOtherThread(func() error { return call(unix.SYS_TKILL, uintptr(os.Getpid()), uintptr(unix.SIGUSR1)) })
	}),
	"own a socket by FIOSETOWN": func(actor) error {
		return ownSocket(func(fd int) error { return unix.IoctlSetPointerInt(fd, fioSetOwner, os.Getpid()) })
	},
	"own a socket by SIOCSPGRP": func(actor) error {
		return ownSocket(func(fd int) error { return unix.IoctlSetPointerInt(fd, siocSetPgrp, os.Getpid()) })
	},
	"own a socket by F_SETOWNEX": func(actor) error { return ownSocket(setOwnerEx) },
	"SIGIO of a program with one thread": perl(`socketpair(S, T, 1, 1, 0) or exit 99;
		fcntl(S, 8, $$+0) or exit $!+0; fcntl(S, 4, 0x2000) or exit $!+0; syswrite(T, "x"); sleep 600; exit 98`),
	"SIGIO by FIOASYNC": perl(`socketpair(S, T, 1, 1, 0) or exit 99;
		fcntl(S, 8, $$+0) or exit $!+0; $on = pack("i", 1); ioctl(S, 0x5452, $on) or exit $!+0; syswrite(T, "x"); sleep 600; exit 98`),
	"SIGIO from a terminal":               perl(`open(T, "+<", "/dev/ptmx") or exit 99; fcntl(T, 4, 0x2002) or exit $!+0; exit 0`),
	"SIGIO from a terminal by FIOASYNC":   perl(`open(T, "+<", "/dev/ptmx") or exit 99; $on = pack("i", 1); ioctl(T, 0x5452, $on) or exit $!+0; exit 0`),
	"SIGIO from a descriptor that is not": func(actor) error { return call(unix.SYS_FCNTL, 250, fSetFlags, oAsync) },
	"disown a socket": func(actor) error {
		return ownSocket(func(fd int) error { return call(unix.SYS_FCNTL, uintptr(fd), fSetOwner, 0) })
	},
	"timeout of a command": func(actor) error {
		var ended *exec.ExitError
		if err := exec.Command("timeout", "0.1", "sleep", "600").Run(); !errors.As(err, &ended) || ended.ExitCode() != 124 {
			return fmt.Errorf("timeout ended with %w", err)
		}
		return nil
	},
	"jobs of a shell": func(actor) error {
		script := `set -m; sleep 600 & kill %1; wait %1; [ $? -eq 143 ] || exit 1; sleep 600 & kill -KILL -- -$!; wait $!; [ $? -eq 137 ]`
		if out, err := exec.Command("bash", "-c", script).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	},
	"kill 0 of a shell": onChild(&syscall.SysProcAttr{Setpgid: true}, func(pid int) error {
		cmd := exec.Command("/bin/sh", "-c", "trap 'exit 7' TERM; kill 0; exit 1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: pid}
		var ended *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &ended) || ended.ExitCode() != 7 {
			return fmt.Errorf("the shell ended with %w", err)
		}
		return nil
	}),
}

// The codes of a signal's information: who is no kernel may claim the first only.
const (
	siQueue = -1
	siUser  = 0
)

func queueSignal(pid int, number syscall.Signal, code int32) error {
	info := unix.Siginfo{Signo: int32(number), Code: code}
	return call(unix.SYS_RT_SIGQUEUEINFO, uintptr(pid), uintptr(number), uintptr(unsafe.Pointer(&info)))
}

// onChild expects that the child ends by SIGTERM if the call works.
func onChild(attr *syscall.SysProcAttr, f func(pid int) error) func(actor) error {
	return func(actor) error {
		cmd := exec.Command("sleep", "600")
		cmd.SysProcAttr = attr
		if err := cmd.Start(); err != nil {
			return err
		}
		err := f(cmd.Process.Pid)
		if err != nil {
			_ = unix.Kill(cmd.Process.Pid, unix.SIGKILL)
		}
		_ = cmd.Wait()
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); err == nil && status.Signal() != unix.SIGTERM {
			return fmt.Errorf("the child ended with %v", cmd.ProcessState)
		}
		return err
	}
}

// catching expects the signal exactly once: one more would arrive before a second kind that follows it.
func catching(number syscall.Signal, f func() error) func(actor) error {
	return func(actor) error {
		arrived := make(chan os.Signal, 16)
		signal.Notify(arrived, number, unix.SIGUSR2)
		if err := f(); err != nil {
			return err
		}
		if err := await(arrived, number); err != nil {
			return err
		}
		if err := unix.Kill(os.Getpid(), unix.SIGUSR2); err != nil {
			return err
		}
		return await(arrived, unix.SIGUSR2)
	}
}

func await(arrived <-chan os.Signal, want os.Signal) error {
	select {
	case got := <-arrived:
		if got != want {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	case <-time.After(deadline):
		return fmt.Errorf("%v never arrived", want)
	}
}

func onOtherThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the main thread is held by the caller
		defer runtime.UnlockOSThread()
		result <- f()
	}()
	return <-result
}

func ownSocket(f func(fd int) error) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	return f(pair[0])
}

// perl is a program with one thread, which ends with the errno that it met, or by SIGIO.
func perl(program string) func(actor) error {
	return func(actor) error {
		err := exec.Command("perl", "-e", program).Run()
		ended, ok := errors.AsType[*exec.ExitError](err)
		switch {
		case !ok:
			return err
		case ended.Sys().(syscall.WaitStatus).Signal() == unix.SIGIO:
			return nil
		}
		return syscall.Errno(ended.ExitCode())
	}
}

func setOwnerEx(fd int) error {
	owner := struct{ kind, pid int32 }{1, int32(os.Getpid())}
	return call(unix.SYS_FCNTL, uintptr(fd), fSetOwnerEx, uintptr(unsafe.Pointer(&owner)))
}

// startBystander starts a command that has nothing to do with the others; end says how it was harmed.
func startBystander(start startWatched) (pid int, end func() error, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	over := make(chan struct{})
	pid, err = start("/bin/sleep", []string{"sleep", "600"}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{null.Fd(), null.Fd(), null.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	}, Watch{OnEnd: func() { close(over) }})
	if err != nil {
		return 0, nil, err
	}
	return pid, func() error {
		if err := unix.Kill(pid, unix.SIGALRM); err != nil {
			return err
		}
		var status syscall.WaitStatus
		_, err := syscall.Wait4(pid, &status, 0, nil)
		<-over
		if err == nil && status.Signal() != unix.SIGALRM {
			err = fmt.Errorf("another command ended by %v", status.Signal())
		}
		return err
	}, nil
}
