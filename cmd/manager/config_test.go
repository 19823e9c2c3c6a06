package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execsession.dev/api/v1alpha1"
)

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good.yaml", "workers: 3\ninjection: InitContainer\nworkspace-image: from-file\n")
	lists := file("lists.yaml", "cluster-cidrs: [10.96.0.0/16, 10.244.0.0/16]\n")
	misspelt := file("bad.yaml", "worker: 3\n")
	cases := map[string]struct {
		reason string
		args   []string
		env    map[string]string
		check  func(Config) bool
		// wrong are the settings that the error must name; none is no error.
		wrong []string
	}{
		"defaults": {
			reason: "only the namespace has no default outside of a pod",
			args:   []string{"--namespace=n"},
			check: func(c Config) bool {
				return c.Workers == 8 && c.LeaderElect && c.Injection == "" && c.UserNamespaces == nil
			},
		},
		"precedence": {
			reason: "flag before variable before file",
			args:   []string{"--config=" + good, "--namespace=n", "--workers=5"},
			env:    map[string]string{"EXECSESSION_WORKERS": "4", "EXECSESSION_WORKSPACE_IMAGE": "from-env"},
			check: func(c Config) bool {
				return c.Workers == 5 && c.WorkspaceImage == "from-env" && c.Injection == v1alpha1.InjectionInitContainer
			},
		},
		"lists": {
			reason: "addresses are prefixes, and a variable is one text",
			args:   []string{"--namespace=n", "--cluster-cidrs=10.96.0.0/16,2001:db8::/48", "--network-policy-enforced"},
			env:    map[string]string{"EXECSESSION_DNS_CIDRS": "169.254.20.10, 10.0.0.2"},
			check: func(c Config) bool {
				return fmt.Sprint(c.ClusterCIDRs, c.DNSServers) == "[10.96.0.0/16 2001:db8::/48] [169.254.20.10/32 10.0.0.2/32]" && c.NetworkPolicyEnforced
			},
		},
		"lists in a file": {
			reason: "a list of the file is a list",
			args:   []string{"--config=" + lists, "--namespace=n"},
			check:  func(c Config) bool { return fmt.Sprint(c.ClusterCIDRs) == "[10.96.0.0/16 10.244.0.0/16]" },
		},
		"variables": {
			reason: "everything can be a variable",
			env:    map[string]string{"EXECSESSION_NAMESPACE": "n", "EXECSESSION_USER_NAMESPACES": "Never", "EXECSESSION_LEADER_ELECT": "false"},
			check:  func(c Config) bool { return !c.LeaderElect && !*c.UserNamespaces },
		},
		"unknown setting": {reason: "a misspelt one would be a default", args: []string{"--config=" + misspelt, "--namespace=n"}, wrong: []string{"worker"}},
		"no file":         {reason: "a file that was named must be there", args: []string{"--config=" + dir + "/none.yaml"}, wrong: []string{"none.yaml"}},
		"argument":        {reason: "nothing is passed over", args: []string{"run"}, wrong: []string{"run"}},
		"many": {
			reason: "all that is wrong is told at once",
			args:   []string{"--namespace=n", "--workers=0", "--injection=Magic", "--image-pull-policy=Sometimes", "--log-level=loud", "--agent-image=", "--cluster-cidrs=10.0.0.1/8,pods"},
			env:    map[string]string{"EXECSESSION_RETRY_PERIOD": "soon", "EXECSESSION_LEADER_ELECT": "maybe"},
			wrong:  []string{"workers", "Magic", "Sometimes", "loud", "agent-image", "soon", "maybe", "10.0.0.1/8", "pods"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for key, value := range tc.env {
				t.Setenv(key, value)
			}
			got, err := load(tc.args)
			if (err != nil) != (len(tc.wrong) > 0) {
				t.Fatalf("%s: load returned %v", tc.reason, err)
			}
			for _, word := range tc.wrong {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%s: the error does not name %q: %v", tc.reason, word, err)
				}
			}
			if tc.check != nil && !tc.check(got) {
				t.Errorf("%s: load returned %+v", tc.reason, got)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	var out, log bytes.Buffer
	if err := run(t.Context(), []string{"version"}, &out, &log); err != nil {
		t.Fatalf("without a cluster or settings: %v", err)
	}
	if got := out.String(); got != version+"\n" {
		t.Errorf("got %q, want version %q", got, version)
	}
}
