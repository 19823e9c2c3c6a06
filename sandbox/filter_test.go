package sandbox

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// callData is what the kernel shows a filter.
type callData struct {
	audit  uint32
	number uint32
	args   [6]uint64
}

// simulate runs the assembled filter. The machine of x/net reads big-endian words,
// the kernel the processor's own: so every word is written big-endian at the place where
// a little-endian machine has it.
func simulate(tb testing.TB, program []bpf.RawInstruction, data callData) verdict {
	tb.Helper()
	instructions, ok := bpf.Disassemble(program)
	if !ok {
		tb.Fatal("the filter holds an unknown instruction")
	}
	vm, err := bpf.NewVM(instructions)
	check(tb, err)
	packet := make([]byte, 64)
	binary.BigEndian.PutUint32(packet[0:], data.number)
	binary.BigEndian.PutUint32(packet[4:], data.audit)
	for i, arg := range data.args {
		binary.BigEndian.PutUint32(packet[16+8*i:], uint32(arg))
		binary.BigEndian.PutUint32(packet[20+8*i:], uint32(arg>>32))
	}
	got, err := vm.Run(packet)
	check(tb, err)
	return verdict(uint32(got))
}

// judge is the meaning of the rules, written down a second time and without jumps.
func judge(arch architecture, rules []rule, data callData) verdict {
	if data.audit != arch.audit {
		return killProcess
	}
	if arch.foreignBit != 0 && data.number >= arch.foreignBit {
		return refuse(enosys)
	}
	for _, r := range rules {
		named := slices.ContainsFunc(r.calls, func(name string) bool {
			number := arch.number(syscalls[name])
			return number != absent && uint32(number) == data.number
		})
		if named && !slices.ContainsFunc(r.when, func(t test) bool { return !holds(t, data) }) {
			return r.then
		}
	}
	return allow
}

func holds(t test, data callData) bool {
	value := uint32(data.args[t.arg])
	if t.high {
		value = uint32(data.args[t.arg] >> 32)
	}
	if t.mask != 0 {
		value &= t.mask
	}
	return (value == t.value) == t.equal
}

func program(tb testing.TB, arch architecture, rules []rule) []bpf.RawInstruction {
	tb.Helper()
	raw, err := assemble(arch, rules)
	check(tb, err)
	if len(raw) > 4096 {
		tb.Fatalf("the filter has %d instructions, the kernel takes 4096", len(raw))
	}
	return raw
}

type args = [6]uint64

const (
	none = NoNetwork
	// testAgent is the process whose supervisor is asked.
	testAgent = 77
)

