package sandbox

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// describeArguments spells out the arguments that say what a call wanted. It looks at
// numbers only: what they point to may change while we look.
func describeArguments(call string, args *[6]uint64) string {
	switch call {
	case "socket", "socketpair":
		return fmt.Sprintf("family=%s type=%s protocol=%s",
			named(familyNames, args[0]), named(typeNames, args[1]&sockTypeMask), protocolName(args))
	case "clone", "unshare":
		return "flags=" + strings.Join(namespaceNames(uint32(args[0])), "|")
	case "setns":
		return "kind=" + strings.Join(namespaceNames(uint32(args[1])), "|")
	case "ioctl":
		return "request=" + named(requestNames, args[1])
	case "ptrace":
		return fmt.Sprintf("request=%d pid=%d", int32(args[0]), int32(args[1]))
	case "prlimit64":
		return fmt.Sprintf("pid=%d resource=%d", int32(args[0]), uint32(args[1]))
	case "setrlimit":
		return fmt.Sprintf("resource=%d", uint32(args[0]))
	case "setpriority", "ioprio_set":
		return fmt.Sprintf("which=%d who=%d", int32(args[0]), int32(args[1]))
	case "sched_setaffinity", "sched_setscheduler", "sched_setattr", "sched_setparam",
		"process_vm_readv", "process_vm_writev", "kcmp", "move_pages", "migrate_pages":
		return fmt.Sprintf("pid=%d", int32(args[0]))
	case "personality":
		return fmt.Sprintf("persona=%#x", uint32(args[0]))
	case "bpf", "keyctl":
		return fmt.Sprintf("command=%d", int32(args[0]))
	case "sendto", "sendmmsg":
		return fmt.Sprintf("flags=%#x", uint32(args[3]))
	case "sendmsg":
		return fmt.Sprintf("flags=%#x", uint32(args[2]))
	case "kill", "tkill", "rt_sigqueueinfo":
		return fmt.Sprintf("pid=%d signal=%d", int32(args[0]), int32(args[1]))
	case "tgkill", "rt_tgsigqueueinfo":
		return fmt.Sprintf("pid=%d thread=%d signal=%d", int32(args[0]), int32(args[1]), int32(args[2]))
	case "pidfd_send_signal":
		return fmt.Sprintf("pidfd=%d signal=%d", int32(args[0]), int32(args[1]))
	case "fcntl":
		return fmt.Sprintf("command=%s argument=%d", named(commandNames, args[1]), int32(args[2]))
	case "setsockopt":
		return fmt.Sprintf("level=%d option=%d", int32(args[1]), int32(args[2]))
	}
	return ""
}

var familyNames = map[uint64]string{
	0: "AF_UNSPEC", afUnix: "AF_UNIX", afInet: "AF_INET", afInet6: "AF_INET6", 15: "AF_KEY", afNetlink: "AF_NETLINK", 17: "AF_PACKET",
	21: "AF_RDS", 29: "AF_CAN", 30: "AF_TIPC", 31: "AF_BLUETOOTH", 38: "AF_ALG", 39: "AF_NFC", 40: "AF_VSOCK", 43: "AF_SMC", 44: "AF_XDP",
}

var typeNames = map[uint64]string{
	sockStream: "SOCK_STREAM", sockDgram: "SOCK_DGRAM", 3: "SOCK_RAW", 4: "SOCK_RDM", 5: "SOCK_SEQPACKET", 10: "SOCK_PACKET",
}

var internetProtocolNames = map[uint64]string{
	1: "ICMP", protoTCP: "TCP", protoUDP: "UDP", 58: "ICMPV6", 132: "SCTP", 262: "MPTCP",
}

var requestNames = map[uint64]string{
	tiocsti: "TIOCSTI", tioclinux: "TIOCLINUX", tiocsetd: "TIOCSETD", fioSetOwner: "FIOSETOWN", siocSetPgrp: "SIOCSPGRP", fioAsync: "FIOASYNC",
}

var commandNames = map[uint64]string{fSetFlags: "F_SETFL", fSetOwner: "F_SETOWN", fSetOwnerEx: "F_SETOWN_EX"}

// named looks the low half up, which is what the kernel reads.
func named(names map[uint64]string, value uint64) string {
	if name, known := names[value&0xFFFFFFFF]; known {
		return name
	}
	return strconv.FormatUint(value&0xFFFFFFFF, 10)
}

func protocolName(args *[6]uint64) string {
	if family := uint32(args[0]); family == afInet || family == afInet6 {
		return named(internetProtocolNames, args[2])
	}
	return strconv.FormatUint(args[2]&0xFFFFFFFF, 10)
}

func namespaceNames(flags uint32) []string {
	names := []struct {
		flag uint32
		name string
	}{
		{0x00000080, "CLONE_NEWTIME"}, {0x00020000, "CLONE_NEWNS"}, {0x02000000, "CLONE_NEWCGROUP"}, {0x04000000, "CLONE_NEWUTS"},
		{0x08000000, "CLONE_NEWIPC"}, {0x10000000, "CLONE_NEWUSER"}, {0x20000000, "CLONE_NEWPID"}, {0x40000000, "CLONE_NEWNET"},
	}
	var set []string
	for _, n := range names {
		// The low byte of a clone's flags is a signal's number.
		if flags&n.flag != 0 && n.flag > 0xFF {
			set = append(set, n.name)
		}
	}
	if len(set) == 0 {
		set = append(set, fmt.Sprintf("%#x", flags))
	}
	return set
}

// maxSocketAddress is the kernel's struct sockaddr_storage.
const maxSocketAddress = 128

// socketAddress is an address that a call was made with.
type socketAddress struct {
	family uint16
	// internet is valid for AF_INET and AF_INET6.
	internet netip.AddrPort
	// abstract says that it is a name of AF_UNIX that no file has, or one that the kernel is to choose.
	abstract bool
	name     string
}

// parseSocketAddress reads what a caller's memory holds. It answers false for what is
// too short to be an address of its family.
func parseSocketAddress(raw []byte) (socketAddress, bool) {
	if len(raw) < 2 {
		return socketAddress{}, false
	}
	address := socketAddress{family: binary.NativeEndian.Uint16(raw)}
	switch address.family {
	case afUnix:
		address.abstract = len(raw) == 2 || raw[2] == 0
		if address.abstract {
			address.name = string(raw[min(3, len(raw)):])
		}
	case afInet:
		if len(raw) < 8 {
			return address, false
		}
		port := binary.BigEndian.Uint16(raw[2:])
		address.internet = netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port)
	case afInet6:
		if len(raw) < 24 {
			return address, false
		}
		port := binary.BigEndian.Uint16(raw[2:])
		address.internet = netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw[8:24])), port)
	}
	return address, true
}

func (a socketAddress) String() string {
	if a.internet.IsValid() {
		return a.internet.String()
	}
	if a.abstract {
		return "@" + strings.Trim(strconv.QuoteToASCII(a.name), `"`)
	}
	return named(familyNames, uint64(a.family))
}
