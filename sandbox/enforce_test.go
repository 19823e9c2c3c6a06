package sandbox

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// expected is the specification: what each attempt meets with WorkspaceWrite and
// Network None on a kernel with Landlock ABI 6 or newer. "" is success, SIG... the end by a signal.
var expected = map[string]string{
	"create at the workspace's top":           "",
	"create in home":                          "",
	"create in tmp":                           "",
	"read outside":                            "",
	"write outside":                           "EACCES",
	"create outside":                          "EACCES",
	"mkdir outside":                           "EACCES",
	"mkfifo outside":                          "EACCES",
	"symlink outside":                         "EACCES",
	"unlink outside":                          "EACCES",
	"truncate outside":                        "EACCES",
	"truncate in the workspace":               "",
	"open outside with O_TRUNC":               "EACCES",
	"open outside with O_TRUNC and mode 3":    "EACCES",
	"openat2 outside with O_TRUNC":            "EACCES",
	"write outside through a symlink":         "EACCES",
	"write outside through /proc/self/root":   "EACCES",
	"write outside through O_PATH":            "EACCES",
	"hard link into the workspace":            "EXDEV",
	"rename into the workspace":               "EACCES",
	"rename out of the workspace":             "EACCES",
	"rename between folders of the workspace": "",
	"write and rename as an editor":           "",
	"rename the workspace":                    "EACCES",
	"read hidden":                             "EACCES",
	"write hidden":                            "EACCES",
	"create hidden":                           "EACCES",
	"unlink hidden":                           "EACCES",
	"read beside hidden":                      "",
	"create beside hidden":                    "EACCES",
	"list the parent":                         "",
	"list /":                                  "",
	"hard link hidden":                        "EXDEV",
	"rename hidden's parent":                  "EACCES",
	"read hidden through O_PATH":              "EACCES",
	"read hidden from inside":                 "EACCES",
	"run hidden":                              "EACCES",
	"the folder is the workspace":             "",

	"write /dev/null":        "",
	"read /dev/zero":         "",
	"read /dev/urandom":      "",
	"write stderr by name":   "",
	"list /dev":              "",
	"open a disk":            "EACCES",
	"use a new terminal":     "",
	"TIOCSTI":                "EPERM",
	"TIOCSTI with high bits": "EPERM",
	"TIOCLINUX":              "EPERM",
	"TIOCSETD":               "EPERM",
	"write core_pattern":     "EACCES",
	"write /proc/self/mem":   "EACCES",
	"read /proc/self/status": "",
	"write /sys":             "EACCES",

	"read the agent's environment":  "EACCES",
	"read the agent's memory":       "EACCES",
	"read the agent's maps":         "EACCES",
	"list the agent's descriptors":  "EACCES",
	"open the agent's descriptor":   "EACCES",
	"name the agent's descriptor":   "EACCES",
	"read through the agent's root": "EACCES",
	"see the agent in ps":           "",
	"look at the agent's pidfd":     "",
	"ptrace attach":                 "EPERM",
	"ptrace seize":                  "EPERM",
	"ptrace traceme":                "EPERM",
	"process_vm_readv":              "EPERM",
	"process_vm_writev":             "EPERM",
	"process_madvise":               "EPERM",
	"kcmp":                          "EPERM",
	"pidfd_getfd":                   "EPERM",
	"signal by pidfd":               "EPERM",
	"kill":                          "EPERM",
	"stop":                          "EPERM",
	"terminate":                     "EPERM",
	"kill its thread":               "EPERM",
	"kill its group":                "EPERM",
	"queue a signal":                "EPERM",
	"signal by SIGIO":               "", // and the agent gets nothing
	"signal itself":                 "",
	"signal everything at once":     "", // and the agent gets nothing
	"prlimit of the agent":          "EPERM",
	"prlimit of itself":             "",
	"prlimit of self, high word":    "",
	"lower its mark":                "EPERM",
	"lower its mark, high word":     "EPERM",
	"lower its mark by setrlimit":   "EPERM",
	"read its mark":                 "",
	"read its mark by getrlimit":    "",
	"affinity of the agent":         "EPERM",
	"affinity with a high word":     "EPERM",
	"affinity of itself":            "",
	"scheduler of the agent":        "EPERM",
	"parameters of the agent":       "EPERM",
	"nice of the agent":             "EPERM",
	"nice of the agent's group":     "EPERM",
	"nice of the user":              "EPERM",
	"nice of itself":                "",
	"I/O priority of the agent":     "EPERM",
	"I/O priority of the user":      "EPERM",
	"I/O priority of itself":        "",

	"unshare a user namespace":  "EPERM",
	"unshare a mount namespace": "EPERM",
	"setns":                     "EPERM",
	"clone a user namespace":    "EPERM",
	"clone a pid namespace":     "EPERM",
	"clone3":                    "ENOSYS",
	"io_uring_setup":            "ENOSYS",
	"io_uring_enter":            "ENOSYS",
	"mount":                     "EPERM",
	"umount2":                   "EPERM",
	"open_tree":                 "EPERM",
	"move_mount":                "EPERM",
	"fsopen":                    "EPERM",
	"mount_setattr":             "EPERM",
	"pivot_root":                "EPERM",
	"chroot":                    "EPERM",
	"bpf":                       "EPERM",
	"perf_event_open":           "EPERM",
	"userfaultfd":               "EPERM",
	"keyctl":                    "EPERM",
	"add_key":                   "EPERM",
	"request_key":               "EPERM",
	"name_to_handle_at":         "EPERM",
	"open_by_handle_at":         "EPERM",
	"fanotify_init":             "EPERM",
	"init_module":               "EPERM",
	"kexec_load":                "EPERM",
	"reboot":                    "EPERM",
	"swapon":                    "EPERM",
	"acct":                      "EPERM",
	"syslog":                    "EPERM",
	"quotactl":                  "EPERM",
	"move_pages":                "EPERM",
	"change the personality":    "EPERM",
	"ask for the personality":   "",
	"x32 call":                  "ENOSYS",
	"call that does not exist":  "ENOSYS",
	"memfd_create":              "",
	"landlock inside":           "",
	"getpriority, not refused":  "",

	"TCP":                            "EACCES",
	"TCP over IPv6":                  "EACCES",
	"TCP, nonblocking":               "EACCES",
	"UDP":                            "EACCES",
	"UDP over IPv6":                  "EACCES",
	"ping socket":                    "EACCES",
	"raw socket":                     "EACCES",
	"MPTCP":                          "EACCES",
	"SCTP":                           "EACCES",
	"packet socket":                  "EAFNOSUPPORT",
	"vsock":                          "EAFNOSUPPORT",
	"AF_ALG":                         "EAFNOSUPPORT",
	"AF_KEY":                         "EAFNOSUPPORT",
	"Bluetooth":                      "EAFNOSUPPORT",
	"TIPC pair":                      "EAFNOSUPPORT",
	"netlink route":                  "",
	"netlink audit":                  "EAFNOSUPPORT",
	"Unix socket":                    "",
	"Unix pair":                      "",
	"fast open":                      "EPERM",
	"fast open by option":            "EPERM",
	"the agent's abstract socket":    "EPERM",
	"a Unix socket in the workspace": "",
	"its own abstract socket":        "",

	"status":                     "",
	"descriptors":                "",
	"environment":                "",
	"write outside from a memfd": "EACCES",
	"status from a memfd":        "",
	"gain a user by setuid":      "",
	"has no other user":          "",
	"run through a shell":        "",
}

