package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// inotifyInstances is how many watchers a user may have: every pod's agent and every log follower takes some, and the
// usual 128 is gone at a few dozen pods.
const inotifyInstances = 8192

// setUpNetwork gives the machine the node's address and what forwarding to pods takes.
func setUpNetwork(ctx context.Context, l layout) error {
	// Not every kernel has dummy devices; a bridge without ports carries an address just as well.
	for _, args := range [][]string{
		{"link", "add", l.NodeBridge, "type", "bridge"},
		{"address", "add", l.NodeAddress + "/32", "dev", l.NodeBridge},
		{"link", "set", l.NodeBridge, "up"},
	} {
		if err := run(ctx, "ip", args...); err != nil {
			return err
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return fmt.Errorf("allowing forwarding: %w", err)
	}
	// Bridged packets have to pass the packet filter, or policies and services do not hold between two pods.
	if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("1"), 0); err != nil {
		if err := run(ctx, "modprobe", "br_netfilter"); err != nil {
			return fmt.Errorf("filtering bridged packets: %w", err)
		}
	}
	if err := raiseInotify("/proc/sys/fs/inotify/max_user_instances"); err != nil {
		return err
	}
	return masquerade(ctx, l)
}

func raiseInotify(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("reading the limit of watchers: %w", err)
	}
	if limit, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && limit >= inotifyInstances {
		return nil
	}
	if err := os.WriteFile(name, []byte(strconv.Itoa(inotifyInstances)), 0); err != nil {
		return fmt.Errorf("raising the limit of watchers: %w", err)
	}
	return nil
}

// tearDownNetwork removes the bridges, what the network plugins remember, and the packet filter's chains.
func tearDownNetwork(ctx context.Context) error {
	var problems []error
	for _, bridge := range []string{podBridge, nodeBridge} {
		if _, err := net.InterfaceByName(bridge); err == nil {
			problems = append(problems, run(ctx, "ip", "link", "delete", bridge))
		}
	}
	// The plugins' library keeps results in a folder that nothing can move. Ours name a network namespace of ours.
	results, _ := filepath.Glob("/var/lib/cni/results/*")
	for _, name := range results {
		if text, err := os.ReadFile(name); err == nil && strings.Contains(string(text), `"`+runDir+"/") {
			problems = append(problems, os.Remove(name))
		}
	}
	problems = append(problems, cleanPacketFilter(ctx))
	return errors.Join(problems...)
}

// upstreamServers are the DNS servers for names outside the cluster, as a file of the DNS server's configuration. It
// is no part of the plan: a laptop that changes networks does not need another cluster.
func upstreamServers() []byte {
	var servers []string
	text, _ := os.ReadFile("/etc/resolv.conf")
	for line := range strings.SplitSeq(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "nameserver" && fields[1] != nodeAddress {
			servers = append(servers, "nameserver "+fields[1])
		}
	}
	if len(servers) == 0 {
		// The server insists on one; an address for documentation never answers, which is the truth.
		servers = []string{"nameserver 192.0.2.53"}
	}
	return []byte(strings.Join(servers, "\n") + "\n")
}