// filterCases are the specification of the filter, for both architectures.
var filterCases = []struct {
	reason string
	call   string
	args   args
	mode   NetworkMode
	abi    int
	want   verdict
}{
	{"ordinary calls pass", "read", args{}, none, 7, allow},
	{"exec passes", "execve", args{}, none, 7, allow},
	{"its arguments lie in memory", "clone3", args{}, none, 7, refuse(enosys)},
	{"libuv falls back quietly", "io_uring_setup", args{}, none, 7, refuse(enosys)},
	{"io_uring", "io_uring_enter", args{}, none, 7, refuse(enosys)},
	{"io_uring", "io_uring_register", args{}, none, 7, refuse(enosys)},
	{"a thread", "clone", args{0x3d0f00}, none, 7, allow},
	{"a process", "clone", args{17}, none, 7, allow},
	{"a mount namespace", "clone", args{0x20000 | 17}, none, 7, refuse(eperm)},
	{"a user namespace", "clone", args{0x10000000}, none, 7, refuse(eperm)},
	{"a network namespace", "clone", args{0x40000000}, none, 7, refuse(eperm)},
	{"high bits do not hide a flag", "clone", args{1<<40 | 0x10000000}, none, 7, refuse(eperm)},
	{"high bits are no flag", "clone", args{0x10000000 << 32}, none, 7, allow},
	{"another process", "prlimit64", args{1}, none, 7, refuse(eperm)},
	{"oneself", "prlimit64", args{0}, none, 7, allow},
	{"the kernel sees 0", "prlimit64", args{1 << 32}, none, 7, allow},
	{"a mark is not taken off", "prlimit64", args{0, 10, 0x1000}, none, 7, refuse(eperm)},
	{"an address may have its bits in the high half only", "prlimit64", args{0, 10, 1 << 33}, none, 7, refuse(eperm)},
	{"the kernel reads 32 bits of the limit's number", "prlimit64", args{0, 1<<32 | 10, 0x1000}, none, 7, refuse(eperm)},
	{"a mark may be read", "prlimit64", args{0, 10, 0, 0x1000}, none, 7, allow},
	{"another limit", "prlimit64", args{0, 7, 0x1000}, none, 7, allow},
	{"a mark is not taken off", "setrlimit", args{10, 0x1000}, none, 7, refuse(eperm)},
	{"a mark is not taken off", "setrlimit", args{1<<32 | 10, 0x1000}, none, 7, refuse(eperm)},
	{"another limit", "setrlimit", args{7, 0x1000}, none, 7, allow},
	{"a mark may be read", "getrlimit", args{10, 0x1000}, none, 7, allow},
	{"another process", "sched_setaffinity", args{1}, none, 7, refuse(eperm)},
	{"another process", "sched_setscheduler", args{1}, none, 7, refuse(eperm)},
	{"another process", "sched_setattr", args{1}, none, 7, refuse(eperm)},
	{"another process", "sched_setparam", args{1}, none, 7, refuse(eperm)},
	{"oneself", "sched_setparam", args{0}, none, 7, allow},
	{"another process", "setpriority", args{0, 1}, none, 7, refuse(eperm)},
	{"oneself", "setpriority", args{0, 0}, none, 7, allow},
	{"a group, which may have the agent in it", "setpriority", args{1, 0}, none, 7, refuse(eperm)},
	{"the kernel reads 32 bits", "setpriority", args{1<<32 | 1, 0}, none, 7, refuse(eperm)},
	{"the kernel reads 32 bits", "setpriority", args{1 << 32, 1 << 32}, none, 7, allow},
	{"everything of the user", "setpriority", args{2, 0}, none, 7, refuse(eperm)},
	{"another process", "ioprio_set", args{1, 1}, none, 7, refuse(eperm)},
	{"oneself", "ioprio_set", args{1, 0}, none, 7, allow},
	{"a group, which may have the agent in it", "ioprio_set", args{2, 0}, none, 7, refuse(eperm)},
	{"no kind", "ioprio_set", args{0, 0}, none, 7, refuse(eperm)},
	{"everything of the user", "ioprio_set", args{3, 0}, none, 7, refuse(eperm)},
	{"typing for another", "ioctl", args{0, unix.TIOCSTI}, none, 7, refuse(eperm)},
	{"the kernel reads 32 bits", "ioctl", args{0, 1<<32 | unix.TIOCSTI}, none, 7, refuse(eperm)},
	{"pasting for another", "ioctl", args{0, unix.TIOCLINUX}, none, 7, refuse(eperm)},
	{"line disciplines", "ioctl", args{0, unix.TIOCSETD}, none, 7, refuse(eperm)},
	{"a terminal's size", "ioctl", args{0, unix.TIOCGWINSZ}, none, 7, allow},
	{"a terminal's attributes", "ioctl", args{0, unix.TCSETS}, none, 7, allow},
	{"query", "personality", args{0xffffffff}, none, 7, allow},
	{"default", "personality", args{0}, none, 7, allow},
	{"setarch i686", "personality", args{8}, none, 7, allow},
	{"no address randomisation", "personality", args{0x40000}, none, 7, refuse(eperm)},
	{"connecting while sending", "sendto", args{0, 0, 0, 0x20000000}, none, 7, refuse(eperm)},
	{"connecting while sending", "sendto", args{0, 0, 0, 0x20004000}, none, 7, refuse(eperm)},
	{"sending", "sendto", args{0, 0, 0, 0x4000}, none, 7, allow},
	{"connecting while sending", "sendmsg", args{0, 0, 0x20000000}, none, 7, refuse(eperm)},
	{"connecting while sending", "sendmmsg", args{0, 0, 0, 0x20000000}, none, 7, refuse(eperm)},
	{"passing a descriptor", "sendmsg", args{}, none, 7, allow},
	{"connecting while sending", "setsockopt", args{0, 6, 30}, none, 7, refuse(eperm)},
	{"another option", "setsockopt", args{0, 6, 1}, none, 7, allow},
	{"same number, other level", "setsockopt", args{0, 1, 30}, none, 7, allow},
	{"Unix sockets pass", "socket", args{1, 1, 0}, none, 7, allow},
	{"Unix sockets pass", "socketpair", args{1, 5, 0}, none, 7, allow},
	{"no other pair", "socketpair", args{2, 1, 0}, none, 7, refuse(eafnosupport)},
	{"no other pair", "socketpair", args{30, 1, 0}, OpenNetwork, 7, refuse(eafnosupport)},
	{"interfaces", "socket", args{16, 3, 0}, none, 7, allow},
	{"no other netlink", "socket", args{16, 3, 9}, none, 7, refuse(eafnosupport)},
	{"no other netlink", "socket", args{16, 3, 9}, OpenNetwork, 7, refuse(eafnosupport)},
	{"closed", "socket", args{2, 1, 0}, none, 7, refuse(eacces)},
	{"closed", "socket", args{10, 0x80802, 17}, none, 7, refuse(eacces)},
	{"made by the supervisor", "socket", args{2, 1, 0}, LoopbackNetwork, 7, askOwner},
	{"made by the supervisor", "socket", args{10, 0x80801, 6}, ProxyNetwork, 7, askOwner},
	{"no datagrams", "socket", args{2, 2, 0}, LoopbackNetwork, 7, refuse(eacces)},
	{"no names over UDP", "socket", args{10, 0x80802, 17}, ProxyNetwork, 7, refuse(eacces)},
	{"Multipath TCP", "socket", args{2, 1, 262}, ProxyNetwork, 7, refuse(eprotonosupport)},
	{"raw", "socket", args{2, 3, 1}, LoopbackNetwork, 7, refuse(eprotonosupport)},
	{"packet", "socket", args{17, 3, 0}, ProxyNetwork, 7, refuse(eafnosupport)},
	{"Unix sockets pass", "socket", args{1, 1, 0}, ProxyNetwork, 7, allow},
	{"looked at", "connect", args{}, ProxyNetwork, 7, askOwner},
	{"looked at", "connect", args{}, LoopbackNetwork, 7, askOwner},
	{"not looked at", "connect", args{}, NoNetwork, 7, allow},
	{"not looked at", "connect", args{}, OpenNetwork, 7, allow},
	{"looked at", "bind", args{}, ProxyNetwork, 7, askOwner},
	{"the device bounds it", "bind", args{}, LoopbackNetwork, 7, allow},
	{"open", "socket", args{2, 1, 0}, OpenNetwork, 7, allow},
	{"open, with flags", "socket", args{10, 0x80801, 6}, OpenNetwork, 7, allow},
	{"open", "socket", args{2, 2, 17}, OpenNetwork, 7, allow},
	{"the kernel reads 32 bits", "socket", args{1<<32 | 2, 1, 0}, none, 7, refuse(eacces)},
	{"Multipath TCP", "socket", args{2, 1, 262}, OpenNetwork, 7, refuse(eprotonosupport)},
	{"TCP as datagram", "socket", args{2, 2, 6}, OpenNetwork, 7, refuse(eprotonosupport)},
	{"ping", "socket", args{2, 2, 1}, OpenNetwork, 7, refuse(eprotonosupport)},
	{"raw", "socket", args{2, 3, 1}, OpenNetwork, 7, refuse(eprotonosupport)},
	{"old packet sockets", "socket", args{2, 10, 0}, OpenNetwork, 7, refuse(eprotonosupport)},
	{"packet", "socket", args{17, 3, 0}, OpenNetwork, 7, refuse(eafnosupport)},
	{"vsock", "socket", args{40, 1, 0}, OpenNetwork, 7, refuse(eafnosupport)},
	{"a family of the future", "socket", args{99, 1, 0}, OpenNetwork, 7, refuse(eafnosupport)},
	{"Landlock does it", "truncate", args{}, none, 3, allow},
	{"stands in", "truncate", args{}, none, 2, refuse(eperm)},
	{"stands in", "openat2", args{}, none, 2, refuse(enosys)},
	{"shortens while reading", "openat", args{0, 0, 0x200}, none, 2, refuse(eperm)},
	{"shortens without access", "openat", args{0, 0, 0x203}, none, 2, refuse(eperm)},
	{"Landlock checks writing", "openat", args{0, 0, 0x241}, none, 2, allow},
	{"Landlock checks writing", "openat", args{0, 0, 0x202}, none, 2, allow},
	{"reading", "openat", args{0, 0, 0x80000}, none, 1, allow},
	{"nothing to stand in for", "truncate", args{}, none, 0, allow},
	{"Go preempts its threads", "tgkill", args{testAgent, 80, 23}, none, 5, allow},
	{"the kernel reads 32 bits", "tgkill", args{1<<32 | testAgent, 80, 23}, none, 5, allow},
	{"the agent's end waits for nobody", "tgkill", args{testAgent, 80, 6}, none, 5, refuse(eperm)},
	{"whose thread is it", "tgkill", args{78, 78, 23}, none, 5, askOwner},
	{"whose process is it", "kill", args{testAgent, 23}, none, 5, askOwner},
	{"whose process is it", "kill", args{5, 0}, none, 1, askOwner},
	{"whose process is it", "kill", args{5, 15}, none, 0, askOwner},
	{"Landlock does it", "kill", args{5, 15}, none, 6, allow},
	{"whose thread is it", "tkill", args{5, 15}, none, 5, askOwner},
	{"whose process is it", "rt_sigqueueinfo", args{5, 15}, none, 5, askOwner},
	{"whose thread is it", "rt_tgsigqueueinfo", args{5, 5, 15}, none, 5, askOwner},
	{"whose process is it", "pidfd_send_signal", args{5, 15}, none, 5, askOwner},
	{"Landlock does it", "pidfd_send_signal", args{5, 15}, none, 7, allow},
	{"an owner gets signals", "fcntl", args{3, 8, 5}, none, 5, askOwner},
	{"nobody gets signals", "fcntl", args{3, 8, 0}, none, 5, allow},
	{"the kernel reads 32 bits", "fcntl", args{3, 1<<32 | 8, 5}, none, 5, askOwner},
	{"an owner in memory", "fcntl", args{3, 15, 0x1000}, none, 5, refuse(eperm)},
	{"other commands", "fcntl", args{3, 1030, 3}, none, 5, allow},
	{"an owner in memory", "fcntl", args{3, 15, 0x1000}, none, 6, refuse(eperm)},
	{"Landlock does it", "fcntl", args{3, 8, 5}, none, 6, allow},
	{"Go preempts its threads", "tgkill", args{testAgent, 80, 23}, none, 6, allow},
	{"the thread of the start", "tgkill", args{testAgent, 80, 9}, none, 6, refuse(eperm)},
	{"Landlock does it", "tgkill", args{78, 80, 9}, none, 6, allow},
	{"the thread of the start", "rt_tgsigqueueinfo", args{testAgent, 80, 9}, none, 6, refuse(eperm)},
	{"Landlock does it", "rt_tgsigqueueinfo", args{78, 80, 9}, none, 6, allow},
	{"whose thread is it", "tkill", args{80, 9}, none, 6, askOwner},
	{"the thread of the start", "pidfd_open", args{80, 0x80}, none, 6, refuse(einval)},
	{"Landlock does it", "pidfd_open", args{80, 0x800}, none, 6, allow},
	{"the thread of the start", "pidfd_send_signal", args{5, 9, 0, 1}, none, 6, refuse(einval)},
	{"an owner in memory", "ioctl", args{3, 0x8901, 0x1000}, none, 5, refuse(eperm)},
	{"an owner in memory", "ioctl", args{3, 0x8902, 0x1000}, none, 5, refuse(eperm)},
	{"a terminal's group", "ioctl", args{0, unix.TIOCSPGRP, 0x1000}, none, 5, allow},
	{"whose terminal is it", "fcntl", args{3, 4, 0x2802}, none, 5, askOwner},
	{"other flags", "fcntl", args{3, 4, 0x802}, none, 5, allow},
	{"whose terminal is it", "ioctl", args{3, 0x5452, 0x1000}, none, 5, askOwner},
	{"a thread", "clone", args{0x3d0f00}, none, 5, allow},
	{"vfork", "clone", args{0x4100 | 17}, none, 5, allow},
	{"descriptors in common with a process", "clone", args{0x400 | 17}, none, 5, refuse(eperm)},
	{"Landlock does it", "clone", args{0x400 | 17}, none, 6, allow},
	{"datagrams go anywhere", "socket", args{1, 2, 0}, none, 5, refuse(eprotonosupport)},
	{"datagrams go anywhere", "socketpair", args{1, 0x80802, 0}, OpenNetwork, 5, refuse(eprotonosupport)},
	{"raw means datagrams", "socket", args{1, 3, 0}, none, 5, refuse(eprotonosupport)},
	{"streams connect first", "socketpair", args{1, 0x80801, 0}, none, 5, allow},
	{"sequences connect first", "socket", args{1, 5, 0}, none, 5, allow},
	{"Landlock does it", "socket", args{1, 2, 0}, none, 6, allow},
	{"is it abstract", "connect", args{}, none, 5, askOwner},
	{"is it abstract", "bind", args{}, OpenNetwork, 5, askOwner},
	{"UDP", "socket", args{2, 2, 17}, OpenNetwork, 5, allow},
}