// rootDiffers is what changes where agent and commands are root without capabilities.
var rootDiffers = map[string]string{
	"list the agent's descriptors": "", // the numbers; what they lead to stays closed
}

// readOnlyDiffers is what ReadOnly mode changes.
var readOnlyDiffers = map[string]string{
	"create at the workspace's top":           "EACCES",
	"create in home":                          "EACCES",
	"create in tmp":                           "EACCES",
	"truncate in the workspace":               "EACCES",
	"rename between folders of the workspace": "EACCES",
	"write and rename as an editor":           "EACCES",
	"write outside through a symlink":         "EACCES",
	"hard link into the workspace":            "EACCES",
	"hard link hidden":                        "EACCES",
	"a Unix socket in the workspace":          "EACCES",
	"int 0x80":                                "EACCES",
	"run through a shell":                     "exit status 2: /bin/sh: 1: cannot create workspace-copy: Permission denied\n",
}

// fullAccessDiffers is what FullAccess changes: file permissions decide, except about the agent's own.
var fullAccessDiffers = map[string]string{
	"write outside":                         "",
	"create outside":                        "",
	"mkdir outside":                         "",
	"mkfifo outside":                        "",
	"symlink outside":                       "",
	"truncate outside":                      "",
	"open outside with O_TRUNC":             "",
	"open outside with O_TRUNC and mode 3":  "",
	"openat2 outside with O_TRUNC":          "",
	"write outside through a symlink":       "",
	"write outside through /proc/self/root": "",
	"write outside through O_PATH":          "",
	"write outside from a memfd":            "",
	"hard link into the workspace":          "",
	"rename out of the workspace":           "",
}

