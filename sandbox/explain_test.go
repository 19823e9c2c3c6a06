package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// roleExplain compiles a policy, asks what it explains and compares that with what roleProbe meets.
	roleExplain = "explain"
	roleProbe   = "probe"
)

// explainOrder is what a test has explained and tried.
type explainOrder struct {
	Policy    Policy
	Layout    Layout
	ForceABI  *int
	DropCaps  bool
	Questions []question
}

// question is about one of the three.
type question struct {
	Path      string
	Access    Access
	Syscall   string
	Arguments []uint64
	Address   string
}

func (q question) String() string {
	switch {
	case q.Path != "":
		return fmt.Sprintf("%s %q", q.Access, q.Path)
	case q.Syscall != "":
		return fmt.Sprintf("%s%v", q.Syscall, q.Arguments)
	}
	return "connect " + q.Address
}

// compared counts what was explained, and lists what was met otherwise.
type compared struct {
	Error      string
	Outcomes   map[Outcome]int
	Rules      map[string]int
	Mismatches []string
}

// compare has the questions explained and tried in processes of an ordinary user, or of a root without capabilities.
func compare(t *testing.T, s stage, order explainOrder) compared {
	t.Helper()
	order.DropCaps = os.Getuid() == 0
	input, err := json.Marshal(order)
	check(t, err)
	cmd := exec.CommandContext(t.Context(), s.binary)
	cmd.Env = []string{roleVariable + "=" + roleExplain, "PATH=/usr/bin:/bin", raceOptions}
	cmd.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testUID, Gid: testUID}}
		order.DropCaps = false
	}
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("explaining: %v\n%s", err, stderr.String())
	}
	var got compared
	check(t, json.Unmarshal(output, &got))
	if got.Error != "" {
		t.Fatal(got.Error)
	}
	return got
}

func explainMain() int {
	var order explainOrder
	err := json.NewDecoder(os.Stdin).Decode(&order)
	result := compared{Outcomes: make(map[Outcome]int), Rules: make(map[string]int)}
	if err == nil {
		err = compareAll(order, &result)
	}
	if err != nil {
		result.Error = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		return 1
	}
	return 0
}

func compareAll(order explainOrder, result *compared) error {
	if err := ProtectSelf(); err != nil {
		return err
	}
	caps := Probe()
	if order.ForceABI != nil {
		caps.LandlockABI = *order.ForceABI
	}
	launcher, err := Compile(order.Policy, order.Layout, caps)
	if err != nil {
		return err
	}
	defer launcher.Close()
	for i, q := range order.Questions {
		order.Questions[i].Path = strings.ReplaceAll(q.Path, "AGENT", fmt.Sprint(os.Getpid()))
	}
	bare, err := probeAll(syscall.ForkExec, harmless(order))
	if err != nil {
		return err
	}
	confined, err := probeAll(launcher.Start, order)
	if err != nil {
		return err
	}
	for i, q := range order.Questions {
		answer, err := explainOne(launcher, q)
		if err != nil {
			return fmt.Errorf("explaining %s: %w", q, err)
		}
		result.Outcomes[answer.Outcome]++
		result.Rules[answer.Rule]++
		if wrong := answer.contradicts(q, bare[i], confined[i]); wrong != "" && len(result.Mismatches) < 50 {
			result.Mismatches = append(result.Mismatches, fmt.Sprintf("%s: explained as %+v, but %s", q, answer, wrong))
		}
	}
	return nil
}

// harmless leaves out what is asked to be refused: without the sandbox it would happen.
func harmless(order explainOrder) explainOrder {
	order.Questions = slices.Clone(order.Questions)
	for i, q := range order.Questions {
		if q.Syscall != "" && q.Syscall != "socket" && q.Syscall != "getpid" {
			order.Questions[i] = question{Path: "/", Access: ReadAccess}
		}
	}
	return order
}

func explainOne(l *Launcher, q question) (Answer, error) {
	switch {
	case q.Path != "":
		return l.ExplainPath(q.Path, q.Access)
	case q.Syscall != "":
		return l.ExplainSyscall(q.Syscall, q.Arguments)
	}
	return l.ExplainAddress(netip.MustParseAddrPort(q.Address)), nil
}

// refusals are what a call fails with that is not allowed; others, such as ENXIO of a device, say that it was.
var refusals = []syscall.Errno{unix.EACCES, unix.EPERM, unix.EROFS, unix.ENOENT, unix.ELOOP, unix.ENOTDIR, unix.EISDIR}