func TestFilterTable(t *testing.T) {
	for _, arch := range architectures {
		for _, c := range filterCases {
			rules := filterRules(Default(), c.mode, c.abi, testAgent)
			number := arch.number(syscalls[c.call])
			got := simulate(t, program(t, arch, rules), callData{audit: arch.audit, number: uint32(number), args: c.args})
			if got != c.want {
				t.Errorf("%s: %s: %s%x in %s with ABI %d: got %#x, want %#x", arch.name, c.reason, c.call, c.args, c.mode, c.abi, got, c.want)
			}
		}
	}
}

// TestFilterRules checks that every rule of the tables takes effect somewhere.
func TestFilterRules(t *testing.T) {
	for _, arch := range architectures {
		for _, mode := range []NetworkMode{NoNetwork, LoopbackNetwork, ProxyNetwork, OpenNetwork} {
			rules := filterRules(Default(), mode, 2, 0)
			raw := program(t, arch, rules)
			for _, r := range rules {
				for _, name := range r.calls {
					checkRule(t, arch, raw, r, name)
				}
			}
			// These come before the sockets' own rules, which they make narrower.
			raw = program(t, arch, filterRules(Default(), mode, 2, testAgent))
			for _, r := range scopeRules(testAgent) {
				for _, name := range r.calls {
					checkRule(t, arch, raw, r, name)
				}
			}
		}
	}
}