// openDiffers is what Network Open changes.
var openDiffers = map[string]string{
	"TCP":              "",
	"TCP over IPv6":    "",
	"TCP, nonblocking": "",
	"UDP":              "",
	"UDP over IPv6":    "",
	"ping socket":      "EPROTONOSUPPORT",
	"raw socket":       "EPROTONOSUPPORT",
	"MPTCP":            "EPROTONOSUPPORT",
	"SCTP":             "EPROTONOSUPPORT",
}

// destroysStage are attempts that succeed with FullAccess and would then take away what later ones need.
var destroysStage = []string{"unlink outside", "rename into the workspace", "rename the workspace", "rename hidden's parent", "run through a shell"}

func TestEnforcement(t *testing.T) {
	requireABI(t, 6)
	cases := map[string]struct {
		reason  string
		policy  Policy
		narrow  *Narrowing
		asRoot  bool
		differs []map[string]string
		leave   []string
	}{
		"narrowed": {
			reason: "a command that asks for less than everything gets what the default gives",
			policy: with(func(p *Policy) { p.Filesystem.Mode, p.Network.Mode = FullAccess, OpenNetwork }),
			narrow: &Narrowing{Filesystem: WorkspaceWrite, Network: NoNetwork},
		},
		"narrowed to ReadOnly": {
			reason:  "and one that asks for less than the default",
			policy:  Default(),
			narrow:  &Narrowing{Filesystem: ReadOnly},
			differs: []map[string]string{readOnlyDiffers},
		},
		"WorkspaceWrite": {
			reason: "the default policy, as a pod runs it",
			policy: Default(),
		},
		"WorkspaceWrite as root": {
			reason: "on a developer's machine the agent is root without capabilities",
			policy: Default(), asRoot: true,
			differs: []map[string]string{rootDiffers},
		},
		"ReadOnly": {
			reason:  "nothing but devices can be written",
			policy:  with(func(p *Policy) { p.Filesystem.Mode = ReadOnly }),
			differs: []map[string]string{readOnlyDiffers},
		},
		"FullAccess": {
			reason:  "permissions decide, yet the agent's own stays closed",
			policy:  with(func(p *Policy) { p.Filesystem.Mode = FullAccess }),
			differs: []map[string]string{fullAccessDiffers},
			leave:   destroysStage,
		},
		"Open network": {
			reason:  "TCP and UDP open, nothing else",
			policy:  with(func(p *Policy) { p.Network.Mode = OpenNetwork }),
			differs: []map[string]string{openDiffers},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.asRoot && os.Getuid() != 0 {
				t.Skip("not root")
			}
			if raceDetector && name != "WorkspaceWrite" {
				t.Skip("under the race detector one policy is enough: the agent's code is the same for all")
			}
			s := newStage(t, c.asRoot)
			want := maps.Clone(expected)
			if runtime.GOARCH == "amd64" && hasInt80(t, s) {
				want["int 0x80"] = "SIGSYS"
			}
			for _, differs := range c.differs {
				maps.Copy(want, differs)
			}
			maps.DeleteFunc(want, func(name, _ string) bool {
				return slices.Contains(c.leave, name) || attempts[name] == nil || unavailable(t, name, c.asRoot)
			})
			answer := runAgent(t, s, agentOrder{Policy: c.policy, Narrow: c.narrow, Layout: s.layout(), Attempts: slices.Sorted(maps.Keys(want))}, c.asRoot)
			if answer.CompileError != "" || !answer.Report.Enforced {
				t.Fatalf("%s: compile error %q, report %+v", c.reason, answer.CompileError, answer.Report)
			}
			compareOutcomes(t, c.reason, want, answer)
			compareDenials(t, c.reason, want, answer)
		})
	}
}

