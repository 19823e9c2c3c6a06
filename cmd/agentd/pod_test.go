package main

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/ledger"
	"execsession.dev/agentd/wire"
)

// In these tests agentd is process id 1 of a pid, mount and network namespace of its
// own, as an ordinary user without capabilities, with the folders of a pod below podRoot.
// A process that nsenter puts there has no parent in it, as with the runtime's exec.
const (
	podRoot = "/mnt"
	podUser = 1000
	// podFolders says where the test keeps what podRoot shows.
	podFolders = "EXECSESSION_TEST_POD_FOLDERS"
)

// becomePod runs as root and process id 1 of the new namespaces, and becomes agentd.
func becomePod() int {
	err := errors.Join(
		unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
		unix.Mount(os.Getenv(podFolders), podRoot, "", unix.MS_BIND, ""),
		limitPod(),
		unix.Mount("shm", sharedMemory, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777"),
		syscall.Setgroups(nil), syscall.Setgid(podUser), syscall.Setuid(podUser),
		os.Setenv(actAsVariable, actAsAgentd),
	)
	if err == nil {
		err = syscall.Exec(podRoot+"/bin/agentd", append([]string{"agentd"}, os.Args[1:]...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, "becoming a pod:", err)
	return 1
}

// pod is an `agentd serve` in namespaces of its own.
type pod struct {
	*daemon
	dir    string
	key    ed25519.PrivateKey
	public ed25519.PublicKey
	// generation names the folders of the projected volume.
	generation int
	// environment tells becomePod what else the pod is to have.
	environment []string
}

func newPod(t *testing.T) *pod {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to make namespaces")
	}
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	// Not below /tmp: commands may write there, and would by that name reach the folders.
	dir, err := os.MkdirTemp("/var/tmp", "execsession-pod-") //nolint:usetesting // t.TempDir lies below /tmp, which commands may write
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &pod{dir: dir, key: key, public: public}
	for _, folder := range []string{"", "bin", "config", "journal", "home", "workspace"} {
		path := filepath.Join(dir, folder)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, 0o755), os.Chown(path, podUser, podUser)); err != nil {
			t.Fatal(err)
		}
	}
	if code, _, stderr := runSelf(t, "install", filepath.Join(dir, "bin")); code != 0 {
		t.Fatalf("installing agentd: %d, %s", code, stderr)
	}
	if err := os.WriteFile(p.path("termination-log"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(p.path("termination-log"), 0o666); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *pod) path(name string) string { return filepath.Join(p.dir, name) }

// start starts agentd; its standard output goes to stdout.
func (p *pod) start(t *testing.T, stdout io.Writer) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "serve",
		"--namespace=team-a", "--session=hello", "--session-uid=aaaa-bbbb",
		"--verify-key="+config.FormatKeys(p.public),
		"--workspace="+podRoot+"/workspace", "--config-dir="+podRoot+"/config", "--journal-dir="+podRoot+"/journal",
		"--home="+podRoot+"/home", "--termination-log="+podRoot+"/termination-log", "--stop-grace=1s")
	cmd.Env = append(os.Environ(), actAsVariable+"="+actAsPod, podFolders+"="+p.dir, "AGENTD_LOCAL=true", "AGENTD_SOCKET=/tmp/x")
	cmd.Env = append(cmd.Env, p.environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	cmd.Stdout = stdout
	p.daemon = startDaemon(t, cmd)
}

// enter is a command line that runs in the pod as the runtime would start it.
func (p *pod) enter(t *testing.T, user int, args ...string) *exec.Cmd {
	t.Helper()
	line := append([]string{"-t", strconv.Itoa(p.cmd.Process.Pid), "-p", "-m", "-n", "-S", strconv.Itoa(user), "-G", strconv.Itoa(user), "--"}, args...)
	cmd := exec.CommandContext(t.Context(), "nsenter", line...)
	cmd.Env = append(os.Environ(), actAsVariable+"="+actAsAgentd)
	return cmd
}

// connect makes a client over `agentd connect`, once agentd listens.
func (p *pod) connect(t *testing.T) wire.AgentClient {
	t.Helper()
	eventually(t, "agentd listens in the pod", func() bool {
		cmd := p.enter(t, podUser, podRoot+"/bin/agentd", "connect")
		return cmd.Run() == nil
	})
	child, conn := socketPair(t)
	cmd := p.enter(t, podUser, podRoot+"/bin/agentd", "connect")
	cmd.Stdin, cmd.Stdout = child, child
	startDaemon(t, cmd)
	child.Close()
	t.Cleanup(func() { _ = conn.Close() })
	return client(t, oneConn(conn))
}

// write replaces the documents as the kubelet does: a new folder, then a symlink swap.
func (p *pod) write(t *testing.T, profile, session []byte) {
	t.Helper()
	p.generation++
	name := fmt.Sprintf("..generation_%d", p.generation)
	folder := p.path("config/" + name)
	err := errors.Join(
		os.Mkdir(folder, 0o755),
		os.WriteFile(filepath.Join(folder, config.ProfileFile), profile, 0o644),
		os.WriteFile(filepath.Join(folder, config.SessionFile), session, 0o644),
		os.Symlink(name, p.path("config/..data_tmp")),
		os.Rename(p.path("config/..data_tmp"), p.path("config/..data")),
	)
	for _, file := range []string{config.ProfileFile, config.SessionFile} {
		if linkErr := os.Symlink("..data/"+file, p.path("config/"+file)); linkErr != nil && !errors.Is(linkErr, os.ErrExist) {
			err = errors.Join(err, linkErr)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func podProfile() config.ProfileDocument {
	return config.ProfileDocument{
		Version: config.Version, Kind: config.KindProfile, Namespace: "team-a",
		Profile: config.ProfileRef{Kind: config.KindClusterSandboxProfile, Name: "default", UID: "profile-uid", Generation: 1},
		Policy:  config.DefaultPolicy(),
	}
}

// sign returns both documents, the session's pinning the profile's.
func (p *pod) sign(t *testing.T, profile config.ProfileDocument, revision int64, change func(*config.SessionDocument)) (profileData, sessionData []byte) {
	t.Helper()
	hash, err := config.Hash(config.KindProfile, profile)
	if err != nil {
		t.Fatal(err)
	}
	session := config.SessionDocument{
		Version: config.Version, Kind: config.KindSession, Namespace: "team-a", Name: "hello", UID: "aaaa-bbbb",
		Revision: revision, Profile: config.SessionProfile{UID: "profile-uid", Hash: hash}, Shell: config.DefaultShell(),
	}
	if change != nil {
		change(&session)
	}
	profileData, err = config.Seal(config.KindProfile, profile, p.key)
	if err != nil {
		t.Fatal(err)
	}
	sessionData, err = config.Seal(config.KindSession, session, p.key)
	if err != nil {
		t.Fatal(err)
	}
	return profileData, sessionData
}

// startedPod is a pod with a valid policy, and a client.
func startedPod(t *testing.T, stdout io.Writer) (*pod, wire.AgentClient) {
	t.Helper()
	p := newPod(t)
	profile, session := p.sign(t, podProfile(), 5, nil)
	p.write(t, profile, session)
	p.start(t, stdout)
	c := p.connect(t)
	return p, c
}

func TestPodRunsCommands(t *testing.T) {
	var stdout buffer
	p, c := startedPod(t, &stdout)
	for name, text := range map[string]string{
		"Workspace":        "test $PWD = " + podRoot + "/workspace && echo x > file",
		"Home":             "test $HOME = " + podRoot + "/home && echo x > ~/file",
		"Temp":             "test $TMPDIR = /tmp",
		"SharedMemory":     "echo x > /dev/shm/file && cat /dev/shm/file && rm /dev/shm/file",
		"Semaphores":       "! command -v python3 || python3 -c 'import multiprocessing; multiprocessing.Lock(); multiprocessing.Array(\"i\", 4)'",
		"NotBinary":        "! sh -c 'echo x > " + podRoot + "/bin/agentd'",
		"ConfigHidden":     "! cat " + podRoot + "/config/session.json",
		"JournalHidden":    "! cat " + podRoot + "/journal/revision",
		"OutsideReadOnly":  "! touch " + podRoot + "/x",
		"NotItsParent":     "! cat /proc/1/environ",
		"KillsNotItsAgent": "kill -9 1; kill -TERM 1; kill -QUIT 1; kill -SEGV 1; true",
		"NoSettings":       "! env | grep ^AGENTD_",
		"OrphansAreReaped": `sh -c 'sleep 0.2 & exit 0'; sleep 0.6; ! grep -l '^State:.Z' /proc/[0-9]*/status`,
		"SignalsDefault":   "grep -q 'SigIgn:.0000000000000000' /proc/self/status",
		"OOMScore":         `for i in $(seq 200); do test "$(cat /proc/$$/oom_score_adj)" -ge 200 && exit 0; sleep 0.05; done; exit 1`,
	} {
		t.Run(name, func(t *testing.T) {
			if output, code := execute(t, c, script(text)); code != 0 {
				t.Errorf("%s: exit code %d: %s", text, code, output)
			}
		})
	}
	// Signals from outside that would end a Go program do nothing either.
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGSEGV, syscall.SIGPIPE, syscall.SIGALRM} {
		if err := p.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.GetStatus(t.Context(), &wire.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !got.GetPolicy().GetValid() || got.GetPolicy().GetSessionRevision() != 5 || !got.GetSandbox().GetEnforced() {
		t.Errorf("the status is %v, want revision 5, valid and enforced", got)
	}
	eventually(t, "the ledger says what GetStatus says", func() bool {
		last := lastStatus(t, stdout.String())
		return last.Policy.Valid && last.Policy.ProfileHash == got.GetPolicy().GetProfileHash() &&
			last.Processes.Running == 0 && last.Processes.Exited == uint64(got.GetExitedProcesses())
	})
}

func lastStatus(t *testing.T, text string) ledger.Status {
	t.Helper()
	var last ledger.Status
	for _, record := range records(t, text) {
		if record.Status != nil {
			last = *record.Status
		}
	}
	return last
}

func TestPodPeers(t *testing.T) {
	p, c := startedPod(t, io.Discard)
	connect := podRoot + "/bin/agentd connect"
	for name, text := range map[string]string{
		"Command":      "exec " + connect,
		"Child":        connect,
		"DoubleForked": "(setsid sh -c 'sleep 0.3; " + connect + "' > out 2>&1) & wait; cat out; exit 1",
		"Orphaned":     "rm -f out; setsid sh -c '(sleep 0.5; " + connect + " > part 2>&1; mv part out) & exit 0'; while [ ! -e out ]; do sleep 0.05; done; cat out; exit 1",
	} {
		t.Run(name, func(t *testing.T) {
			output, code := execute(t, c, script(text))
			if code != 1 || !refusedText(output) {
				t.Errorf("%s: exit code %d, output %q, want a refusal", text, code, output)
			}
		})
	}
	// These are started as the runtime starts them, so it takes the other checks.
	outside := map[string]struct {
		user int
		args []string
		want string
	}{
		"OtherUser":  {0, []string{podRoot + "/bin/agentd", "connect"}, "runs as uid 0"},
		"ThirdUser":  {1001, []string{podRoot + "/bin/agentd", "connect"}, "runs as uid 1001"},
		"ShellChild": {podUser, []string{"sh", "-c", connect + "; exit 1"}, "not started by the container runtime"},
		"Orphan":     {podUser, []string{"sh", "-c", "(sleep 0.3; exec " + connect + ") & exit 1"}, "its parent is process 1"},
		"OtherFile":  {podUser, []string{podRoot + "/bin/other", "connect"}, "is not `agentd connect`"},
	}
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.path("bin/other"), data, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tc := range outside {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			cmd := p.enter(t, tc.user, tc.args...)
			cmd.Stderr = &stderr
			if code := exitCode(t, cmd.Run()); code != 1 || !strings.Contains(stderr.String(), "agentd: refused: ") || !strings.Contains(stderr.String(), tc.want) {
				t.Errorf("code %d, %q, want a refusal with %q", code, stderr.String(), tc.want)
			}
		})
	}
	if output, _ := execute(t, c, script("echo ok")); output != "ok\n" {
		t.Errorf("after the refusals a command gives %q", output)
	}
}

// refusedText accepts also that the sandbox kept the command off the socket altogether.
func refusedText(output string) bool {
	return strings.Contains(output, "agentd: refused: ") && strings.Contains(output, "commands of the session do not control agentd") ||
		strings.Contains(output, "the sandbox keeps the commands of a session from it")
}

func TestPodTermination(t *testing.T) {
	var stdout buffer
	p, c := startedPod(t, &stdout)
	stream := attachStart(t, c, script("trap 'echo asked' TERM; echo up; while :; do sleep 0.1; done"))
	got := terminate(t, p.cmd.Process, stream)
	if !strings.Contains(string(got.output), "asked") {
		t.Errorf("the command was not asked to end: %q", got.output)
	}
	if !waitDone(p.done) || p.code != 0 {
		t.Errorf("agentd ended with %d, want 0", p.code)
	}
	message, err := os.ReadFile(p.path("termination-log"))
	if err != nil {
		t.Fatal(err)
	}
	record, err := ledger.Parse(message)
	if err != nil || record.Status == nil || !record.Status.Stopping {
		t.Errorf("the termination message is %q (%v), want the final status", message, err)
	}
	if last := lastStatus(t, stdout.String()); !last.Stopping || last.Processes != (ledger.Processes{Running: 0, Exited: 1}) {
		t.Errorf("the ledger ends with %+v", last)
	}
}

// Of a program that may not be read the kernel lets nobody but root raise the score; the status counts it.
func TestPodUnreadableProgram(t *testing.T) {
	var stdout buffer
	_, c := startedPod(t, &stdout)
	if output, code := execute(t, c, script("cp /bin/sleep unreadable && chmod 0111 unreadable")); code != 0 {
		t.Fatalf("code %d, %q", code, output)
	}
	for _, program := range []string{"sleep", "./unreadable"} {
		if _, err := c.Start(t.Context(), &wire.StartRequest{Command: argv(program, "1000")}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the status counts one of the commands", func() bool {
		last := lastStatus(t, stdout.String())
		return last.Processes.Running == 2 && last.OOMScoresKept == 1
	})
}

// A log collector that stalls must not stall commands, and what is lost is counted.
func TestPodBlockedStdout(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	p := newPod(t)
	profile, session := p.sign(t, podProfile(), 5, nil)
	p.write(t, profile, []byte("forged"))
	p.start(t, write)
	write.Close()
	c := p.connect(t)
	// Each refusal is a record; together they overflow the pipe and the queue.
	for range 2000 {
		if _, err := c.Start(t.Context(), &wire.StartRequest{Command: argv("true")}); reasonOf(err) != wire.ReasonPolicyInvalid {
			t.Fatalf("starting a command: %v", err)
		}
	}
	p.write(t, profile, session)
	reasonWithin(t, c, patience, "")
	if output, _ := execute(t, c, script("echo alive")); output != "alive\n" {
		t.Errorf("with a blocked standard output a command gives %q", output)
	}
	// The collector comes back.
	var dropped uint64
	scanner := bufio.NewScanner(read)
	for scanner.Scan() {
		record, err := ledger.Parse(scanner.Bytes())
		if err != nil {
			t.Fatalf("a line of the ledger is no record: %v: %q", err, scanner.Bytes())
		}
		if record.Status != nil && record.Status.DroppedRecords > 0 {
			dropped = record.Status.DroppedRecords
			break
		}
	}
	if dropped == 0 {
		t.Errorf("no status counts dropped records (%v)", scanner.Err())
	}
	go func() { _, _ = io.Copy(io.Discard, read) }() // ends with the pipe
}

var _ net.Conn = (*filesConn)(nil)