// checkRule makes arguments that the rule's tests hold for.
func checkRule(t *testing.T, arch architecture, raw []bpf.RawInstruction, r rule, name string) {
	t.Helper()
	number := arch.number(syscalls[name])
	if number == absent {
		return
	}
	data := callData{audit: arch.audit, number: uint32(number)}
	for _, condition := range r.when {
		value := uint64(condition.value)
		if !condition.equal {
			value = uint64(condition.value) ^ 0x40000 // differs from every value that the tables compare with
			if condition.mask != 0 {
				value = uint64(condition.mask)
			}
		}
		if condition.high {
			value = value<<32 | data.args[condition.arg]&0xffffffff
		}
		data.args[condition.arg] = value
	}
	if got := simulate(t, raw, data); got != r.then {
		t.Errorf("%s: rule %q about %s: got %#x, want %#x", arch.name, r.id, name, got, r.then)
	}
}

func TestFilterForeign(t *testing.T) {
	for _, arch := range architectures {
		raw := program(t, arch, filterRules(Default(), NoNetwork, 7, testAgent))
		for _, audit := range []uint32{0x40000003, 0x40000028, 0xC000003E, 0xC00000B7, 0} {
			if audit == arch.audit {
				continue
			}
			if got := simulate(t, raw, callData{audit: audit, number: 1}); got != killProcess {
				t.Errorf("%s: a call of architecture %#x: got %#x, want the end", arch.name, audit, got)
			}
		}
	}
	amd64 := architectures["amd64"]
	raw := program(t, amd64, filterRules(Default(), OpenNetwork, 7, testAgent))
	for _, number := range []uint32{0x40000000, 0x40000000 + 41, 0xFFFFFFFF} {
		if got := simulate(t, raw, callData{audit: amd64.audit, number: number}); got != refuse(enosys) {
			t.Errorf("x32 call %#x: got %#x, want ENOSYS", number, got)
		}
	}
}