// observedRules says which rule an attempt's denials have to name: exactly those that the
// filter refuses. What Landlock or the kernel itself refuses makes no denial.
var observedRules = map[string]string{
	"TIOCSTI": "terminal-input", "TIOCSTI with high bits": "terminal-input", "TIOCLINUX": "terminal-input", "TIOCSETD": "terminal-input",

	"ptrace attach": "inspect", "ptrace seize": "inspect", "ptrace traceme": "inspect", "process_vm_readv": "inspect",
	"process_vm_writev": "inspect", "process_madvise": "inspect", "kcmp": "inspect", "pidfd_getfd": "inspect", "move_pages": "inspect",

	"prlimit of the agent": "other-processes", "affinity of the agent": "other-processes", "affinity with a high word": "other-processes",
	"scheduler of the agent": "other-processes", "parameters of the agent": "other-processes", "nice of the agent": "other-processes",
	"nice of the agent's group": "other-processes", "nice of the user": "other-processes",
	"I/O priority of the agent": "other-processes", "I/O priority of the user": "other-processes",
	"signal another command's tid": ruleSignals, "own a socket by F_SETOWNEX": ruleSignals,
	"lower its mark": "marks", "lower its mark, high word": "marks", "lower its mark by setrlimit": "marks",

	"unshare a user namespace": "namespaces", "unshare a mount namespace": "namespaces", "setns": "namespaces",
	"clone a user namespace": "namespaces", "clone a pid namespace": "namespaces",
	"io_uring_setup": "unreadable", "io_uring_enter": "unreadable",
	"mount": "mounts", "umount2": "mounts", "open_tree": "mounts", "move_mount": "mounts", "fsopen": "mounts", "mount_setattr": "mounts",
	"pivot_root": "mounts", "chroot": "mounts", "swapon": "mounts", "quotactl": "mounts",
	"bpf": "kernel-programs", "perf_event_open": "kernel-programs", "userfaultfd": "kernel-programs",
	"keyctl": "keyring", "add_key": "keyring", "request_key": "keyring",
	"name_to_handle_at": "file-handles", "open_by_handle_at": "file-handles", "fanotify_init": "file-handles",
	"init_module": "machine", "kexec_load": "machine", "reboot": "machine", "acct": "machine", "syslog": "machine",
	"change the personality": "personality",

	"TCP": "socket", "TCP over IPv6": "socket", "TCP, nonblocking": "socket", "UDP": "socket", "UDP over IPv6": "socket",
	"ping socket": "socket", "raw socket": "socket", "MPTCP": "socket", "SCTP": "socket", "packet socket": "socket", "vsock": "socket",
	"AF_ALG": "socket", "AF_KEY": "socket", "Bluetooth": "socket", "TIPC pair": "socket", "netlink audit": "socket",
	"fast open": "fast-open", "fast open by option": "fast-open",
}

// attemptPrograms are the programs that attempts run in.
var attemptPrograms = []string{"sandbox.test", "perl"}

// compareDenials: a denial exists exactly if the filter refused, and it says what happened.
func compareDenials(t *testing.T, reason string, want map[string]string, answer agentAnswer) {
	t.Helper()
	compareDenialsBy(t, reason, want, observedRules, answer)
}

