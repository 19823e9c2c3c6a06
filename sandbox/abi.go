package sandbox

import (
	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// newestABI is the newest Landlock ABI that the table knows. A newer kernel is used as if it were that one.
const newestABI = 11

// abiLevel is one row of the table of Landlock ABIs: the rights that a kernel
// gains with it, and what stands in for them on a kernel that lacks them.
type abiLevel struct {
	abi int
	// rights are the bits that this ABI adds.
	fs     landlock.AccessFSSet
	net    landlock.AccessNetSet
	scoped landlock.ScopedSet
	// gap says, when nothing stands in, what is then not enforced.
	gap string
	// note says what stands in, and with which consequence.
	note string
	// rules are the filter's part of what stands in.
	rules []rule
	// asked makes the filter's part of what stands in only where a supervisor answers; without one, the gap is open.
	asked func(agent int) []rule
}

// abiLevels is the one place that knows what differs between kernels. Rows
// without a gap or a note lose nothing that a policy can ask for.
var abiLevels = []abiLevel{
	{
		abi: 1,
		fs: ll.AccessFSExecute | ll.AccessFSWriteFile | ll.AccessFSReadFile | ll.AccessFSReadDir |
			ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeChar | ll.AccessFSMakeDir |
			ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeBlock | ll.AccessFSMakeSym,
		gap: "the kernel has no Landlock, so no rule about files holds, and the agent's own files and memory are protected by file permissions alone",
	},
	{
		abi: 2, fs: ll.AccessFSRefer,
		note: "Landlock ABI 2 is missing: the kernel refuses to rename or link a file from one folder to another, also inside the workspace",
	},
	{
		abi: 3, fs: ll.AccessFSTruncate,
		note:  "Landlock ABI 3 is missing: the filter refuses truncate by path, opening with O_TRUNC but without writing, and openat2",
		rules: truncateRules,
	},
	{
		// The filter decides about sockets by family and type on every kernel; these rights are a second wall.
		abi: 4, net: ll.AccessNetBindTCP | ll.AccessNetConnectTCP,
	},
	{
		abi: 5, fs: ll.AccessFSIoctlDev,
		note: "Landlock ABI 5 is missing: ioctl on a device is refused only where the device cannot be opened, and by number for those that fake terminal input",
	},
	{
		abi: 6, scoped: ll.ScopeAbstractUnixSocket | ll.ScopeSignal,
		gap: "Landlock ABI 6 is missing, and so is a supervisor for the filter that would stand in: commands can send signals to the agent and connect to abstract Unix sockets outside their sandbox",
		note: "Landlock ABI 6 is missing: a supervisor lets signals reach processes of the same command only, and single threads of the same process only; " +
			"Unix sockets for datagrams do not exist; abstract Unix addresses are refused by a look at the caller's memory, which a program that changes it meanwhile can deceive",
		asked: scopeRules,
	},
	// 7 adds audit flags, 8 restricts all threads at once, 11 sets no_new_privs along: no new protection.
	{
		abi: 9, fs: ll.AccessFSResolveUnix,
		note: "Landlock ABI 9 is missing: commands can connect to Unix sockets that they find anywhere in the file system",
	},
	{
		abi: 10, net: ll.AccessNetBindUDP | ll.AccessNetConnectSendUDP,
	},
}

// abiPorts is the ABI since when a rule can bound the ports of TCP.
const abiPorts = 4

// abiScopes is the ABI since when signals and abstract sockets have scopes.
const abiScopes = 6

// abiLogNewExec is the ABI since when denials after execve can be written to the kernel's audit log.
const abiLogNewExec = 7

// erratumSignalThreads is the fix that lets threads of one process signal each
// other. A kernel without it breaks programs under a signal scope, so that such
// a kernel counts as one that has no scopes.
const erratumSignalThreads = 1 << 1

// effectiveABI is the ABI whose rights can be used.
func effectiveABI(caps Capabilities) int {
	abi := min(caps.LandlockABI, newestABI)
	if abi >= abiScopes && caps.LandlockErrata&erratumSignalThreads == 0 {
		return abiScopes - 1
	}
	return max(abi, 0)
}

// handledRights are all rights that an ABI can restrict.
func handledRights(abi int) (fs landlock.AccessFSSet, net landlock.AccessNetSet, scoped landlock.ScopedSet) {
	for _, level := range abiLevels {
		if level.abi <= abi {
			fs |= level.fs
			net |= level.net
			scoped |= level.scoped
		}
	}
	return fs, net, scoped
}

// missingLevels are the rows that an ABI lacks, oldest first. Without any
// Landlock, what stands in for its rights about files is for nothing: only rows with a gap are left.
func missingLevels(abi int) []abiLevel {
	var missing []abiLevel
	for _, level := range abiLevels {
		if level.abi > abi && (abi > 0 || level.gap != "") {
			missing = append(missing, level)
		}
	}
	return missing
}

// The rights that rules grant; each rule keeps those that the ABI can restrict.
const (
	readRights landlock.AccessFSSet = ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSReadDir

	// writeRights leave out making device nodes, which no unprivileged program
	// can do anyway, and ioctl on them.
	writeRights = readRights | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSRefer |
		ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeDir | ll.AccessFSMakeReg |
		ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeSym | ll.AccessFSResolveUnix

	deviceRights landlock.AccessFSSet = ll.AccessFSReadFile | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSIoctlDev

	fullRights = writeRights | deviceRights | ll.AccessFSMakeChar | ll.AccessFSMakeBlock

	// fileRights are those that the kernel accepts for something that is not a folder.
	fileRights landlock.AccessFSSet = ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSWriteFile |
		ll.AccessFSTruncate | ll.AccessFSIoctlDev | ll.AccessFSResolveUnix
)
