package sandbox

import "slices"

// The kernel's constants that the rules compare with. They are written out
// because x/sys has them only for the architecture that is built, and because a
// wrong one must be visible here.
const (
	cloneNewFlags = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

	tiocsti   = 0x5412
	tioclinux = 0x541C
	tiocsetd  = 0x5423

	prioProcess      = 0
	ioprioWhoProcess = 1
	perLinux32       = 8
	personalityGet   = 0xFFFFFFFF

	rlimitLocks = 10

	cloneFiles  = 0x00000400
	cloneThread = 0x00010000
	fSetFlags   = 4
	oAsync      = 0x2000
	fioAsync    = 0x5452
	fSetOwner   = 8
	fSetOwnerEx = 15
	fioSetOwner = 0x8901
	siocSetPgrp = 0x8902
	sigURG      = 23
	pidfdThread = 0x80

	oAccessMode = 0x3
	oTrunc      = 0x200

	msgFastOpen        = 0x20000000
	solTCP             = 6
	tcpFastOpenConnect = 30
)

// baselineRules hold in every mode. They close what Landlock leaves open and
// what no tool in a workspace needs.
var baselineRules = []rule{
	{
		// The arguments of these lie in memory, where a filter cannot read them.
		// Every libc and runtime falls back quietly when they do not exist.
		id:     "unreadable",
		calls:  []string{"clone3"},
		then:   refuse(enosys),
		unseen: true, // clone does the same
	},
	{
		id:    "unreadable",
		calls: []string{"io_uring_setup", "io_uring_enter", "io_uring_register"},
		then:  refuse(enosys),
	},
	{
		id: "inspect",
		calls: []string{
			"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "process_madvise", "kcmp",
			"move_pages", "migrate_pages",
		},
		then: refuse(eperm),
	},
	{
		id:    "kernel-programs",
		calls: []string{"bpf", "perf_event_open", "userfaultfd"},
		then:  refuse(eperm),
	},
	{
		id:    "keyring",
		calls: []string{"keyctl", "add_key", "request_key"},
		then:  refuse(eperm),
	},
	{
		id:    "namespaces",
		calls: []string{"unshare", "setns"},
		then:  refuse(eperm),
	},
	{
		id:    "namespaces",
		calls: []string{"clone"},
		when:  []test{anyBit(0, cloneNewFlags)},
		then:  refuse(eperm),
	},
	{
		id: "mounts",
		calls: []string{
			"mount", "umount2", "pivot_root", "chroot", "mount_setattr", "move_mount", "open_tree", "open_tree_attr",
			"fsopen", "fsconfig", "fsmount", "fspick", "swapon", "swapoff", "quotactl", "quotactl_fd",
		},
		then: refuse(eperm),
	},
	{
		id:    "file-handles",
		calls: []string{"open_by_handle_at", "name_to_handle_at", "fanotify_init", "fanotify_mark"},
		then:  refuse(eperm),
	},
	{
		id: "machine",
		calls: []string{
			"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot",
			"acct", "syslog", "lookup_dcookie", "uselib", "modify_ldt", "iopl", "ioperm",
		},
		then: refuse(eperm),
	},
	{
		id:    "personality",
		calls: []string{"personality"},
		when:  []test{argNot(0, 0), argNot(0, perLinux32), argNot(0, personalityGet)},
		then:  refuse(eperm),
	},
	{
		// Without this a command can take the agent's descriptors, time or
		// processors away: Landlock does not mediate it for the same user. Only
		// 0, the caller, can be told apart from the agent by number.
		id:    "other-processes",
		calls: []string{"prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setattr", "sched_setparam"},
		when:  []test{argNot(0, 0)},
		then:  refuse(eperm),
	},
	{
		id:    "other-processes",
		calls: []string{"setpriority", "ioprio_set"},
		when:  []test{argNot(1, 0)},
		then:  refuse(eperm),
	},
	{
		// Who 0 is the caller alone for the kind "process" only. A group may have the agent in it, as with sandbox-exec,
		// and a user always has.
		id:    "other-processes",
		calls: []string{"setpriority"},
		when:  []test{argNot(0, prioProcess)},
		then:  refuse(eperm),
	},
	{
		id:    "other-processes",
		calls: []string{"ioprio_set"},
		when:  []test{argNot(0, ioprioWhoProcess)},
		then:  refuse(eperm),
	},
	// Whoever starts processes may mark them by this limit, which the kernel itself makes nothing of: a
	// command must not take its mark off. Reading it, which gives no new limit, is free.
	{id: "marks", calls: []string{"setrlimit"}, when: []test{argIs(0, rlimitLocks)}, then: refuse(eperm)},
	{id: "marks", calls: []string{"prlimit64"}, when: []test{argIs(1, rlimitLocks), argNot(2, 0)}, then: refuse(eperm)},
	{id: "marks", calls: []string{"prlimit64"}, when: []test{argIs(1, rlimitLocks), highNot(2, 0)}, then: refuse(eperm)},
	{id: "terminal-input", calls: []string{"ioctl"}, when: []test{argIs(1, tiocsti)}, then: refuse(eperm)},
	{id: "terminal-input", calls: []string{"ioctl"}, when: []test{argIs(1, tioclinux)}, then: refuse(eperm)},
	{id: "terminal-input", calls: []string{"ioctl"}, when: []test{argIs(1, tiocsetd)}, then: refuse(eperm)},
	{
		// TCP Fast Open connects without connect, which Landlock missed until Linux 7.2.
		id:    "fast-open",
		calls: []string{"sendto", "sendmmsg"},
		when:  []test{anyBit(3, msgFastOpen)},
		then:  refuse(eperm),
	},
	{id: "fast-open", calls: []string{"sendmsg"}, when: []test{anyBit(2, msgFastOpen)}, then: refuse(eperm)},
	{
		id:    "fast-open",
		calls: []string{"setsockopt"},
		when:  []test{argIs(1, solTCP), argIs(2, tcpFastOpenConnect)},
		then:  refuse(eperm),
	},
}