func (a Answer) contradicts(q question, bare, confined syscall.Errno) string {
	switch {
	case a.Outcome == Depends:
		return ""
	case a.Outcome == Refused && confined == unix.ETXTBSY:
		return "" // of a program that runs, the kernel says so first
	case a.Outcome == Refused && confined == unix.ENOENT && q.Access == WriteAccess && inOneOf(kernelFolders, a.Subject) != "":
		return "" // nobody can make anything there, so that the kernel does not look further
	case a.Outcome == Refused && confined != a.Errno:
		return fmt.Sprintf("it met %d (%v)", confined, confined)
	case a.Outcome == Refused:
		return ""
	case q.Syscall != "" && confined != bare:
		return fmt.Sprintf("it met %v, and without the sandbox %v", confined, bare)
	case q.Syscall == "" && slices.Contains(refusals, confined):
		return fmt.Sprintf("it met %v", confined)
	}
	return ""
}

// probeAll tries everything in one process.
func probeAll(start startFunc, order explainOrder) ([]syscall.Errno, error) {
	questions, err := os.CreateTemp(order.Layout.Workspace, ".questions-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(questions.Name())
	defer questions.Close()
	if err := json.NewEncoder(questions).Encode(order.Questions); err != nil {
		return nil, err
	}
	answers, err := os.CreateTemp(order.Layout.Workspace, ".answers-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(answers.Name())
	defer answers.Close()
	if _, err := questions.Seek(0, 0); err != nil {
		return nil, err
	}
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	pid, err := start(binary, []string{binary}, &syscall.ProcAttr{
		Dir: order.Layout.Workspace, Env: []string{roleVariable + "=" + roleProbe, raceOptions},
		Files: []uintptr{questions.Fd(), answers.Fd(), 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return nil, err
	}
	if status != 0 {
		return nil, fmt.Errorf("the probe ended with %#x", status)
	}
	if _, err := answers.Seek(0, 0); err != nil {
		return nil, err
	}
	var met []syscall.Errno
	err = json.NewDecoder(answers).Decode(&met)
	return met, err
}

func probeMain() int {
	var questions []question
	if err := json.NewDecoder(os.Stdin).Decode(&questions); err != nil {
		return 1
	}
	met := make([]syscall.Errno, len(questions))
	for i, q := range questions {
		errno, _ := errors.AsType[syscall.Errno](probe(q))
		met[i] = errno
	}
	if err := json.NewEncoder(os.Stdout).Encode(met); err != nil {
		return 1
	}
	return 0
}

func probe(q question) error {
	switch {
	case q.Syscall == "socket":
		fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(q.Arguments[0]), uintptr(q.Arguments[1]), uintptr(q.Arguments[2]))
		if errno == 0 {
			return unix.Close(int(fd))
		}
		return errno
	case q.Syscall != "":
		var a [6]uintptr
		for i, argument := range q.Arguments {
			a[i] = uintptr(argument)
		}
		return call(uintptr(architectures[Probe().Arch].number(syscalls[q.Syscall])), a[:]...)
	case q.Address != "":
		return probeConnect(netip.MustParseAddrPort(q.Address))
	}
	return probePath(q.Path, q.Access)
}

func probeConnect(to netip.AddrPort) error {
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, address)
}

// executeCheck makes execveat say what exec would, since Linux 6.14.
const executeCheck = 0x10000

func probePath(path string, access Access) error {
	const quietly = unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	switch access {
	case ReadAccess:
		return open(path, unix.O_RDONLY|quietly)
	case ExecuteAccess:
		raw, err := unix.BytePtrFromString(path)
		if err != nil {
			return err
		}
		argv := []*byte{raw, nil}
		at := unix.AT_FDCWD
		_, _, errno := unix.Syscall6(unix.SYS_EXECVEAT, uintptr(at), uintptr(unsafe.Pointer(raw)), uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&argv[1])), executeCheck, 0)
		if errno != 0 {
			return errno
		}
		return nil
	case WriteAccess:
	}
	var stat unix.Stat_t
	switch err := unix.Stat(path, &stat); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR) && strings.HasSuffix(path, "/"):
		return create(path)
	case err == nil && stat.Mode&unix.S_IFMT == unix.S_IFDIR:
		return create(path + "/.probe") // as the kernel takes it, not joined
	}
	return open(path, unix.O_WRONLY|quietly)
}

