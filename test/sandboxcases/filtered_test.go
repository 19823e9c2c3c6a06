//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/ledger"
	"execsession.dev/sandbox"
	"execsession.dev/sandbox/egress"
)

// The filtered pod is one of this machine's own namespaces, with a pod's folders beside this machine's programs. Its process
// id 1 is agentd, as an ordinary user without capabilities, under the emulated filter of a container runtime.

const (
	folderVariable = "SANDBOXCASES_FOLDER" // set: this process becomes such a pod; where it finds what it needs
	user           = 1000
)

func TestMain(m *testing.M) {
	if folder := os.Getenv(folderVariable); folder != "" {
		fmt.Fprintln(os.Stderr, "becoming a pod:", becomePod(folder))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// becomePod returns only if it fails. Files comes from folder: agentd, the plugin, the program, the policy and the filter.
func becomePod(folder string) error {
	runtime.LockOSThread() // what is given up belongs to a thread
	files := map[string][]byte{}
	for _, name := range []string{"agentd", "kubectl-execsession", "sandboxcases", "policy.json", "filter"} {
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		files[name] = content
	}
	if err := makeRoot(folder, files); err != nil {
		return err
	}
	if err := raiseLoopback(); err != nil {
		return fmt.Errorf("raising the loopback device: %w", err)
	}
	// A socket as a pod's agent has it, so that there is something to connect to.
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Bind(socket, &unix.SockaddrUnix{Name: "@execsession-agentd"}), unix.Listen(socket, 8)); err != nil {
		return err
	}
	if err := giveUp(files["filter"]); err != nil {
		return err
	}
	return syscall.Exec("/execsession/bin/agentd", []string{
		"agentd", "serve", "--local", "--workspace=/workspace", "--socket=/execsession/socket/s", "--policy=/execsession/bin/policy.json",
		"--ledger=/execsession/socket/ledger", "--stop-grace=1s",
	}, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/execsession/home", "TMPDIR=/tmp"})
}

// raiseLoopback makes the new network have what every network has.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// makeRoot puts together a root in a tmpfs and moves into it.
func makeRoot(folder string, files map[string][]byte) error {
	root := filepath.Join(folder, "root")
	at := func(name string) string { return filepath.Join(root, name) }
	err := errors.Join(unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), os.MkdirAll(root, 0o755), unix.Mount("root", root, "tmpfs", 0, "mode=755"))
	if err != nil {
		return fmt.Errorf("making a root: %w", err)
	}
	for _, name := range []string{"bin", "etc", "lib", "lib32", "lib64", "sbin", "usr"} {
		if err := show("/"+name, at(name)); err != nil {
			return fmt.Errorf("showing /%s: %w", name, err)
		}
	}
	for _, d := range []struct {
		name string
		mode os.FileMode
		uid  int
	}{
		{"dev", 0o755, 0}, {"proc", 0o755, 0}, {"sys", 0o755, 0}, {"run", 0o755, 0}, {"var/tmp", 0o1777, 0}, {"old", 0o755, 0}, {"tmp", 0o1777, 0},
		{"workspace", 0o755, user}, {"execsession/home", 0o755, user}, {"execsession/socket", 0o700, user}, {"execsession/bin", 0o755, 0},
		{"execsession/config", 0o755, 0}, {"execsession/journal", 0o755, 0}, {"srv/outside", 0o777, user}, {"srv/denied", 0o777, user},
	} {
		mode := d.mode.Perm()
		if d.mode&0o1000 != 0 {
			mode |= os.ModeSticky
		}
		err := errors.Join(os.MkdirAll(at(d.name), 0o755), os.Chmod(at(d.name), mode), os.Chown(at(d.name), d.uid, d.uid))
		if err != nil {
			return err
		}
	}
	return errors.Join(addFiles(at, files), mountOver(at), enter(root))
}

// show makes a folder of this machine be in the root too, or the link that it is.
func show(source, target string) error {
	info, err := os.Lstat(source)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSymlink != 0:
		link, err := os.Readlink(source)
		if err != nil {
			return err
		}
		return os.Symlink(link, target)
	}
	return errors.Join(os.Mkdir(target, 0o755), unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""))
}