// TestFilterProperty compares the jumps with the meaning of the rules on random calls.
func TestFilterProperty(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	names := slices.Sorted(maps.Keys(syscalls))
	for range 40 {
		arch := architectures[[]string{"amd64", "arm64"}[random.IntN(2)]]
		policy := Default()
		for range random.IntN(300) {
			policy.Process.DeniedSyscalls = append(policy.Process.DeniedSyscalls, names[random.IntN(len(names))])
		}
		mode := []NetworkMode{NoNetwork, LoopbackNetwork, ProxyNetwork, OpenNetwork}[random.IntN(4)]
		rules := filterRules(policy, mode, random.IntN(8), testAgent*random.IntN(2))
		raw := program(t, arch, rules)
		narrower := filterRules(Default(), mode, abiScopes, 0)
		for range 500 {
			data := randomCall(random, arch, rules)
			got, want := simulate(t, raw, data), judge(arch, rules, data)
			if got != want {
				t.Fatalf("%s: call %+v: the filter says %#x, the rules %#x", arch.name, data, got, want)
			}
			if got == allow && judge(arch, narrower, data) != allow {
				t.Fatalf("%s: call %+v: a policy allows what the baseline refuses", arch.name, data)
			}
		}
	}
}

// randomCall prefers numbers and arguments that the rules talk about.
func randomCall(random *rand.Rand, arch architecture, rules []rule) callData {
	data := callData{audit: arch.audit, number: uint32(random.IntN(480))}
	if random.IntN(20) == 0 {
		data.audit = random.Uint32()
	}
	if random.IntN(20) == 0 {
		data.number = random.Uint32()
	}
	interesting := []uint64{0, 1, 2, 10, 16, 17, 6, 30, 0x200, 0x203, 0x20000000, 0xffffffff, 1 << 33, 1 << 40}
	for i := range data.args {
		data.args[i] = interesting[random.IntN(len(interesting))]
	}
	if random.IntN(4) > 0 {
		r := rules[random.IntN(len(rules))]
		data.number = uint32(arch.number(syscalls[r.calls[random.IntN(len(r.calls))]]))
		for _, condition := range r.when {
			data.args[condition.arg] = uint64(condition.value)<<0 | uint64(condition.mask)&random.Uint64() | uint64(random.Uint32N(2))<<40
		}
	}
	return data
}

