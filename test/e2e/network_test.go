package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestNetwork runs the scripts that need a machine of their own to reach: a server at a public-looking address
// of the node, with names in the cluster's DNS. Both are changes of the node, so only the cluster of hack/cluster can have them.
func TestNetwork(t *testing.T) {
	env := fromEnvironment(t)
	if os.Getuid() != 0 {
		t.Skip("making a bridge on the node needs root")
	}
	if _, err := os.Stat(hostsFile); err != nil {
		t.Skipf("the cluster's DNS is not that of hack/cluster, so it can be given no names: %v", err)
	}
	if err := removeLeftovers(t.Context()); err != nil {
		t.Fatal(err)
	}
	fetch := filepath.Join(t.TempDir(), "fetch")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", fetch, "./testdata/fetch")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building fetch: %v\n%s", err, out)
	}
	params := env.params(filepath.Join("testdata", "network"))
	params.Setup = func(e *testscript.Env) error {
		e.Setenv("FETCH", fetch)
		return env.setup(e)
	}
	params.Cmds["publicserver"] = publicServer
	params.Cmds["name"] = giveName
	params.Cmds["denied"] = denied
	testscript.Run(t, params)
}

// publicserver makes a bridge with a public-looking address, serves HTTP and HTTPS there until the script ends, and
// sets SERVER (the address), ZONE (the domain of its names) and DECIMAL and OCTAL (other spellings of the address).
// The authority of its certificate is in ca.pem.
func publicServer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: publicserver")
	}
	random := randomHex()
	address := netip.AddrFrom4([4]byte{93, 184, 1 + hexByte(random[:2])%250, 1 + hexByte(random[2:4])%250})
	bridge := &bridge{name: "xse2e-" + random, address: address}
	if err := bridge.make(); err != nil {
		ts.Fatalf("publicserver: %v", err)
	}
	ts.Defer(func() {
		if err := bridge.remove(); err != nil {
			ts.Logf("removing the bridge of a test: %v", err)
		}
	})
	zone := random + ".example"
	authority, stop, err := serve(address, zone)
	if err != nil {
		ts.Fatalf("publicserver: %v", err)
	}
	ts.Defer(stop)
	if err := os.WriteFile(ts.MkAbs("ca.pem"), authority, 0o600); err != nil {
		ts.Fatalf("publicserver: %v", err)
	}
	bytes := address.As4()
	for name, value := range map[string]string{
		"BRIDGE": bridge.name, "SERVER": address.String(), "ZONE": zone,
		"DECIMAL": fmt.Sprint(uint32(bytes[0])<<24 | uint32(bytes[1])<<16 | uint32(bytes[2])<<8 | uint32(bytes[3])),
		"OCTAL":   fmt.Sprintf("%#o.%#o.%#o.%#o", bytes[0], bytes[1], bytes[2], bytes[3]),
	} {
		ts.Setenv(name, value)
	}
}

// name NAME ADDRESS... gives names to the cluster's DNS, which are gone with the bridge, and waits for it to know them.
func giveName(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args)%2 != 0 {
		ts.Fatalf("usage: name NAME ADDRESS [NAME ADDRESS...]")
	}
	var lines []string
	for pair := range slices.Chunk(args, 2) {
		lines = append(lines, pair[1]+" "+pair[0])
	}
	dns, err := addNames(ts.Getenv("BRIDGE"), lines)
	if err != nil {
		ts.Fatalf("name: %v", err)
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(dns, "53"))
	}}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		found, err := resolver.LookupHost(ctx, args[len(args)-2]+".")
		if slices.Contains(found, args[len(args)-1]) {
			return
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			ts.Fatalf("name: the cluster's DNS says %v, %v", found, err)
		}
	}
}

// denied POD TEXT... waits for a record of a denial that holds all of the texts in the log of a pod.
func denied(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: denied POD TEXT...")
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := ts.Exec("kubectl", "logs", args[0])
		log := ts.ReadFile("stdout")
		if err == nil && slices.ContainsFunc(strings.Split(log, "\n"), func(line string) bool { return isDenial(line, args[1:]) }) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("denied: no record of a denial holds %q (%v) in:\n%s", args[1:], err, log)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func isDenial(line string, texts []string) bool {
	var record struct {
		Type   string         `json:"type"`
		Denied map[string]any `json:"denied"`
	}
	if json.Unmarshal([]byte(line), &record) != nil || record.Type != "denied" {
		return false
	}
	var said strings.Builder
	for key, value := range record.Denied {
		fmt.Fprintf(&said, "%s=%v\n", key, value)
	}
	return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(said.String(), text) })
}

// TestLeftovers: a test that is killed leaves a bridge and names, and the next one removes them.
func TestLeftovers(t *testing.T) {
	if _, err := os.Stat(hostsFile); err != nil || os.Getuid() != 0 {
		t.Skipf("making a bridge on the node of hack/cluster needs root and that cluster (uid %d, %v)", os.Getuid(), err)
	}
	ended := exec.CommandContext(t.Context(), "true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	random := randomHex()
	left := &bridge{name: "xse2e-" + random, address: netip.MustParseAddr("93.184.255.254")}
	if err := left.make(); err != nil {
		t.Fatal(err)
	}
	if _, err := addNames(left.name, []string{"93.184.255.254 " + random + ".example"}); err != nil {
		t.Fatal(err)
	}
	if err := left.record(ended.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := removeLeftovers(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := net.InterfaceByName(left.name); err == nil {
		t.Errorf("bridge %s is still there", left.name)
	}
	hosts, err := os.ReadFile(hostsFile)
	if err != nil || strings.Contains(string(hosts), random) {
		t.Errorf("the names are still there (%v):\n%s", err, hosts)
	}
}
