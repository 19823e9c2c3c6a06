package main

import (
	"net"
	"strings"
	"testing"
)

// Lines as the kernel of a little-endian machine prints them; 0A is listening, 01 is connected.
const procTCP = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:280A 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1001 1
   1: 0100007F:305B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1002 1
   2: 0100620A:403B 0100620A:C001 01 00000000:00000000 00:00000000 00000000     0        0 1003 1
   3: 3500007F:0035 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1004 1
`

const procTCP6 = `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:4F11 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2001 1
   1: 0000000000000000FFFF00000100007F:4F19 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2002 1
`

func TestPortErrors(t *testing.T) {
	sockets := map[string][]socket{"tcp": append(parseSockets("tcp", procTCP), parseSockets("tcp", procTCP6)...)}
	tests := map[string]struct {
		reason string
		listen listen
		want   string // inode of the socket in the way
	}{
		"all addresses":      {reason: "a listener on every address is in the way of one", listen: listen{"tcp", "10.98.0.1", 10250}, want: "1001"},
		"same address":       {reason: "so is one on the same address", listen: listen{"tcp", "127.0.0.1", 12379}, want: "1002"},
		"other address":      {reason: "one on another address is not", listen: listen{"tcp", "10.98.0.1", 12379}},
		"want all":           {reason: "unless every address is wanted", listen: listen{"tcp", "0.0.0.0", 12379}, want: "1002"},
		"connection":         {reason: "a connection holds no port", listen: listen{"tcp", "10.98.0.1", 16443}},
		"stub resolver":      {reason: "a resolver on another loopback address may stay", listen: listen{"tcp", "10.98.0.1", 53}},
		"all IPv6 addresses": {reason: "listening on [::] takes IPv4 as well", listen: listen{"tcp", "127.0.0.1", 20241}, want: "2001"},
		"mapped address":     {reason: "an IPv4 address may be written as an IPv6 one", listen: listen{"tcp", "127.0.0.1", 20249}, want: "2002"},
		"other network":      {reason: "TCP is not in the way of UDP", listen: listen{"udp", "10.98.0.1", 10250}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			processes := []planned{{Name: "component", Listens: []listen{tt.listen}}}
			err := portErrors(processes, sockets, func(inode string) string { return "inode " + inode })
			if tt.want == "" {
				if err != nil {
					t.Errorf("%s: %v", tt.reason, err)
				}
				return
			}
			if err == nil || !strings.HasSuffix(err.Error(), "needed by component, is taken by inode "+tt.want) {
				t.Errorf("%s: got %v", tt.reason, err)
			}
		})
	}
}

// The whole path against the kernel: a port that this test listens on is found, with this process as its holder.
func TestCheckPortsNamesHolder(t *testing.T) {
	if !onLinux {
		t.Skip("sockets are listed on Linux only")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	port := listener.Addr().(*net.TCPAddr).Port
	err = checkPorts([]planned{{Name: "kubelet", Listens: loopback(port)}})
	if err == nil || !strings.Contains(err.Error(), "needed by kubelet, is taken by process") || !strings.Contains(err.Error(), "(cluster.test)") {
		t.Errorf("got %v", err)
	}
}
