//go:build linux

package main

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// somewhere is an address that is nobody's.
const somewhere = "203.0.113.1:80"

func socket(family, kind, protocol int) func() error {
	return func() error {
		_, err := unix.Socket(family, kind, protocol)
		return err
	}
}

// sending makes a call on a pair of Unix sockets: what its flags ask for is refused whatever the socket.
func sending(f func(fd int) error) func() error {
	return func() error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		return f(pair[0])
	}
}

// connecting connects a TCP socket.
func connecting(to string) func() error {
	return func() error { return connect(netip.MustParseAddrPort(to)) }
}

func connect(to netip.AddrPort) error {
	family, target := unix.AF_INET, unix.Sockaddr(nil)
	if to.Addr().Is4() {
		target = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	} else {
		family, target = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, target)
}

// connectingUnix connects to a Unix socket; @ stands for an abstract name's first byte.
func connectingUnix(name string) func() error {
	return func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Connect(fd, &unix.SockaddrUnix{Name: name})
	}
}

var socketAttempts = map[string]func() error{
	"UDP":           socket(unix.AF_INET, unix.SOCK_DGRAM, 0),
	"UDP over IPv6": socket(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP),
	"DNS over TCP":  connecting("8.8.8.8:53"),
	"ping":          socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP),
	"raw":           socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
	"MPTCP":         socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP),
	"SCTP":          socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP),
	"fast open":     sending(func(fd int) error { return unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, nil) }),
	"fast open, a message": sending(func(fd int) error {
		return unix.Sendmsg(fd, []byte("x"), nil, nil, unix.MSG_FASTOPEN)
	}),
	"fast open, an option": sending(func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)
	}),
	"netlink route":             socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE),
	"netlink audit":             socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT),
	"packet":                    socket(unix.AF_PACKET, unix.SOCK_RAW, 0),
	"vsock":                     socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0),
	"alg":                       socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
	"bluetooth":                 socket(unix.AF_BLUETOOTH, unix.SOCK_RAW, 0),
	"key":                       socket(unix.AF_KEY, unix.SOCK_RAW, 2),
	"connect elsewhere":         connecting(somewhere),
	"connect elsewhere, mapped": connecting("[::ffff:203.0.113.1]:80"),
	"connect elsewhere, IPv6":   connecting("[2001:db8::1]:443"),
	"connect to another port":   connecting("127.0.0.1:1"),
	"metadata":                  connecting("169.254.169.254:80"),
	"metadata, IPv6":            connecting("[fd00:ec2::254]:80"),
	"API server":                connecting("10.96.0.1:443"),
	"kubelet":                   connecting("127.0.0.1:10250"),
	"docker's socket":           connectingUnix("/var/run/docker.sock"),
	"containerd's socket":       connectingUnix("/run/containerd/containerd.sock"),
	"the agent's socket":        connectingUnix("@execsession-agentd"),
	"pass a descriptor to standard input": func() error {
		return unix.Sendmsg(0, []byte("x"), unix.UnixRights(0), nil, 0)
	},
	"serve on loopback": serve,
}

// serve serves itself one connection and looks whether what it accepted stays on the loopback device.
func serve() error {
	server, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(server, &unix.SockaddrInet4{}); err != nil {
		return err
	}
	if err := unix.Listen(server, 1); err != nil {
		return err
	}
	name, err := unix.Getsockname(server)
	if err != nil {
		return err
	}
	bound, ok := name.(*unix.SockaddrInet4)
	if !ok {
		return fmt.Errorf("it is bound to %v", name)
	}
	if err := connect(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(bound.Port))); err != nil {
		return err
	}
	accepted, _, err := unix.Accept4(server, unix.SOCK_CLOEXEC)
	if err != nil {
		return err
	}
	for _, fd := range []int{server, accepted} {
		if device, err := unix.GetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE); err != nil || device != "lo" {
			return fmt.Errorf("the socket's device is %q: %w", device, err)
		}
	}
	return nil
}
