//go:build linux

package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execsession.dev/agentd/ledger"
)

// cluster is a namespace of the real cluster.
type cluster struct {
	kubeconfig, bin, namespace string
	program                    string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{
		kubeconfig: os.Getenv("EXECSESSION_E2E_KUBECONFIG"), bin: os.Getenv("EXECSESSION_E2E_BIN"),
		namespace: "cases-" + strings.ToLower(rand.Text()[:8]),
	}
	if c.kubeconfig == "" || c.bin == "" {
		t.Skip("EXECSESSION_E2E_KUBECONFIG and EXECSESSION_E2E_BIN are not set; `make test` boots a cluster and sets them")
	}
	program, err := os.ReadFile(build(t, "execsession.dev/test/sandboxcases"))
	if err != nil {
		t.Fatal(err)
	}
	c.program = string(program)
	c.kubectl(t, "", "create", "namespace", c.namespace)
	t.Cleanup(func() {
		// The test's own context is over by now, and nobody waits for the namespace.
		_ = runQuietly(filepath.Join(c.bin, "kubectl"), "--kubeconfig", c.kubeconfig, "delete", "namespace", c.namespace, "--wait=false")
	})
	c.kubectl(t, "", "label", "namespace", c.namespace, "pod-security.kubernetes.io/enforce=restricted")
	return c
}

func (c *cluster) kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	text, err := output(t, stdin, filepath.Join(c.bin, "kubectl"), append([]string{"--kubeconfig", c.kubeconfig, "--namespace", c.namespace}, args...)...)
	return must(t, text, err)
}

func (c *cluster) plugin(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	args = append([]string{args[0], "--kubeconfig", c.kubeconfig, "--namespace", c.namespace}, args[1:]...)
	text, err := output(t, stdin, filepath.Join(c.bin, "kubectl-execsession"), args...)
	return must(t, text, err)
}

// session is a session of the tools image, with the program in its workspace.
type session struct {
	*cluster
	name string
}

// start makes a session; profile is the spec of a profile of its own, "" for the one that the chart installs, and pod what its
// pod is to have beside.
func (c *cluster) start(t *testing.T, name, profile, pod string) session {
	t.Helper()
	c.kubectl(t, c.manifest(name, profile, pod), "apply", "-f", "-")
	c.kubectl(t, "", "wait", "--for=condition=AgentReady", "xs/"+name, "--timeout=100s")
	c.kubectl(t, "", "wait", "--for=condition=SandboxEnforced", "xs/"+name, "--timeout=10s")
	s := session{cluster: c, name: name}
	c.plugin(t, c.program, "run", "-i", name, "--", "sh", "-c", "cat >"+workspaceBinary+" && chmod +x "+workspaceBinary)
	return s
}

// manifest is a session, and its profile if it has one of its own.
func (c *cluster) manifest(name, profile, pod string) string {
	manifest := fmt.Sprintf("apiVersion: execsession.dev/v1alpha1\nkind: ExecSession\nmetadata: {name: %s}\nspec:\n  workspace: {image: 'execsession.dev/tools:dev'}\n", name)
	if pod != "" {
		manifest += "  pod: " + pod + "\n"
	}
	if profile != "" {
		manifest += fmt.Sprintf("  profileRef: {kind: SandboxProfile, name: %[1]s}\n---\napiVersion: execsession.dev/v1alpha1\nkind: SandboxProfile\n"+
			"metadata: {name: %[1]s}\nspec: %[2]s\n", name, profile)
	}
	return manifest
}

func (s session) run(t *testing.T, argv ...string) (id int32, output string) {
	t.Helper()
	said := s.plugin(t, "", append([]string{"run", "--detach", s.name, "--"}, argv...)...)
	number, err := strconv.ParseInt(strings.TrimSpace(said), 10, 32)
	if err != nil {
		t.Fatalf("the number of %q: %v", argv, err)
	}
	return int32(number), s.plugin(t, "", "logs", "--stream", "stdout", "-f", s.name, strings.TrimSpace(said))
}

func (s session) records(t *testing.T) []ledger.Record {
	t.Helper()
	return parseLedger(t, s.kubectl(t, "", "logs", "execsession-"+s.name, "-c", "workspace"))
}

// isAlive checks that the agent is the one that it was at first, and answers.
func (s session) isAlive(t *testing.T) {
	t.Helper()
	if said := s.plugin(t, "", "run", s.name, "--", "echo", "alive"); said != "alive\n" {
		t.Errorf("session %s says %q", s.name, said)
	}
	if count := s.kubectl(t, "", "get", "pod", "execsession-"+s.name, "-o", "jsonpath={.status.containerStatuses[0].restartCount}"); count != "0" {
		t.Errorf("the container of session %s was restarted %s times", s.name, count)
	}
}

func (s session) hostUsers(t *testing.T) string {
	t.Helper()
	return s.kubectl(t, "", "get", "pod", "execsession-"+s.name, "-o", "jsonpath={.spec.hostUsers}")
}

