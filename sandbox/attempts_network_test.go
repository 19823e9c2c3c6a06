package sandbox

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// outsider is an address that is nobody's.
const outsider = "203.0.113.1:80"

// sockets are what the agent listens on for its attempts; their ports are the variables PROXY and OTHER.
type sockets struct {
	proxy, other *net.TCPListener
	reached      atomic.Int32
}

// listen opens both on the same loopback address.
func (s *sockets) listen() error {
	var err error
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
	if s.proxy, err = net.ListenTCP("tcp4", local); err != nil {
		return err
	}
	if s.other, err = net.ListenTCP("tcp4", local); err != nil {
		return errors.Join(err, s.proxy.Close())
	}
	go greet(s.proxy, new(atomic.Int32)) // both end with their listener
	go greet(s.other, &s.reached)
	return nil
}

// greet says one byte to everybody.
func greet(l *net.TCPListener, count *atomic.Int32) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		count.Add(1)
		_, _ = conn.Write([]byte("g"))
		_ = conn.Close()
	}
}

func (s *sockets) close() error { return errors.Join(s.proxy.Close(), s.other.Close()) }

func portOf(l *net.TCPListener) string { return itoa(l.Addr().(*net.TCPAddr).Port) }

func proxyAddress() string { return "127.0.0.1:" + os.Getenv("PROXY") }
func otherAddress() string { return "127.0.0.1:" + os.Getenv("OTHER") }

// dialing connects as Go programs do: without blocking, waiting in epoll, and reads what the server says.
func dialing(network string, address func() string) func(actor) error {
	return func(actor) error {
		conn, err := (&net.Dialer{Timeout: time.Minute}).Dial(network, address())
		if err != nil {
			return err
		}
		_, err = io.ReadFull(conn, make([]byte, 1))
		return errors.Join(err, conn.Close())
	}
}

// connecting connects as C programs do.
func connecting(address func() string) func(actor) error {
	return func(actor) error {
		to, err := netip.ParseAddrPort(address())
		if err != nil {
			return err
		}
		return connectTo(to)
	}
}

func connectTo(to netip.AddrPort) error {
	family, target := unix.AF_INET, unix.Sockaddr(nil)
	if to.Addr().Is4() {
		target = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	} else {
		family, target = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, target)
}

func constantly(address string) func() string { return func() string { return address } }

var networkAttempts = map[string]func(actor) error{
	"dial the proxy":                    dialing("tcp", proxyAddress),
	"connect to the proxy":              connecting(proxyAddress),
	"connect to the proxy by IPv6":      connecting(func() string { return "[::ffff:127.0.0.1]:" + os.Getenv("PROXY") }),
	"dial another port":                 dialing("tcp", otherAddress),
	"connect outside":                   connecting(constantly(outsider)),
	"connect outside, mapped":           connecting(constantly("[::ffff:203.0.113.1]:80")),
	"connect outside, IPv6":             connecting(constantly("[2001:db8::1]:443")),
	"connect outside, the proxy's port": connecting(func() string { return "203.0.113.1:" + os.Getenv("PROXY") }),
	"connect to the metadata service":   connecting(constantly("169.254.169.254:80")),
	"connect to any":                    connecting(func() string { return "0.0.0.0:" + os.Getenv("OTHER") }),
	"connect with a short address": func(actor) error {
		return withStream(func(fd int) error { return call(unix.SYS_CONNECT, uintptr(fd), address(make([]byte, 4)), 1) })
	},
	"connect with no address": func(actor) error {
		return withStream(func(fd int) error { return call(unix.SYS_CONNECT, uintptr(fd), 8, 16) })
	},
	"leave the device": func(actor) error {
		return withStream(func(fd int) error { return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "") })
	},
	"leave the device by number": func(actor) error {
		return withStream(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, 0) })
	},
	"leave the device by a disconnect": func(actor) error {
		return withStream(func(fd int) error {
			if err := call(unix.SYS_CONNECT, uintptr(fd), address(make([]byte, 16)), 16); err != nil {
				return err
			}
			return staysInside(fd)
		})
	},
	"serve on every address": serveOn(unix.SockaddrInet4{}),
	"serve on loopback":      serveOn(unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
	"swap the address":       swapAddress,
	"fill the table": func(actor) error {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
			return err
		}
		for range 64 {
			if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
				return err
			}
		}
		return nil
	},
	"flags of a new socket": func(actor) error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		onExec, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		status, err2 := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if onExec != unix.FD_CLOEXEC || status&unix.O_NONBLOCK == 0 {
			return fmt.Errorf("flags are %#x %#x (%w %w)", onExec, status, err, err2)
		}
		return withStream(func(plain int) error {
			onExec, err := unix.FcntlInt(uintptr(plain), unix.F_GETFD, 0)
			status, err2 := unix.FcntlInt(uintptr(plain), unix.F_GETFL, 0)
			if onExec != 0 || status&unix.O_NONBLOCK != 0 {
				return fmt.Errorf("flags without any are %#x %#x (%w %w)", onExec, status, err, err2)
			}
			return nil
		})
	},
}

func withStream(f func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

func staysInside(fd int) error {
	device, err := unix.GetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE)
	if err == nil && device != loopbackDevice {
		return fmt.Errorf("the socket's device is %q", device)
	}
	return err
}

// serveOn serves itself one connection and looks whether what it accepted stays inside too.
func serveOn(at unix.SockaddrInet4) func(actor) error {
	return func(actor) error {
		return withStream(func(server int) error {
			if err := unix.Bind(server, &at); err != nil {
				return err
			}
			if err := unix.Listen(server, 1); err != nil {
				return err
			}
			name, err := unix.Getsockname(server)
			if err != nil {
				return err
			}
			if err := connectTo(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(name.(*unix.SockaddrInet4).Port))); err != nil {
				return err
			}
			accepted, _, err := unix.Accept(server)
			if err != nil {
				return err
			}
			return errors.Join(staysInside(server), staysInside(accepted))
		})
	}
}

// swapAddress lets one thread turn an address between the proxy, the agent's other port and a Unix socket's while
// another connects with it. The agent counts who reached the other port.
func swapAddress(actor) error {
	proxy, other := netip.MustParseAddrPort(proxyAddress()), netip.MustParseAddrPort(otherAddress())
	raw := func(family uint16, port uint16) uint64 {
		var b [8]byte
		*(*uint16)(unsafe.Pointer(&b[0])) = family
		b[2], b[3], b[4], b[7] = byte(port>>8), byte(port), 127, 1
		return *(*uint64)(unsafe.Pointer(&b[0]))
	}
	words := []uint64{raw(unix.AF_INET, proxy.Port()), raw(unix.AF_INET, other.Port()), raw(unix.AF_UNIX, other.Port()), raw(unix.AF_INET, other.Port())}
	buffer := new([2]uint64)
	var stop atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for i := 0; !stop.Load(); i++ {
			atomic.StoreUint64(&buffer[0], words[i%len(words)])
		}
	}()
	for range 3000 {
		if err := withStream(func(fd int) error {
			_ = call(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&buffer[0])), 16)
			return nil
		}); err != nil {
			return err
		}
	}
	stop.Store(true)
	<-stopped
	return nil
}