// truncateRules stand in for the truncate right. Opening for writing is already
// refused, but O_TRUNC shortens a file that is opened for reading only.
var truncateRules = []rule{
	{id: "truncate", calls: []string{"truncate"}, then: refuse(eperm)},
	{id: "truncate", calls: []string{"openat2"}, then: refuse(enosys), unseen: true}, // openat does the same
	{id: "truncate", calls: []string{"open"}, when: []test{bitsAre(1, oAccessMode|oTrunc, oTrunc)}, then: refuse(eperm)},
	{id: "truncate", calls: []string{"open"}, when: []test{bitsAre(1, oAccessMode|oTrunc, oTrunc|oAccessMode)}, then: refuse(eperm)},
	{id: "truncate", calls: []string{"openat"}, when: []test{bitsAre(2, oAccessMode|oTrunc, oTrunc)}, then: refuse(eperm)},
	{id: "truncate", calls: []string{"openat"}, when: []test{bitsAre(2, oAccessMode|oTrunc, oTrunc|oAccessMode)}, then: refuse(eperm)},
}

// ruleSignals names the rules about signals, ruleAbstract those about abstract Unix sockets.
const (
	ruleSignals  = "signals"
	ruleAbstract = "abstract-sockets"
)

// agentRules keep signals from the agent's threads.
func agentRules(agent int) []rule {
	return []rule{
		// Go's runtime preempts its threads by this signal, also from a thread that is confined already: its call must neither be
		// refused, because the runtime would wait for the signal for ever, nor be asked about. To a Go program the signal means nothing else.
		{id: ruleSignals, calls: []string{"tgkill"}, when: []test{argIs(0, uint32(agent)), argIs(2, sigURG)}, then: allow},
		// Nor may the end of the agent wait for a supervisor that ends with it.
		{id: ruleSignals, calls: []string{"tgkill"}, when: []test{argIs(0, uint32(agent))}, then: refuse(eperm), unseen: true},
	}
}

