package main

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// onLinux says that a cluster can be booted here; elsewhere only build and env do anything.
const onLinux = true

// detach makes a command outlive this program and its terminal.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
}

// tryLock takes an exclusive lock on an open file and says whether it got it. The kernel drops it with the process.
func tryLock(file *os.File) (bool, error) {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

func terminate(pid int) error { return syscall.Kill(pid, syscall.SIGTERM) }

func kill(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }

// unmount detaches a mount even if it is in use: whoever used it has been killed or is about to be.
func unmount(path string) error {
	return syscall.Unmount(path, syscall.MNT_DETACH)
}
