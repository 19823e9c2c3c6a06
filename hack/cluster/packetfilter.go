package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// masqueradeChain holds the one rule that lets pods reach other machines: their own addresses mean nothing there.
const masqueradeChain = "XS-MASQUERADE"

// ownedChain says whether a chain was made by this cluster or its components. Two kube-proxies cannot share a machine,
// so their chains need no finer distinction.
func ownedChain(name string) bool {
	for _, prefix := range []string{"KUBE-", "CNI-", "XS-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// removalScript turns the output of iptables-save into the input of iptables-restore --noflush that removes the owned
// chains and every rule elsewhere that leads to them, and leaves all the rest alone.
func removalScript(save string, owned func(chain string) bool) string {
	var script strings.Builder
	var chains, rules []string
	for line := range strings.SplitSeq(save, "\n") {
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "*"):
			script.WriteString(line + "\n")
			chains, rules = nil, nil
		case strings.HasPrefix(line, ":") && owned(strings.TrimPrefix(fields[0], ":")):
			chains = append(chains, strings.TrimPrefix(fields[0], ":"))
		case len(fields) > 1 && fields[0] == "-A" && !owned(fields[1]) && leadsTo(line, owned):
			rules = append(rules, "-D"+strings.TrimPrefix(line, "-A"))
		case line == "COMMIT":
			for _, rule := range rules {
				script.WriteString(rule + "\n")
			}
			// All are emptied before any is removed: they refer to each other.
			for _, verb := range []string{"-F ", "-X "} {
				for _, chain := range chains {
					script.WriteString(verb + chain + "\n")
				}
			}
			script.WriteString("COMMIT\n")
		}
	}
	return script.String()
}

// quoted is an argument of a rule that may hold anything, such as a comment that looks like another argument.
var quoted = regexp.MustCompile(`"(\\.|[^"\\])*"`)

func leadsTo(rule string, owned func(string) bool) bool {
	fields := strings.Fields(quoted.ReplaceAllString(rule, "quoted"))
	for i, field := range fields[:len(fields)-1] {
		if (field == "-j" || field == "-g") && owned(fields[i+1]) {
			return true
		}
	}
	return false
}

// masquerade adds the rule for traffic that leaves the machine.
func masquerade(ctx context.Context, l layout) error {
	script := fmt.Sprintf(`*nat
:%[1]s - [0:0]
-A POSTROUTING -s %[2]s -m comment --comment "execsession cluster: pods to other machines" -j %[1]s
-A %[1]s -d %[2]s -j RETURN
-A %[1]s -d %[3]s -j RETURN
-A %[1]s -j MASQUERADE
COMMIT
`, masqueradeChain, l.PodCIDR, l.NodeAddress)
	_, err := output(ctx, []byte(script), "iptables-restore", "--noflush", "-w", "10")
	return err
}

// cleanPacketFilter removes the cluster's chains and the address sets that they matched.
func cleanPacketFilter(ctx context.Context) error {
	var problems []error
	for _, family := range []string{"iptables", "ip6tables"} {
		if !onPath(family + "-save")() {
			continue
		}
		save, err := output(ctx, nil, family+"-save")
		if err != nil {
			problems = append(problems, err)
			continue
		}
		script := removalScript(save, ownedChain)
		if _, err := output(ctx, []byte(script), family+"-restore", "--noflush", "-w", "10"); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(append(problems, cleanAddressSets(ctx))...)
}

func cleanAddressSets(ctx context.Context) error {
	if !onPath("ipset")() {
		return nil
	}
	names, err := output(ctx, nil, "ipset", "list", "-name")
	if err != nil {
		return err
	}
	var problems []error
	for name := range strings.FieldsSeq(names) {
		if ownedAddressSet(name) {
			problems = append(problems, run(ctx, "ipset", "destroy", name))
		}
	}
	return errors.Join(problems...)
}

// ownedAddressSet says whether the network policy firewall made a set; it prefixes those of the other family.
func ownedAddressSet(name string) bool {
	name = strings.TrimPrefix(name, "inet6:")
	return strings.HasPrefix(name, "KUBE-") || strings.HasPrefix(name, "kube-router-")
}