// starterRules keep signals from the one thread of the agent that Landlock's scope lets them reach: the thread that starts a
// command is in the command's domain, and lives for a moment after the start. Signals to a single thread are all
// that reaches it, because it is not the first of its process.
func starterRules(agent int) []rule {
	return append(agentRules(agent),
		rule{id: ruleSignals, calls: []string{"rt_tgsigqueueinfo"}, when: []test{argIs(0, uint32(agent))}, then: refuse(eperm)},
		// The number alone does not say whose thread it is; musl raises signals by this call.
		rule{id: ruleSignals, calls: []string{"tkill"}, then: askOwner},
		// As on kernels without descriptors of threads.
		rule{id: ruleSignals, calls: []string{"pidfd_open"}, when: []test{anyBit(1, pidfdThread)}, then: refuse(einval)},
		rule{id: ruleSignals, calls: []string{"pidfd_send_signal"}, when: []test{argNot(3, 0)}, then: refuse(einval)},
		// The thread that would get the signals lies in memory.
		rule{id: ruleSignals, calls: []string{"fcntl"}, when: []test{argIs(1, fSetOwnerEx)}, then: refuse(eperm)},
	)
}

// scopeRules stand in for Landlock's scopes, with a supervisor in the agent that knows whose process a number is: see signals_linux.go
// and broker_linux.go.
func scopeRules(agent int) []rule {
	return append(agentRules(agent), []rule{
		{
			id:    ruleSignals,
			calls: []string{"kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"},
			then:  askOwner,
		},
		// The owner of a descriptor gets a signal, of any number, when something happens to it. Only this call has its process in a register;
		// and a terminal that has none gets its foreground group for one as soon as signals are asked for.
		{id: ruleSignals, calls: []string{"fcntl"}, when: []test{argIs(1, fSetOwner), argNot(2, 0)}, then: askOwner},
		{id: ruleSignals, calls: []string{"fcntl"}, when: []test{argIs(1, fSetOwnerEx)}, then: refuse(eperm)},
		{id: ruleSignals, calls: []string{"ioctl"}, when: []test{argIs(1, fioSetOwner)}, then: refuse(eperm)},
		{id: ruleSignals, calls: []string{"ioctl"}, when: []test{argIs(1, siocSetPgrp)}, then: refuse(eperm)},
		{id: ruleSignals, calls: []string{"fcntl"}, when: []test{argIs(1, fSetFlags), anyBit(2, oAsync)}, then: askOwner},
		{id: ruleSignals, calls: []string{"ioctl"}, when: []test{argIs(1, fioAsync)}, then: askOwner},
		// The descriptors of a process with one thread do not change while it waits, because nobody else has them.
		{id: ruleSignals, calls: []string{"clone"}, when: []test{bitsAre(0, cloneThread, 0), anyBit(0, cloneFiles)}, then: refuse(eperm)},
		{
			// A socket for datagrams sends each to another address, which sendmsg has in memory; the kernel takes raw
			// ones for the same. The two types that are left have to connect first.
			id:    ruleAbstract,
			calls: []string{"socket", "socketpair"},
			when:  []test{argIs(0, afUnix), bitsNot(1, sockTypeMask, sockStream), bitsNot(1, sockTypeMask, sockSeqPacket)},
			then:  refuse(eprotonosupport),
		},
		{id: "connect", calls: []string{"connect"}, then: askOwner},
		{id: "bind", calls: []string{"bind"}, then: askOwner},
	}...)
}

// Families, types and protocols of sockets.
const (
	afUnix    = 1
	afInet    = 2
	afInet6   = 10
	afNetlink = 16

	sockStream    = 1
	sockDgram     = 2
	sockSeqPacket = 5
	// sockTypeMask cuts off SOCK_NONBLOCK and SOCK_CLOEXEC.
	sockTypeMask = 0xF

	protoAny     = 0
	protoTCP     = 6
	protoUDP     = 17
	netlinkRoute = 0
)