// TestCasesInPods makes all forty in pods of the real cluster: in the default profile, and in others where the case says so.
func TestCasesInPods(t *testing.T) {
	c := newCluster(t)
	var results []map[int]found
	profiles := map[string]string{
		"Default":  "",
		"Loopback": "{network: {mode: Loopback}}",
		"Proxy":    "{network: {mode: Proxy}}",
		"Guarded": "{filesystem: {readOnlyPaths: [/workspace/.git, /workspace/.claude, /workspace/guarded/inner], " +
			"deniedPaths: [/srv/denied, /workspace/secret]}}",
	}
	for profile, spec := range profiles {
		s := c.start(t, strings.ToLower(profile), spec, "")
		result := try(t, s, profile)
		s.isAlive(t)
		for _, line := range lines(result) {
			if strings.HasSuffix(line, "|absent") {
				t.Errorf("the image of tools lacks a program: %s", line)
			}
		}
		if profile == "Default" {
			compareUsers(t, c, s, result)
			results = append(results, map[int]found{39: s.daemonsEnd(t)})
		}
		results = append(results, result)
		c.kubectl(t, "", "delete", "--wait=false", "xs/"+s.name)
	}
	results = append(results, map[int]found{40: c.refuses(t)})
	report(t, "pods", results...)
}

// daemonsEnd is the part of case 39 that one command cannot see: what left its group and its session is gone after a timeout and a stop.
func (s session) daemonsEnd(t *testing.T) (f found) {
	t.Helper()
	const daemon = "setsid -f sleep %s; sleep 600"
	ends := map[string]func(script string){
		"987001": func(script string) {
			// It ends with the code of a timeout.
			_, _ = output(t, "", filepath.Join(s.bin, "kubectl-execsession"), "run", "--kubeconfig", s.kubeconfig, "--namespace", s.namespace,
				"--timeout", "2s", s.name, "--", "sh", "-c", script)
		},
		"987002": func(script string) {
			id := strings.TrimSpace(s.plugin(t, "", "run", "--detach", s.name, "--", "sh", "-c", script))
			s.plugin(t, "", "run", s.name, "--", "sh", "-c", "until pgrep -f \"^sleep 987002\"; do sleep 0.1; done")
			s.plugin(t, "", "stop", s.name, id)
		},
	}
	for nap, end := range ends {
		end(fmt.Sprintf(daemon, nap))
		if left := s.plugin(t, "", "run", s.name, "--", "sh", "-c", "pgrep -ax sleep | grep "+nap+" || true"); left != "" {
			f.problems = append(f.problems, "a daemon outlived its command: "+left)
		}
	}
	return f
}

// refuses is the part of case 40 that no command sees, because none runs: a policy that this node cannot enforce.
func (c *cluster) refuses(t *testing.T) (f found) {
	t.Helper()
	c.kubectl(t, c.manifest("refused", "{minLandlockABI: 11}", ""), "apply", "-f", "-")
	c.kubectl(t, "", "wait", "--for=condition=SandboxEnforced=False", "xs/refused", "--timeout=100s")
	_, err := output(t, "", filepath.Join(c.bin, "kubectl-execsession"), "run", "--kubeconfig", c.kubeconfig, "--namespace", c.namespace,
		"--wait-timeout", "5s", "refused", "--", "true")
	if err == nil || !strings.Contains(err.Error(), "minLandlockABI") {
		f.problems = append(f.problems, fmt.Sprintf("a command of a profile that cannot be enforced gave %v", err))
	}
	return f
}

// compareUsers makes the cases of the default profile again in a pod without a user namespace of its own, and compares line by line.
func compareUsers(t *testing.T, c *cluster, own session, result map[int]found) {
	t.Helper()
	if users := own.hostUsers(t); users != "false" {
		t.Logf("skipped: the comparison with hostUsers: false; the node's runtime has no user namespaces (hostUsers is %q)", users)
		return
	}
	// A session that names a runtime class keeps the host's users.
	class := c.namespace
	c.kubectl(t, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: "+class+"}\nhandler: runc\n", "apply", "-f", "-")
	t.Cleanup(func() {
		_ = runQuietly(filepath.Join(c.bin, "kubectl"), "--kubeconfig", c.kubeconfig, "delete", "runtimeclass", class)
	})
	host := c.start(t, "hostusers", "", "{runtimeClassName: "+class+"}")
	if users := host.hostUsers(t); users == "false" {
		t.Fatal("the session with a runtime class has a user namespace too")
	}
	other := try(t, host, "Default")
	host.isAlive(t)
	report(t, "a pod with the host's users", other)
	if diff := cmp.Diff(lines(result), lines(other)); diff != "" {
		t.Errorf("with hostUsers: false and without the cases differ (-false +host):\n%s", diff)
	}
	t.Logf("%d lines are the same with hostUsers: false and with the host's users", len(lines(other)))
	c.kubectl(t, "", "delete", "--wait=false", "xs/"+host.name)
}