func create(path string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	made, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)) // path may be a link to it
	return errors.Join(err, unix.Close(fd), unix.Unlink(made))
}

// pathsToExplain are many: all of the stage, and some of what every machine has.
func pathsToExplain(t *testing.T, s stage) []question {
	t.Helper()
	paths := []string{
		"/", "/nowhere/at/all", "/tmp", "/tmp/not-there", "/dev/pts", "/dev/shm", "/dev/stdin", "/dev/fd", "/dev/fd/7", "/etc/mtab", "/proc/mounts",
		"/proc/self", "/proc/self/status", "/proc/self/environ", "/proc/self/mem", "/proc/self/task", "/proc/self/exe", "/proc/self/nothing",
		"/proc/self/root/etc/passwd", "/proc/self/cwd/a/file", "/proc/self/cwd/missing", "/proc/thread-self/status", "/proc/self/root/" + s.base + "/agent/config/profile.json",
		"/proc/AGENT/environ", "/proc/AGENT/status", "/proc/AGENT/root/etc/passwd", "/proc/AGENT/fd", "/proc/AGENT/fd/0", "/proc/AGENT/maps", "/proc/AGENT/cmdline",
		"/proc/AGENT/task/AGENT/environ", "/proc/1/status", "/proc/1/environ", "/proc/1/cwd/etc",
		"/proc/AGENT/wchan", "/proc/1/wchan", "/proc/AGENT/ns", "/proc/AGENT/ns/net", "/proc/1/ns/net", "/proc/self/wchan", "/proc/AGENT/stack", "/proc/AGENT/status/", "/proc/self/status/",
		s.base + "/workspace/../outside/file", s.base + "/workspace/out/../config", s.base + "/workspace/a/file/x",
	}
	for name, to := range map[string]string{
		"out": s.base + "/outside", "file-out": "../outside/file", "hidden": s.base + "/agent/config/profile.json", "dangling": "nowhere", "dangling-out": s.base + "/outside/nowhere",
		"round": "round", "chain": "file-out", "root": "/proc/self/root", "input": "/proc/self/fd/0", "up": "../..",
	} {
		check(t, os.Symlink(to, filepath.Join(s.base, "workspace", name)))
		paths = append(paths, filepath.Join(s.base, "workspace", name))
	}
	check(t, os.WriteFile(s.base+"/workspace/locked", nil, 0o000))
	check(t, os.WriteFile(s.base+"/workspace/program", []byte("#!/bin/sh\n"), 0o755))
	check(t, os.MkdirAll(s.base+"/secret/deep", 0o755))
	check(t, os.MkdirAll(s.base+"/keys", 0o755))
	check(t, os.WriteFile(s.base+"/keys/one.key", nil, 0o644))
	check(t, os.WriteFile(s.base+"/keys/one.txt", nil, 0o644))
	check(t, unix.Mkfifo(s.base+"/workspace/fifo", 0o644))
	paths = append(paths, s.base+"/workspace/up/etc/passwd", s.base+"/workspace/out/file", s.base+"/workspace/root/etc/passwd")
	for dir, most := range map[string]int{s.base: 100, "/dev": 300, "/etc": 300, "/usr/bin": 50, "/proc/sys/kernel": 60, "/sys/kernel": 60, "/var/lib/dpkg": 50, "/root": 20} {
		n := 0
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if n++; n > most {
				return fs.SkipAll
			}
			if path == "/dev/pts" || path == "/dev/shm" {
				return fs.SkipDir // what others have there comes and goes
			}
			if path == "/dev/kmsg" {
				return nil // its driver asks for a capability, whatever its mode says
			}
			paths = append(paths, path)
			if err == nil && d.IsDir() {
				paths = append(paths, filepath.Join(path, "not-there"))
			}
			return nil
		})
	}
	for _, path := range []string{
		"a", "a/new", "a/file", "a/file/x", "a/new/x", "out", "file-out", "dangling", "hidden", "locked", "round", "fifo", "../outside/file", "../outside/new", "../agent/config/profile.json", "program",
	} {
		for _, end := range []string{"/", "//", "/.", "/./", "/..", "/../", "/../f", "/../a/file", "/./file"} {
			paths = append(paths, s.base+"/workspace/"+path+end)
		}
	}
	var questions []question
	for _, path := range paths {
		for _, access := range []Access{ReadAccess, WriteAccess, ExecuteAccess} {
			questions = append(questions, question{Path: path, Access: access})
		}
	}
	return questions
}

