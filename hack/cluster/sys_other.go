//go:build !linux

package main

import (
	"errors"
	"os"
	"os/exec"
)

const onLinux = false

var errLinuxOnly = errors.New("this works on Linux only")

func detach(*exec.Cmd) {}

// tryLock pretends: off Linux nothing but the cache is locked, and there two builds only waste time.
func tryLock(*os.File) (bool, error) { return true, nil }

func terminate(int) error { return errLinuxOnly }

func kill(int) error { return errLinuxOnly }

func unmount(string) error { return errLinuxOnly }