// TestSyscallTable compares the generated table with what the toolchain knows of this machine.
func TestSyscallTable(t *testing.T) {
	arch := architectures[Probe().Arch]
	for name, want := range map[string]int{
		"read": unix.SYS_READ, "clone3": unix.SYS_CLONE3, "socket": unix.SYS_SOCKET, "execve": unix.SYS_EXECVE,
		"openat2": unix.SYS_OPENAT2, "newfstatat": fstatat(), "landlock_restrict_self": unix.SYS_LANDLOCK_RESTRICT_SELF,
	} {
		if got := arch.number(syscalls[name]); got != want {
			t.Errorf("%s: got %d, want %d", name, got, want)
		}
	}
	for _, name := range launchSyscalls {
		if _, known := syscalls[name]; !known {
			t.Errorf("launchSyscalls names %q, which does not exist", name)
		}
	}
}

func fstatat() int { return map[string]int{"amd64": 262, "arm64": 79}[Probe().Arch] }

func TestABITable(t *testing.T) {
	last := 0
	for _, level := range abiLevels {
		if level.abi <= last || level.abi > newestABI {
			t.Errorf("row %d does not follow row %d", level.abi, last)
		}
		last = level.abi
	}
	fs, net, scoped := handledRights(newestABI)
	if fs != fullRights || net != 0xF || scoped != 3 {
		t.Errorf("rights of the newest ABI: %v %v %v", fs, net, scoped)
	}
	for abi := range newestABI + 1 {
		t.Run(fmt.Sprint(abi), func(t *testing.T) {
			if got := effectiveABI(Capabilities{LandlockABI: abi, LandlockErrata: 0xF}); got != abi {
				t.Errorf("got ABI %d", got)
			}
			if abi >= 6 && effectiveABI(Capabilities{LandlockABI: abi}) != 5 {
				t.Error("a kernel without the fix of signals between threads must count as one without scopes")
			}
		})
	}
}
