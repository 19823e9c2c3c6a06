package sandbox

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// roleStarter signals the thread that started it, in every way there is.
const roleStarter = "starter"

// starterMain tells what each way answers.
func starterMain() int {
	runtime.LockOSThread()
	agent, starter := os.Getppid(), atoi(os.Getenv("STARTER"))
	own, threads := unix.Gettid(), make(chan int)
	go func() {
		runtime.LockOSThread()
		threads <- unix.Gettid()
		select {} // It ends with the program.
	}()
	sibling := <-threads
	call := func(number uintptr, args ...uintptr) string {
		var a [6]uintptr
		copy(a[:], args)
		_, _, errno := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno == 0 {
			return ""
		}
		return errnoName(errno)
	}
	folder, err := unix.Open(fmt.Sprintf("/proc/%d", starter), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		folder, err = unix.PidfdOpen(os.Getpid(), 0)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		fmt.Println(err)
		return 1
	}
	const ownerThread, threadScope = 0, 1
	var pinned runtime.Pinner
	defer pinned.Unpin()
	info, owner := &unix.Siginfo{Code: -1}, &struct{ kind, pid int32 }{ownerThread, int32(starter)}
	pinned.Pin(info)
	pinned.Pin(owner)
	said := map[string]string{
		"tgkill":                      call(unix.SYS_TGKILL, uintptr(agent), uintptr(starter), 0),
		"tgkill, itself":              call(unix.SYS_TGKILL, uintptr(os.Getpid()), uintptr(own), 0),
		"tkill":                       call(unix.SYS_TKILL, uintptr(starter), 0),
		"tkill, itself":               call(unix.SYS_TKILL, uintptr(own), 0),
		"tkill, a thread of its own":  call(unix.SYS_TKILL, uintptr(sibling), 0),
		"kill":                        call(unix.SYS_KILL, uintptr(agent), 0),
		"rt_tgsigqueueinfo":           call(unix.SYS_RT_TGSIGQUEUEINFO, uintptr(agent), uintptr(starter), uintptr(unix.SIGCONT), uintptr(unsafe.Pointer(info))),
		"pidfd_open, a thread":        call(unix.SYS_PIDFD_OPEN, uintptr(starter), pidfdThread),
		"pidfd_send_signal, a thread": call(unix.SYS_PIDFD_SEND_SIGNAL, uintptr(folder), 0, 0, threadScope),
		"F_SETOWN_EX":                 call(unix.SYS_FCNTL, uintptr(pipe[0]), fSetOwnerEx, uintptr(unsafe.Pointer(owner))),
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		return 1
	}
	return 0
}

// The thread that starts a command is in the command's Landlock domain, and mostly gone before the command can look for it.
// Here it stays.
func TestStarterIsOutOfReach(t *testing.T) {
	requireABI(t, abiScopes)
	caps := Probe()
	if !caps.UserNotify {
		t.Skip("no supervisor can be had: TestConfinedStartsWaitForTheirThread has that case")
	}
	s := newStage(t, true)
	launcher, err := Compile(with(func(p *Policy) { p.Enforcement = BestEffort }), s.layout(), caps)
	check(t, err)
	defer launcher.Close()
	reader, writer, err := os.Pipe()
	check(t, err)
	defer reader.Close()
	release := make(chan struct{})
	defer close(release)
	begun := make(chan started)
	go onSpareThread(func() { // ends at release
		listener, err := launcher.confineThread(true)
		if err != nil {
			begun <- started{err: err}
			return
		}
		pid, err := syscall.ForkExec(s.binary, []string{s.binary}, &syscall.ProcAttr{
			Files: []uintptr{0, writer.Fd(), 2}, Env: []string{raceOptions, roleVariable + "=" + roleStarter, fmt.Sprintf("STARTER=%d", unix.Gettid())},
		})
		begun <- started{pid: pid, listener: listener, err: err}
		<-release
	})
	end := <-begun
	writer.Close()
	check(t, end.err)
	supervisor := newSupervisor(end.listener, launcher, nil, Watch{})
	done := make(chan struct{})
	go func() { defer close(done); supervisor.run() }()
	output, err := io.ReadAll(reader)
	check(t, err)
	if status := wait(t, end.pid); status != 0 {
		t.Fatalf("it ended with %#x: %s", status, output)
	}
	var said map[string]string
	check(t, json.Unmarshal(output, &said))
	want := map[string]string{
		"tgkill": "EPERM", "tkill": "EPERM", "kill": "EPERM", "rt_tgsigqueueinfo": "EPERM", "F_SETOWN_EX": "EPERM",
		"pidfd_open, a thread": "EINVAL", "pidfd_send_signal, a thread": "EINVAL",
		"tgkill, itself": "", "tkill, itself": "", "tkill, a thread of its own": "",
	}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