// socketRules decide by family, type and protocol, because Landlock knows nothing
// of Multipath TCP, UDP before ABI 10, raw sockets, vsock and the like.
func socketRules(mode NetworkMode) []rule {
	rules := []rule{
		{id: "socket", calls: []string{"socket", "socketpair"}, when: []test{argIs(0, afUnix)}, then: allow},
		{
			// Reads the list of interfaces, which Node and the JVM do at start.
			// Changing anything takes a capability.
			id:    "socket",
			calls: []string{"socket"},
			when:  []test{argIs(0, afNetlink), argIs(2, netlinkRoute)},
			then:  allow,
		},
	}
	for _, family := range []uint32{afInet, afInet6} {
		rules = append(rules, inetRules(mode, family)...)
	}
	switch mode {
	case ProxyNetwork:
		rules = append(rules, rule{id: "connect", calls: []string{"connect"}, then: askOwner}, rule{id: "bind", calls: []string{"bind"}, then: askOwner})
	case LoopbackNetwork:
		// A socket that is bound to the loopback device serves nobody else, whatever address it binds.
		rules = append(rules, rule{id: "connect", calls: []string{"connect"}, then: askOwner})
	case NoNetwork, OpenNetwork:
	}
	return append(rules, rule{id: "socket", calls: []string{"socket", "socketpair"}, then: refuse(eafnosupport)})
}

// inetRules give a program that asks for the internet EACCES, a decision of the
// policy, where the family is closed, and EPROTONOSUPPORT where the family is
// open but not for this protocol, on which programs fall back to TCP.
func inetRules(mode NetworkMode, family uint32) []rule {
	type pair struct{ kind, protocol uint32 }
	streams := []pair{{sockStream, protoAny}, {sockStream, protoTCP}}
	var pairs []pair
	then := allow
	switch mode {
	case OpenNetwork:
		pairs = slices.Concat(streams, []pair{{sockDgram, protoAny}, {sockDgram, protoUDP}})
	case LoopbackNetwork, ProxyNetwork:
		// No datagrams: one may name another device than its socket's (IP_PKTINFO).
		pairs, then = streams, askOwner
	case NoNetwork:
		return []rule{{id: "socket", calls: []string{"socket"}, when: []test{argIs(0, family)}, then: refuse(eacces)}}
	}
	rules := make([]rule, 0, len(pairs)+2)
	for _, pair := range pairs {
		rules = append(rules, rule{
			id:    "socket",
			calls: []string{"socket"},
			when:  []test{argIs(0, family), bitsAre(1, sockTypeMask, pair.kind), argIs(2, pair.protocol)},
			then:  then,
		})
	}
	if mode != OpenNetwork {
		rules = append(rules, rule{id: "socket", calls: []string{"socket"}, when: []test{argIs(0, family), bitsAre(1, sockTypeMask, sockDgram)}, then: refuse(eacces)})
	}
	return append(rules, rule{id: "socket", calls: []string{"socket"}, when: []test{argIs(0, family)}, then: refuse(eprotonosupport)})
}

// launchSyscalls are what our own thread needs between the filter and its end, and
// the child between fork and exec. Refusing one of them would end in a hang or in
// a crash of the agent instead of in an answer.
var launchSyscalls = []string{
	"brk", "chdir", "clock_gettime", "clock_nanosleep", "clone", "close", "dup2", "dup3", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_wait",
	"eventfd2", "execve", "exit", "exit_group", "fcntl", "futex", "getpid", "getppid", "gettid", "ioctl", "kill", "madvise", "membarrier", "mincore",
	"mmap", "mprotect", "munmap", "nanosleep", "pipe2", "prctl", "prlimit64", "read", "restart_syscall", "rt_sigaction", "rt_sigprocmask",
	"rt_sigreturn", "sched_getaffinity", "sched_yield", "set_robust_list", "setitimer", "setpgid", "setsid", "sigaltstack", "tgkill",
	"timer_create", "timer_delete", "timer_settime", "tkill", "wait4", "waitid", "write",
}

// filterRules are all rules of a policy, strictest first: what a policy adds, what
// stands in for missing Landlock rights, the baseline and the sockets. The agent is the process whose supervisor
// answers what a rule asks about, 0 if there is none.
func filterRules(policy Policy, network NetworkMode, abi, agent int) []rule {
	var rules []rule
	if denied := policy.Process.DeniedSyscalls; len(denied) > 0 {
		rules = append(rules, rule{id: "policy", calls: denied, then: refuse(eperm)})
	}
	for _, level := range missingLevels(abi) {
		rules = append(rules, level.rules...)
		if level.asked != nil && agent != 0 {
			rules = append(rules, level.asked(agent)...)
		}
	}
	if abi >= abiScopes && agent != 0 {
		rules = append(rules, starterRules(agent)...)
	}
	return slices.Concat(rules, baselineRules, socketRules(network))
}
