package sandbox

import (
	"errors"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// broker is how a supervisor answers what is neither allowed nor refused by numbers alone.
type broker struct {
	mode  NetworkMode
	proxy netip.AddrPort
	// scopes says that Landlock lacks its scopes: signals and abstract sockets are decided here.
	scopes bool
}

// loopbackDevice is what Linux calls it in every network namespace.
const loopbackDevice = "lo"

// broker answers a call that its rule hands over.
func (s *supervisor) broker(listener int, asked *notification, by rule) {
	switch {
	case by.id == ruleSignals:
		s.judgeSignal(listener, asked, by)
	case s.names[uint32(asked.number)] == "socket":
		s.giveSocket(listener, asked)
	default:
		s.judgeAddress(listener, asked, by)
	}
}

// giveSocket makes the socket that the caller asks for, bound to the loopback device,
// and puts it into its table. All that it needs is in registers, which nobody can change.
func (s *supervisor) giveSocket(listener int, asked *notification) {
	family, kind, protocol := int(uint32(asked.args[0])), int(uint32(asked.args[1])), int(uint32(asked.args[2]))
	fd, err := loopbackSocket(family, kind&unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		s.fail(listener, asked, err) // as it would have failed for the caller
		return
	}
	number, err := hand(listener, asked.id, fd, uint32(kind&unix.SOCK_CLOEXEC))
	_ = unix.Close(fd) // the caller's copy lives on
	if err != nil {
		s.fail(listener, asked, err) // its table is full, or it is gone
		return
	}
	_ = reply(listener, answer{id: asked.id, value: int64(number)}) // else it was killed
}

func loopbackSocket(family, flags, protocol int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, protocol)
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, loopbackDevice); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// fail answers with an error that is no refusal of ours.
func (s *supervisor) fail(listener int, asked *notification, err error) {
	errno := syscall.EACCES
	_ = errors.As(err, &errno)
	_ = reply(listener, answer{id: asked.id, errno: -int32(errno)}) // else it is gone
}

// judgeAddress looks at where a connect or bind leads. What may go on, the kernel does
// for the caller as if nobody had looked: with its own credentials, domain and options.
// About the internet that is safe although the address may have changed since, and the descriptor too: see planNetwork. Behind
// an abstract address there is no wall: who wins that race reaches a Unix socket of another container, or the agent's,
// which serves no command. Other commands have none, because they are refused to bind one.
func (s *supervisor) judgeAddress(listener int, asked *notification, by rule) {
	by.then = refuse(eacces)
	raw, err := readCaller(asked.thread, asked.args[1], int(int32(asked.args[2])))
	switch {
	case errors.Is(err, unix.EPERM):
		// A program that may not be looked at, as one without read permission.
		s.refuse(listener, asked, by, "")
		return
	case err != nil || !stillWaits(listener, asked.id):
		s.fail(listener, asked, unix.EFAULT)
		return
	}
	address, whole := parseSocketAddress(raw)
	if whole && address.abstract && s.access.scopes {
		by.id, by.then = ruleAbstract, refuse(eperm)
		s.refuse(listener, asked, by, address.String())
		return
	}
	if whole && address.internet.IsValid() && !s.access.permits(s.names[uint32(asked.number)], address.internet) {
		s.refuse(listener, asked, by, address.String())
		return
	}
	_ = reply(listener, answer{id: asked.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}) // else it is gone
}

// permits decides about an address of the internet families. Where a mode has walls of its own, the kernel decides.
func (b broker) permits(call string, to netip.AddrPort) bool {
	switch b.mode {
	case ProxyNetwork:
		return call == "connect" && mayConnect(b.mode, b.proxy, to)
	case LoopbackNetwork:
		return call == "bind" || mayConnect(b.mode, b.proxy, to)
	case NoNetwork, OpenNetwork:
	}
	return true
}

// readCaller copies at most a socket address from a thread's memory. No bytes is no error.
func readCaller(thread uint32, from uint64, length int) ([]byte, error) {
	if length <= 0 || length > maxSocketAddress {
		return nil, nil // the kernel refuses that by itself
	}
	buffer := make([]byte, length)
	local := []unix.Iovec{{Base: &buffer[0]}}
	local[0].SetLen(length)
	remote := []unix.RemoteIovec{{Base: uintptr(from), Len: length}}
	n, err := unix.ProcessVMReadv(int(thread), local, remote, 0)
	if err != nil {
		return nil, os.NewSyscallError("process_vm_readv", err)
	}
	return buffer[:n], nil
}
