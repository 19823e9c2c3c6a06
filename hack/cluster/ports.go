package main

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// listen is a port that a component will take.
type listen struct {
	network string // tcp or udp
	address string
	port    int
}

// socket is a line of /proc/net/tcp or its likes: a socket that waits for peers.
type socket struct {
	address netip.AddrPort
	inode   string
}

// socketFiles are where the kernel lists sockets, by network.
var socketFiles = map[string][]string{
	"tcp": {"/proc/net/tcp", "/proc/net/tcp6"},
	"udp": {"/proc/net/udp", "/proc/net/udp6"},
}

// waiting are the states, in the kernel's notation, of a socket that holds a port: TCP listening, UDP unconnected.
var waiting = map[string]string{"tcp": "0A", "udp": "07"}

// parseSockets reads the sockets of a network that hold a port out of such a file.
func parseSockets(network, text string) []socket {
	var sockets []socket
	for line := range strings.SplitSeq(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[3] != waiting[network] {
			continue
		}
		address, err := parseSocketAddress(fields[1])
		if err != nil {
			continue
		}
		sockets = append(sockets, socket{address: address, inode: fields[9]})
	}
	return sockets
}

// parseSocketAddress reads ADDRESS:PORT in hexadecimal, the address in words of the machine's byte order.
func parseSocketAddress(text string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(text, ":")
	words, err := hex.DecodeString(host)
	if err != nil || len(words)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("parsing socket address %q", text)
	}
	for i := 0; i < len(words); i += 4 {
		binary.BigEndian.PutUint32(words[i:], binary.NativeEndian.Uint32(words[i:]))
	}
	address, ok := netip.AddrFromSlice(words)
	number, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("parsing socket address %q", text)
	}
	return netip.AddrPortFrom(address.Unmap(), uint16(number)), nil
}

// conflicts says whether the socket keeps the port from being taken: it does on the same address, and if either of the
// two means all addresses.
func (s socket) conflicts(l listen) bool {
	if int(s.address.Port()) != l.port {
		return false
	}
	want := netip.MustParseAddr(l.address)
	return want.IsUnspecified() || s.address.Addr().IsUnspecified() || s.address.Addr() == want
}

// checkPorts says which ports that the processes need are taken, and by whom if that can be seen.
func checkPorts(processes []planned) error {
	sockets := map[string][]socket{}
	for network, names := range socketFiles {
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("reading sockets: %w", err)
			}
			sockets[network] = append(sockets[network], parseSockets(network, string(text))...)
		}
	}
	return portErrors(processes, sockets, socketHolder)
}

func portErrors(processes []planned, sockets map[string][]socket, holder func(inode string) string) error {
	var problems []error
	for _, p := range processes {
		for _, l := range p.Listens {
			i := slices.IndexFunc(sockets[l.network], func(s socket) bool { return s.conflicts(l) })
			if i < 0 {
				continue
			}
			by := holder(sockets[l.network][i].inode)
			if by == "" {
				by = "a process that cannot be seen from here"
			}
			problems = append(problems, fmt.Errorf("%s port %d, needed by %s, is taken by %s", l.network, l.port, p.Name, by))
		}
	}
	return errors.Join(problems...)
}

// socketHolder finds the process that has the socket open.
func socketHolder(inode string) string {
	names, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, name := range names {
		target, err := os.Readlink(name)
		if err != nil || target != "socket:["+inode+"]" {
			continue
		}
		pid := strings.Split(name, "/")[2]
		command, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			continue
		}
		return fmt.Sprintf("process %s (%s)", pid, strings.TrimSpace(string(command)))
	}
	return ""
}
