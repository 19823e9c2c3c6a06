package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"execsession.dev/agentd/config"
)

// actAsAgentdWithoutLandlock is agentd on a kernel that was built without Landlock.
const actAsAgentdWithoutLandlock = "agentd-without-landlock"

// becomeAgentdWithoutLandlock puts a filter over this process, for which Landlock's three calls then do not exist, and becomes agentd.
func becomeAgentdWithoutLandlock() int {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: unix.SYS_LANDLOCK_CREATE_RULESET, Jf: 2},
		{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, K: unix.SYS_LANDLOCK_RESTRICT_SELF, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // the filter belongs to the thread that becomes agentd
	err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	}
	if err == nil {
		err = os.Setenv(actAsVariable, actAsAgentd)
	}
	if err == nil {
		err = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "becoming agentd without Landlock:", err)
	return exitFailed
}

// TestWithoutLandlock: agentd itself finds out that the kernel has no Landlock, and neither serves nor runs anything under a
// policy that has to be enforced.
func TestWithoutLandlock(t *testing.T) {
	workspace := t.TempDir()
	for name, args := range map[string][]string{
		"serve":        {"serve", "--local", "--workspace", workspace, "--stdio"},
		"sandbox-exec": {"sandbox-exec", "--policy", writeJSON(t, config.DefaultPolicy()), "--workspace", workspace, "--", "/bin/touch", workspace + "/ran"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := self(t.Context(), args...)
			cmd.Env = append(cmd.Env, actAsVariable+"="+actAsAgentdWithoutLandlock)
			out, err := cmd.CombinedOutput()
			if code := exitCode(t, err); code == 0 || !strings.Contains(string(out), "the kernel has no Landlock") {
				t.Errorf("it ended with %d and said %q, want a refusal that names Landlock", code, out)
			}
			if _, err := os.Stat(workspace + "/ran"); err == nil {
				t.Error("a program ran")
			}
		})
	}
}
