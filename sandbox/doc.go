// Package sandbox says what a process may touch, starts processes that are
// confined by Landlock and seccomp, and reports what is enforced.
//
// # The flow
//
// A [Policy] is a plain value that a document carries; [Default] is the one that
// holds where nobody wrote one. A [Layout] says where a session's folders lie on this
// machine, and [Probe] what its kernel offers. [Compile] makes a [Launcher] of the
// three, once; the launcher starts any number of processes, each confined alike:
//
//	sandbox.ProtectSelf()                       // once, early
//	launcher, err := sandbox.Compile(policy, layout, sandbox.Probe())
//	// err: *FieldError (a value is wrong) or *NotEnforceableError (Required, and something cannot be enforced)
//	pid, err := launcher.Start("/bin/sh", []string{"sh", "-c", "make"}, &syscall.ProcAttr{...})
//	// err: *SetupError (no sandbox, so nothing ran) or a bare syscall.Errno (the program could not be executed)
//
// Who is root calls [DropCapabilities] before the first start.
//
// # What a policy means
//
// Every process may read and execute everything except the policy's denied paths, the
// layout's hidden folders, and what is in /dev beside null, zero, full, random,
// urandom, tty, ptmx and pts, which may be written too. WorkspaceWrite adds writing in the workspace,
// the layout's writable folders and the policy's writable roots, where files can also be renamed and
// linked from folder to folder. FullAccess adds writing everywhere but in /proc and /sys,
// whose files can start programs outside of every sandbox, and in the hidden folders.
//
// With Network None a process has Unix sockets and may read the list of interfaces;
// with Open also TCP and UDP, but no other protocol. Loopback adds TCP within the loopback
// interface of the pod, whatever address is bound or connected to; Proxy adds TCP to
// the agent's own proxy (Layout.Proxy) and nothing else. Neither has UDP, so that no name leaves by itself.
//
// In every mode a process has no capabilities and gains none, cannot trace or read the memory
// of processes outside of its sandbox, signal them, renice them, change their limits or
// processors, change its own RLIMIT_LOCKS, by which an engine marks what it starts, type into their terminals, make namespaces, mount, load programs into the kernel,
// or use system calls of a foreign architecture. Each start is a sandbox of its own: a command cannot
// signal the processes of another command either, even of the same session.
//
// # How it is enforced
//
// Landlock decides about files, devices, signals and abstract sockets. The filter, which
// is assembled here for amd64 and arm64, decides about everything that a number in a register
// tells: the rules are a table in filter_rules.go. Neither is enough: Landlock does not see Multipath
// TCP, raw sockets or prlimit on a neighbour, and a filter does not see a path.
//
// A start happens on a thread of its own, which restricts itself, forks, and ends: a
// goroutine locks the thread and never unlocks it, so that Go destroys it. The agent's other threads stay free.
// The main thread cannot be destroyed, so it is never used. As long as it lives, the thread is in the command's
// own Landlock domain, in which signals are free: the filter keeps those from it that reach a single thread.
//
// # Denials
//
// [Launcher.StartWatched] tells what a start's processes are refused. The filter then hands
// such calls to a supervisor, a goroutine of this process, which answers with the
// errno of the rule and counts: a [Denial] exists exactly if the sandbox's filter refused. What
// Landlock refuses makes none, nor what a filter above ours refuses first: in a pod, the
// container runtime's own refuses mount, bpf and others before we are asked. Calls that get ENOSYS so that the
// program takes an older call, clone3 above all, are no refusals.
//
// Loopback and Proxy need the supervisor also to allow: it makes each internet socket
// itself, binds it to the loopback device, which nobody without CAP_NET_RAW can undo, and
// puts it into the caller's table; with Proxy, Landlock adds the port. Those are the walls. It also looks at the
// address of each connect, and refuses what would run into them; a thread that swaps the address
// after the look meets the walls instead. See docs/design/sandbox.md.
//
// # Invariants
//
//   - Nothing runs with less than the policy under Required. Under BestEffort
//     [Report] lists what is missing, and what replaces a mode is narrower than it, never wider.
//   - What protects the agent itself is no matter of the policy: hidden folders hold in
//     every mode, and a writable root that overlaps one is an error even under BestEffort.
//   - Rules stick to the folders as they were when the policy was compiled. Paths are opened
//     without following links, so a link that a command plants grants nothing. A root that
//     is replaced by another folder needs a new Compile.
//   - Rights cannot be taken away below a folder that has them. A folder with a
//     left-out place in it is granted entry by entry instead: what is made there later has no rights,
//     and the names in it, the left-out ones too, can be listed. For "/" that is
//     always so, because of /dev. Below a writable folder this would forbid creating files: there a read-only
//     path has to be a read-only mount, and a denied one an empty read-only mount, with every folder on the way a mount
//     point too, so that it cannot be renamed. Compile looks; what is neither is a [Gap]. See docs/design/paths.md.
//   - A denied path with *, ? or [ is looked up by Compile, and is not enforceable where commands
//     could make another match.
//   - Between the filter and the exec the thread and the child make system calls of their
//     own. A policy cannot deny those (launchSyscalls), and none of them may ever be answered by a
//     supervisor inside this process: Go holds a processor through vfork, and a stop of
//     the world would wait for a child that waits for the world.
//   - Limits are set before the program's first instruction, by a program of a few instructions that
//     executes it (limits_linux.go). Without limits, or with those that the agent lives under itself, nothing is in between.
//     No command dumps core.
//
// # Older kernels
//
// The table abiLevels says for each Landlock ABI what a kernel without it lacks and what
// stands in. Below ABI 6 the supervisor decides about signals and abstract sockets; where none can be had, Required refuses such a
// kernel. Below 3 the filter refuses truncate by path. Without Landlock, Required runs nothing. [Capabilities] is a
// value: a test, or whoever asks "what would happen there", lowers LandlockABI.
//
// The supervisor knows a start's processes by their hard RLIMIT_LOCKS, which an engine has lowered for each start, or else
// the launcher does; no process of a sandbox can change it.
//
// # What stays open
//
// Landlock does not mediate chmod, chown, utimes, setxattr, stat and chdir: a command can change the mode of
// a file outside that its user owns, though not its content. The agent therefore must not depend
// on the mode of its own files; hold them open or have them owned by another user. Existence
// and size of any file can be seen. Unix sockets that lie in the file system can be connected to
// before ABI 9. Terminals of the same user in /dev/pts can be written to, which in a pod are
// the session's own. A memfd can be executed, and is confined as everything else.
package sandbox