// addFiles adds what a pod of the tools image has.
func addFiles(at func(string) string, files map[string][]byte) error {
	whoami, err := os.ReadFile("/usr/bin/whoami")
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name    string
		content []byte
		mode    os.FileMode
		uid     int
	}{
		{"execsession/bin/agentd", files["agentd"], 0o755, 0},
		{"execsession/bin/kubectl-execsession", files["kubectl-execsession"], 0o755, 0},
		{"execsession/bin/policy.json", files["policy.json"], 0o644, 0},
		{"execsession/config/session.json", []byte("{}\n"), 0o644, 0},
		{"execsession/journal/processes", nil, 0o600, user},
		{"srv/outside/file", []byte("content\n"), 0o666, user},
		{"srv/denied/secret", []byte("secret\n"), 0o666, user},
		{"sandboxcases", files["sandboxcases"], 0o755, user},
		{"whoami", whoami, 0o755 | os.ModeSetuid, 0},
	} {
		// Chown takes set-user-id away, so that it comes before the mode.
		err := errors.Join(os.WriteFile(at(f.name), f.content, 0o600), os.Chown(at(f.name), f.uid, f.uid), os.Chmod(at(f.name), f.mode))
		if err != nil {
			return err
		}
	}
	return nil
}

// mountOver makes the mounts that a pod has: its volumes, and what the runtime gives every container.
func mountOver(at func(string) string) error {
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"tmpfs", "workspace", "tmpfs", 0, "mode=755,uid=1000,gid=1000"},
		{"tmpfs", "execsession/home", "tmpfs", 0, "mode=755,uid=1000,gid=1000"},
		{"tmpfs", "tmp", "tmpfs", 0, "mode=1777"},
		{at("whoami"), "usr/bin/whoami", "", unix.MS_BIND, ""},
		{at("execsession/bin"), "execsession/bin", "", unix.MS_BIND, ""},
		{at("execsession/bin"), "execsession/bin", "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY, ""},
		{at("execsession/config"), "execsession/config", "", unix.MS_BIND, ""},
		{at("execsession/config"), "execsession/config", "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY, ""},
		{"proc", "proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"tmpfs", "dev", "tmpfs", unix.MS_NOSUID, "mode=755"},
	} {
		if err := unix.Mount(m.source, at(m.target), m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	program, err := os.ReadFile(at("sandboxcases"))
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(at(workspaceBinary), program, 0o755), os.Chmod(at(workspaceBinary), 0o755)); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := errors.Join(os.WriteFile(at("dev/"+name), nil, 0o600), unix.Mount("/dev/"+name, at("dev/"+name), "", unix.MS_BIND, "")); err != nil {
			return fmt.Errorf("mounting /dev/%s: %w", name, err)
		}
	}
	return errors.Join(
		os.Mkdir(at("dev/pts"), 0o755), unix.Mount("devpts", at("dev/pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"),
		os.Mkdir(at("dev/shm"), 0o755), unix.Mount("shm", at("dev/shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777"),
		os.Symlink("pts/ptmx", at("dev/ptmx")), os.Symlink("/proc/self/fd", at("dev/fd")),
		os.Symlink("/proc/self/fd/0", at("dev/stdin")), os.Symlink("/proc/self/fd/1", at("dev/stdout")), os.Symlink("/proc/self/fd/2", at("dev/stderr")),
	)
}

// enter makes the folder the root, and leaves nothing of the old one.
func enter(root string) error {
	if err := unix.PivotRoot(root, filepath.Join(root, "old")); err != nil {
		return fmt.Errorf("entering the root: %w", err)
	}
	return errors.Join(unix.Chdir("/"), unix.Unmount("/old", unix.MNT_DETACH), os.Remove("/old"), os.Remove("/whoami"), os.Remove("/sandboxcases"))
}

// giveUp takes from this thread what a restricted container does not have, and puts it under the filter.
func giveUp(filter []byte) error {
	for capability := range uintptr(64) {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("giving up capability %d: %w", capability, err)
		}
	}
	err := errors.Join(syscall.Setgroups([]int{user}), syscall.Setgid(user), syscall.Setuid(user), unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	if err != nil {
		return fmt.Errorf("becoming a user: %w", err)
	}
	const instruction = 8
	program := unix.SockFprog{Len: uint16(len(filter) / instruction), Filter: (*unix.SockFilter)(unsafe.Pointer(&filter[0]))}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("installing the filter: %w", errno)
	}
	return nil
}

// filteredPod is the running pod.
type filteredPod struct {
	pid int
}

// filteredFolder is what such pods are made of.
func filteredFolder(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to make namespaces")
	}
	// Not below /tmp, whose parents may be closed to another user.
	folder, err := os.MkdirTemp("/var/tmp", "execsession-cases-") //nolint:usetesting // every folder above it must be open to another user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	writeFile(t, filepath.Join(folder, "filter"), compile(t, runtimeDefault(t)))
	for name, pkg := range map[string]string{
		"agentd": "execsession.dev/cmd/agentd", "kubectl-execsession": "execsession.dev/cmd/kubectl-execsession", "sandboxcases": "execsession.dev/test/sandboxcases",
	} {
		program, err := os.ReadFile(build(t, pkg))
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(folder, name), program)
	}
	return folder
}