func compareDenialsBy(t *testing.T, reason string, want, rules map[string]string, answer agentAnswer) {
	t.Helper()
	for name, text := range want {
		got := answer.Outcomes[name]
		rule := rules[name]
		if text == "" {
			rule = "" // it was allowed
		}
		if rule == "" {
			if len(got.Denials) > 0 {
				t.Errorf("%s: %s: was refused nothing by the filter, yet there is %+v", reason, name, got.Denials)
			}
			continue
		}
		if len(got.Denials) != 1 {
			t.Errorf("%s: %s: got the denials %+v, want one by %q", reason, name, got.Denials, rule)
			continue
		}
		d := got.Denials[0]
		errnoName := unix.ErrnoName(d.Errno)
		if d.Rule != rule || errnoName != text || d.Count != 1 || d.PID <= 1 || !slices.Contains(attemptPrograms, filepath.Base(d.Program)) || d.First.IsZero() {
			t.Errorf("%s: %s: got the denial %+v (%s), want one by %q with %s", reason, name, d, errnoName, rule, text)
		}
	}
}

func compareOutcomes(t *testing.T, reason string, want map[string]string, answer agentAnswer) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		got := answer.Outcomes[name]
		if text := got.Text + got.Signal; text != want[name] {
			t.Errorf("%s: %s: got %q (%s), want %q", reason, name, text, got.Detail, want[name])
		}
	}
	if len(answer.Harmed) > 0 {
		t.Errorf("%s: the agent was harmed: %v", reason, answer.Harmed)
	}
}

// TestBare shows that the attempts are refused by the sandbox and not by the machine.
func TestBare(t *testing.T) {
	s := newStage(t, false)
	want := map[string]string{
		"create outside": "", "mkdir outside": "", "truncate outside": "", "open outside with O_TRUNC": "",
		"open outside with O_TRUNC and mode 3": "", "openat2 outside with O_TRUNC": "",
		"write outside": "", "write outside through a symlink": "", "write outside through O_PATH": "",
		"hard link into the workspace": "", "read hidden": "", "create hidden": "", "TCP": "", "UDP": "",
		"prlimit of itself": "", "lower its mark": "", "lower its mark, high word": "", "lower its mark by setrlimit": "", "the agent's abstract socket": "", "process_vm_readv": "EINVAL", "name_to_handle_at": "EFAULT",
	}
	policy := with(func(p *Policy) { p.Enforcement = BestEffort })
	answer := runAgent(t, s, agentOrder{Policy: policy, Layout: s.layout(), Bare: true, Attempts: slices.Sorted(maps.Keys(want))}, false)
	delete(want, "process_vm_readv") // depends on the kernel's order of checks; refused or not, it must not read
	delete(want, "name_to_handle_at")
	compareOutcomes(t, "without a sandbox", want, answer)
}

func with(change func(*Policy)) Policy {
	policy := Default()
	change(&policy)
	return policy
}

func requireABI(t *testing.T, abi int) {
	t.Helper()
	caps := Probe()
	if effectiveABI(caps) < abi || !caps.Seccomp {
		t.Skipf("the kernel has Landlock ABI %d and seccomp %v; this test needs ABI %d and seccomp", caps.LandlockABI, caps.Seccomp, abi)
	}
}

// unavailable prints why an attempt means nothing on this machine.
func unavailable(t *testing.T, name string, asRoot bool) bool {
	t.Helper()
	switch {
	case name == "open a disk" && anyDisk() == "":
		t.Log("skipped: this machine has no disk device to try")
	case name == "gain a user by setuid" && (asRoot || os.Getuid() != 0):
		t.Log("skipped: a set-user-id program is made by root and means something to others")
	default:
		return false
	}
	return true
}

// hasInt80 says whether the kernel runs 32-bit calls at all.
func hasInt80(t *testing.T, s stage) bool {
	t.Helper()
	path := filepath.Join(s.base, "int80")
	writeInt80(t, path)
	cmd := exec.CommandContext(t.Context(), path)
	_ = cmd.Run()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 42 {
		return true
	}
	t.Log("skipped: int 0x80, the kernel has no 32-bit calls")
	return false
}
