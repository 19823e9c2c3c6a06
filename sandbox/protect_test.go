package sandbox

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// protectMain protects itself with several threads alive and says what is wrong afterwards.
func protectMain() int {
	leaked, err := unix.Open("/", unix.O_RDONLY, 0)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	release := make(chan struct{})
	var ready, gone sync.WaitGroup
	for range 6 {
		ready.Add(1)
		gone.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			<-release
		})
	}
	ready.Wait()
	// Without a kernel that confines, what a thread loses is all; only who has lost it already needs no thread for a start.
	bare(os.Getuid() != 0 && hasNothingToLose(Capabilities{NoNewPrivs: true}))
	for _, protect := range []func() error{ProtectSelf, DropCapabilities, DropCapabilities} {
		if err := protect(); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	inherited, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	bare(inherited == 1)
	if err := everyThreadPrctl(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		fmt.Println(err)
		return 1
	}
	bare(true)
	for _, complaint := range complaints(leaked) {
		fmt.Println(complaint)
	}
	close(release)
	gone.Wait()
	return 0
}

// bare starts a command on a kernel that confines nothing, and complains of what it has left.
func bare(anyThread bool) {
	launcher, err := Compile(with(func(p *Policy) { p.Enforcement = BestEffort }), Layout{Workspace: "/tmp"}, Capabilities{Arch: runtime.GOARCH, NoNewPrivs: true})
	if err != nil {
		fmt.Println("compiling:", err)
		return
	}
	defer awaitLastThread()
	defer launcher.Close()
	if launcher.threads.none != anyThread {
		fmt.Printf("starts from any thread: %v, want %v\n", launcher.threads.none, anyThread)
	}
	read, write, err := os.Pipe()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer read.Close()
	pid, err := launcher.Start("/bin/cat", []string{"cat", "/proc/self/status"}, &syscall.ProcAttr{Files: []uintptr{0, write.Fd(), 2}})
	write.Close()
	if err != nil {
		fmt.Println("starting:", err)
		return
	}
	status, err := io.ReadAll(read)
	if _, waitErr := syscall.Wait4(pid, nil, 0, nil); err != nil || waitErr != nil {
		fmt.Println(err, waitErr)
	}
	for _, line := range []string{"NoNewPrivs:\t1\n", "CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n"} {
		if !strings.Contains(string(status), line) {
			fmt.Printf("a bare command (from any thread: %v) lacks %q\n", anyThread, line)
		}
	}
}

// awaitLastThread waits for the end of the thread that a start took. What every thread is told next would be refused to it alone.
func awaitLastThread() {
	for end := time.Now().Add(deadline); len(slices.Compact(slices.Sorted(slices.Values(threadStatus("CapPrm:"))))) > 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			fmt.Println("the thread of a start does not end")
			return
		}
	}
}

func complaints(leaked int) []string {
	var list []string
	for _, set := range []string{"CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"} {
		if os.Getuid() != 0 && set == "CapBnd:" {
			continue // emptying it takes a capability, and without any it gives nothing
		}
		values := threadStatus(set)
		if len(values) < 7 || slices.ContainsFunc(values, func(v string) bool { return v != "0000000000000000" }) {
			list = append(list, fmt.Sprintf("%s of the threads: %v", set, values))
		}
	}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 0 {
		list = append(list, fmt.Sprintf("dumpable: %d %v", dumpable, err))
	}
	if limit, err := hardLimit(limits["core"]); err != nil || limit != noCore {
		list = append(list, fmt.Sprintf("core limit: %d %v", limit, err))
	}
	if flags, err := unix.FcntlInt(uintptr(leaked), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		list = append(list, fmt.Sprintf("descriptor %d: flags %d %v", leaked, flags, err))
	}
	if _, err := os.ReadDir("/proc/self/fd"); err != nil {
		list = append(list, fmt.Sprintf("the process cannot read its own descriptors: %v", err))
	}
	child, err := exec.Command("/bin/cat", "/proc/self/status").Output()
	if err != nil || !strings.Contains(string(child), "CapEff:\t0000000000000000") {
		list = append(list, fmt.Sprintf("a child that is not sandboxed has capabilities: %v", err))
	}
	return list
}

func TestProtectSelf(t *testing.T) {
	s := newStage(t, true)
	cmd := exec.CommandContext(t.Context(), s.binary)
	cmd.Env = []string{raceOptions, roleVariable + "=" + roleProtect}
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestProbe(t *testing.T) {
	caps := Probe()
	t.Logf("%+v", caps)
	if caps.Arch != runtime.GOARCH || caps.UID != os.Geteuid() {
		t.Errorf("got %+v", caps)
	}
	if !caps.NoNewPrivs {
		t.Error("every kernel that Go runs on has no_new_privs")
	}
}