func writeFile(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func newFilteredPod(t *testing.T, folder string, network sandbox.Network) filteredPod {
	t.Helper()
	policy := config.DefaultPolicy()
	policy.Sandbox.Network = network
	policy.Sandbox.Filesystem.DeniedPaths = []string{agentConfig, agentJournal}
	document, err := json.Marshal(policy)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(folder, "policy.json"), document)
	var said strings.Builder
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), folderVariable+"="+folder)
	cmd.Stdout, cmd.Stderr = io.Discard, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC, Pdeathsig: syscall.SIGKILL,
	}
	started := make(chan error)
	ended := make(chan struct{})
	go func() { // ends with the pod
		defer close(ended)
		runtime.LockOSThread() // the pod ends with the thread that started it
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("agentd said: %s", said.String())
		}
	})
	p := filteredPod{pid: cmd.Process.Pid}
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if _, err := p.enter(t, "test", "-S", "/execsession/socket/s"); err == nil {
			return p
		}
		select {
		case <-ended:
			t.Fatalf("the pod ended: %s", said.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("agentd does not serve: %s", said.String())
		}
	}
}

// enter runs a program in the pod, as the user but outside the sandbox.
func (p filteredPod) enter(t *testing.T, argv ...string) (string, error) {
	t.Helper()
	return output(t, "", "nsenter", append([]string{
		"-t", strconv.Itoa(p.pid), "-p", "-m", "-n", "-S", strconv.Itoa(user), "-G", strconv.Itoa(user), "--",
	}, argv...)...)
}

func (p filteredPod) run(t *testing.T, argv ...string) (id int32, output string) {
	t.Helper()
	plugin := func(args ...string) string {
		text, err := p.enter(t, append([]string{"/execsession/bin/kubectl-execsession", args[0], "--socket", "/execsession/socket/s"}, args[1:]...)...)
		return must(t, text, err)
	}
	said := strings.TrimSpace(plugin(append([]string{"run", "--detach", "--"}, argv...)...))
	number, err := strconv.ParseInt(said, 10, 32)
	if err != nil {
		t.Fatalf("the number of %q: %v", argv, err)
	}
	return int32(number), plugin("logs", "--stream", "stdout", "-f", said)
}

func (p filteredPod) records(t *testing.T) []ledger.Record {
	t.Helper()
	text, err := p.enter(t, "cat", "/execsession/socket/ledger")
	return parseLedger(t, must(t, text, err))
}

// TestCasesUnderAFilter makes the cases on this machine, under the filter that containerd gives a container: they have to end as in a
// pod of the cluster, event for event. What a profile protects below the workspace takes a pod's mounts and is not asked here.
func TestCasesUnderAFilter(t *testing.T) {
	folder := filteredFolder(t)
	profiles := map[string]sandbox.Network{
		"Default":  {Mode: sandbox.NoNetwork},
		"Loopback": {Mode: sandbox.LoopbackNetwork},
		"Proxy":    {Mode: sandbox.ProxyNetwork, Methods: string(egress.LimitedMethods)},
	}
	var results []map[int]found
	for profile, network := range profiles {
		results = append(results, try(t, newFilteredPod(t, folder, network), profile))
	}
	report(t, "under the emulated filter", results...)
	all, absent := 0, 0
	for _, result := range results {
		for _, line := range lines(result) {
			all++
			if strings.HasSuffix(line, "|absent") {
				t.Logf("skipped: this machine has no such program: %s", line)
				absent++
			}
		}
	}
	t.Logf("%d lines, %d of programs that are not here", all, absent)
}