// TestExplainPaths: what is explained about a path is what a process of the sandbox meets, down to the errno.
func TestExplainPaths(t *testing.T) {
	requireABI(t, 2)
	executable := unix.EINVAL != probePath("/bin/true", ExecuteAccess) //nolint:errorlint // a bare errno
	older := 2
	cases := map[string]struct {
		change func(*Policy, stage)
		abi    *int
		rules  []string
	}{
		"WorkspaceWrite": {func(*Policy, stage) {}, nil, []string{"layout.workspace", "layout.writable[0]", "layout.hidden[0]", "filesystem.mode", ruleFilePermissions, ruleLandlock}},
		"ReadOnly":       {func(p *Policy, _ stage) { p.Filesystem.Mode = ReadOnly }, nil, []string{"filesystem.mode", "layout.hidden[1]"}},
		"FullAccess":     {func(p *Policy, _ stage) { p.Filesystem.Mode = FullAccess }, nil, []string{"filesystem.mode", "layout.hidden[0]"}},
		"lists": {func(p *Policy, s stage) {
			p.Filesystem.WritableRoots = []string{s.base + "/outside"}
			p.Filesystem.DeniedPaths = []string{"/etc/ssl", s.base + "/secret", s.base + "/keys/*.key"}
			p.Filesystem.ReadOnlyPaths = []string{s.base + "/home"}
		}, nil, []string{"filesystem.writableRoots[0]", "filesystem.deniedPaths[1]", "filesystem.deniedPaths[2]", "filesystem.readOnlyPaths[0]"}},
		"older kernel": {func(*Policy, stage) {}, &older, []string{"filesystem.mode"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, false)
			questions := pathsToExplain(t, s)
			if !executable {
				t.Log("this kernel does not say what exec would: programs are left out")
				questions = slices.DeleteFunc(questions, func(q question) bool { return q.Access == ExecuteAccess })
			}
			policy := with(func(p *Policy) { p.Enforcement = BestEffort; c.change(p, s) })
			got := compare(t, s, explainOrder{Policy: policy, Layout: s.layout(), ForceABI: c.abi, Questions: questions})
			t.Logf("%d questions: %v", len(questions), got.Outcomes)
			for _, mismatch := range got.Mismatches {
				t.Error(mismatch)
			}
			for _, rule := range c.rules {
				if got.Rules[rule] == 0 {
					t.Errorf("no answer names %s: %v", rule, got.Rules)
				}
			}
			if got.Outcomes[Allowed] < 100 || got.Outcomes[Refused] < 100 {
				t.Errorf("too few of a kind to tell anything: %v", got.Outcomes)
			}
		})
	}
}

// TestExplainSyscalls: what is explained as refused fails with that errno, and every kind of socket does what is said.
func TestExplainSyscalls(t *testing.T) {
	requireABI(t, 1)
	s := newStage(t, false)
	var questions []question
	for family := range uint64(46) {
		for _, kind := range []uint64{1, 2, 3, 5, 1 | unix.SOCK_CLOEXEC, 2 | unix.SOCK_NONBLOCK} {
			for _, protocol := range []uint64{0, 1, 6, 17, 58, 132, 262} {
				questions = append(questions, question{Syscall: "socket", Arguments: []uint64{family, kind, protocol}})
			}
		}
	}
	questions = append(questions, []question{
		{Syscall: "ioctl", Arguments: []uint64{0, tiocsti}}, {Syscall: "ioctl", Arguments: []uint64{0, tiocsti | 1<<40}},
		{Syscall: "prlimit64", Arguments: []uint64{1}}, {Syscall: "prlimit64", Arguments: []uint64{0, rlimitLocks}}, {Syscall: "prlimit64", Arguments: []uint64{0, rlimitLocks, 1}},
		{Syscall: "personality", Arguments: []uint64{4}}, {Syscall: "setpriority", Arguments: []uint64{2, 0, 19}}, {Syscall: "unshare", Arguments: []uint64{0}},
		{Syscall: "getpid"},
	}...)
	for _, mode := range []NetworkMode{NoNetwork, LoopbackNetwork, OpenNetwork} {
		t.Run(string(mode), func(t *testing.T) {
			if mode == LoopbackNetwork {
				requireDenials(t)
			}
			policy := with(func(p *Policy) {
				p.Enforcement, p.Network.Mode = BestEffort, mode
				p.Process.DeniedSyscalls = []string{"sync", "getrandom"}
			})
			asked := slices.Clone(questions)
			launcher, err := Compile(policy, s.layout(), Probe())
			check(t, err)
			defer launcher.Close()
			for name, numbers := range syscalls {
				answer, err := launcher.ExplainSyscall(name, nil)
				check(t, err)
				if answer.Outcome == Refused && architectures[Probe().Arch].number(numbers) != absent {
					asked = append(asked, question{Syscall: name})
				}
			}
			got := compare(t, s, explainOrder{Policy: policy, Layout: s.layout(), Questions: asked})
			t.Logf("%d questions: %v", len(asked), got.Outcomes)
			for _, mismatch := range got.Mismatches {
				t.Error(mismatch)
			}
			if got.Outcomes[Allowed] < 20 || got.Outcomes[Refused] < 100 || got.Rules["policy"] != 2 || got.Rules["mounts"] == 0 {
				t.Errorf("too few of a kind to tell anything: %v %v", got.Outcomes, got.Rules)
			}
		})
	}
}

