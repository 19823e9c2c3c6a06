//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// proxyAddress is where the session's proxy listens, as every program is told.
func proxyAddress() (netip.AddrPort, error) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy"} {
		if value := os.Getenv(name); value != "" {
			parsed, err := url.Parse(value)
			if err != nil {
				return netip.AddrPort{}, err
			}
			return netip.ParseAddrPort(parsed.Host)
		}
	}
	return netip.AddrPort{}, errors.New("there is no proxy in the environment")
}

// tunnelling asks the proxy for a tunnel; errRefused is its answer that it makes none.
func tunnelling(target string) func() error {
	return func() error {
		proxy, err := proxyAddress()
		if err != nil {
			return err
		}
		conn, err := net.DialTimeout("tcp", proxy.String(), time.Minute) //nolint:noctx // has its own bound
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target); err != nil {
			return err
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		return fmt.Errorf("status %d", answer.StatusCode)
	}
}

// proxyAttempts are those of the Proxy mode.
var proxyAttempts = map[string]func() error{
	"connect elsewhere at the proxy's port": func() error {
		proxy, err := proxyAddress()
		if err != nil {
			return err
		}
		return connect(netip.AddrPortFrom(netip.MustParseAddr("203.0.113.1"), proxy.Port()))
	},
	"connect to the proxy": func() error {
		proxy, err := proxyAddress()
		if err != nil {
			return err
		}
		return connect(proxy)
	},
	"turn the address while connecting": turnAddress,
	"serve":                             serve,
	"tunnel to a name":                  tunnelling("denied.example:443"),
	"tunnel to a name with a dot":       tunnelling("denied.example.:443"),
	"tunnel to a name in capitals":      tunnelling("DENIED.EXAMPLE:443"),
	"tunnel past a user":                tunnelling("allowed.example@denied.example:443"),
	"tunnel to an address":              tunnelling("203.0.113.1:443"),
	"tunnel to a decimal address":       tunnelling("2130706433:443"),
	"tunnel to an octal address":        tunnelling("0177.0.0.1:443"),
	"tunnel to a mapped address":        tunnelling("[::ffff:127.0.0.1]:443"),
	"tunnel to a translated address":    tunnelling("[64:ff9b::7f00:1]:443"),
	"tunnel to the metadata service":    tunnelling("169.254.169.254:80"),
	"tunnel to the API server":          tunnelling("kubernetes.default.svc.cluster.local:443"),
	"tunnel through the proxy itself": func() error {
		proxy, err := proxyAddress()
		if err != nil {
			return err
		}
		return tunnelling(proxy.String())()
	},
}

// turnAddress lets one thread turn an address between the proxy's port and another while this one connects with it.
// Whatever gets through must have reached the proxy.
func turnAddress() error {
	proxy, err := proxyAddress()
	if err != nil {
		return err
	}
	word := func(port uint16) uint64 {
		var b [8]byte
		*(*uint16)(unsafe.Pointer(&b[0])) = unix.AF_INET
		b[2], b[3], b[4], b[7] = byte(port>>8), byte(port), 127, 1
		return *(*uint64)(unsafe.Pointer(&b[0]))
	}
	words := [2]uint64{word(proxy.Port()), word(proxy.Port() ^ 1)}
	buffer := new([2]uint64)
	var stop atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for i := 0; !stop.Load(); i++ {
			atomic.StoreUint64(&buffer[0], words[i%2])
		}
	}()
	reached := 0
	for range 1000 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if call(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&buffer[0])), 16) == nil {
			reached++
			peer, err := unix.Getpeername(fd)
			if to, ok := peer.(*unix.SockaddrInet4); err == nil && (!ok || to.Port != int(proxy.Port())) {
				return fmt.Errorf("it reached %v", peer)
			}
		}
		unix.Close(fd)
	}
	stop.Store(true)
	<-stopped
	if reached == 0 {
		return errors.New("no connection came through at all")
	}
	return nil
}