// TestExplainAddresses: an address that is explained as refused cannot be connected to.
func TestExplainAddresses(t *testing.T) {
	requireABI(t, abiPorts)
	requireDenials(t)
	s := newStage(t, false)
	layout := s.layout()
	layout.Proxy = netip.MustParseAddrPort("127.0.0.1:9")
	var questions []question
	for _, address := range []string{
		"127.0.0.1:9", "127.0.0.1:10", "127.8.9.10:9", "[::1]:9", "[::ffff:127.0.0.1]:9", "0.0.0.0:9", "192.0.2.1:9", "[2001:db8::1]:9", "169.254.169.254:80",
	} {
		questions = append(questions, question{Address: address})
	}
	for mode, allowed := range map[NetworkMode]int{NoNetwork: 0, LoopbackNetwork: 6, ProxyNetwork: 2, OpenNetwork: len(questions)} {
		t.Run(string(mode), func(t *testing.T) {
			policy := with(func(p *Policy) {
				p.Enforcement, p.Network.Mode = BestEffort, mode
				if mode == ProxyNetwork {
					p.Network.Methods = "Full"
				}
			})
			got := compare(t, s, explainOrder{Policy: policy, Layout: layout, Questions: questions})
			for _, mismatch := range got.Mismatches {
				t.Error(mismatch)
			}
			if got.Outcomes[Allowed] != allowed || got.Outcomes[Refused] != len(questions)-allowed {
				t.Errorf("got %v, want %d allowed", got.Outcomes, allowed)
			}
		})
	}
}

func TestExplainCases(t *testing.T) {
	requireABI(t, 1)
	launcher := newTestLauncher(t, newStage(t, true))
	answer, err := launcher.ExplainSyscall("socket", nil)
	check(t, err)
	want := []Case{
		{Condition: "family is AF_UNIX", Outcome: Allowed, Rule: "socket"},
		{Condition: "family is AF_NETLINK and protocol is 0", Outcome: Allowed, Rule: "socket"},
		{Condition: "family is AF_INET", Outcome: Refused, Rule: "socket", Errno: unix.EACCES},
		{Condition: "family is AF_INET6", Outcome: Refused, Rule: "socket", Errno: unix.EACCES},
		{Condition: otherwise, Outcome: Refused, Rule: "socket", Errno: unix.EAFNOSUPPORT},
	}
	if answer.Outcome != Depends || !slices.Equal(answer.Cases, want) {
		t.Errorf("got %+v", answer)
	}
	for name, c := range map[string]struct {
		arguments []uint64
		want      string
	}{
		"no call":            {nil, "syscall.name"},
		"too many arguments": {make([]uint64, 7), "syscall.arguments"},
	} {
		call := "socket"
		if c.arguments == nil {
			call = "open_sesame"
		}
		_, err := launcher.ExplainSyscall(call, c.arguments)
		if field, ok := errors.AsType[*FieldError](err); !ok || field.Field != c.want {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, path := range []string{"", "relative", "/nul\x00"} {
		_, err := launcher.ExplainPath(path, ReadAccess)
		if field, ok := errors.AsType[*FieldError](err); !ok || field.Field != "path.path" {
			t.Errorf("%q: got %v", path, err)
		}
	}
	if _, err := launcher.ExplainPath("/", "Own"); err == nil {
		t.Error("an unknown access has an answer")
	}
}
