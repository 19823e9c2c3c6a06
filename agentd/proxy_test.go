package agentd

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"execsession.dev/sandbox"
	"execsession.dev/sandbox/egress"
)

func proxyDocuments(revision int64, allowed ...string) documents {
	read := validDocuments(revision)
	read.policy.Sandbox.Network = sandbox.Network{Mode: sandbox.ProxyNetwork, AllowedDomains: allowed, Methods: "Full"}
	return read
}

// TestProxyPolicy runs real commands under network mode Proxy: the proxy is all that they reach, it does what the
// policy in force says, and each refusal stands in the ledger.
func TestProxyPolicy(t *testing.T) {
	caps := sandbox.Probe()
	if !caps.UserNotify || !caps.BindToDevice || caps.LandlockABI < 6 {
		t.Skipf("network mode Proxy cannot be had here: %+v", caps)
	}
	greeter := greetOn(t)
	p, keeper := testPolicy(t)
	var out deniedRecords
	p.denials = newDenials(&out, time.Now)

	p.adopt(proxyDocuments(1, "127.0.0.1:"+strconv.Itoa(int(greeter.Port()))))
	if s := p.current(); !s.valid() || s.report.Network != "Proxy" || !s.report.Enforced {
		t.Fatalf("got %s %s %+v", s.reason, s.message, s.report)
	}
	address := p.current().proxy
	if got := keeper.current.Environment.Set["https_proxy"]; got != "http://"+address.String() {
		t.Errorf("commands are told the proxy %q", got)
	}
	through := fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d && printf 'CONNECT %s HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n' >&3 && head -n 1 <&3", address.Port(), greeter, greeter)
	directly := fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d", greeter.Port())

	if text := runScript(t, p, keeper, 1, through); !strings.Contains(text, " 200 ") {
		t.Errorf("an allowed address through the proxy: %q", text)
	}
	if text := runScript(t, p, keeper, 2, directly); !strings.Contains(text, "Permission denied") {
		t.Errorf("around the proxy: %q", text)
	}
	p.adopt(proxyDocuments(2))
	if p.current().proxy != address {
		t.Errorf("the proxy moved from %s to %s", address, p.current().proxy)
	}
	if text := runScript(t, p, keeper, 3, through); !strings.Contains(text, " 403 ") {
		t.Errorf("through the proxy when nothing is allowed any more: %q", text)
	}
	var told []string
	for _, d := range out.kept {
		told = append(told, fmt.Sprintf("%d %s %s", d.ID, d.Rule, d.Address))
	}
	want := []string{"2 connect " + greeter.String(), "0 egress " + greeter.String()}
	if fmt.Sprint(told) != fmt.Sprint(want) {
		t.Errorf("the ledger tells %q, want %q", told, want)
	}
}

// TestProxyGuardsTheCluster: what the document says of the cluster's addresses reaches the rules in force.
func TestProxyGuardsTheCluster(t *testing.T) {
	p, _ := testPolicy(t)
	read := proxyDocuments(1, "*")
	read.guarded = []egress.Range{{Prefix: netip.MustParsePrefix("93.184.0.0/16"), Name: "a service of the cluster"}}
	p.adopt(read)
	t.Cleanup(p.close)
	if s := p.current(); !s.valid() {
		t.Skipf("network mode Proxy cannot be had here: %s: %s", s.reason, s.message)
	}
	for address, want := range map[string]egress.Reason{"93.184.216.34": egress.ReasonAddress, "93.185.216.34": egress.ReasonAllowed} {
		d := p.current().rules.Decide(egress.Query{
			Protocol: egress.ProtocolConnect, Host: "example.com", Port: 443, Addresses: []netip.Addr{netip.MustParseAddr(address)},
		})
		if d.Reason != want {
			t.Errorf("an allowed name at %s: %s, want %s", address, d.Reason, want)
		}
	}
}

// greetOn listens and greets until the test ends.
func greetOn(t *testing.T) netip.AddrPort {
	t.Helper()
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() { // ends with its listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewWriter(conn).WriteString("g")
			_ = conn.Close()
		}
	}()
	return netip.MustParseAddrPort(listener.Addr().String())
}

// runScript runs bash as the engine would and returns what it says.
func runScript(t *testing.T, p *policy, keeper *settingsKeeper, id int32, script string) string {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	pid, err := keeper.start()("/bin/bash", []string{"bash", "-c", script}, &syscall.ProcAttr{
		Dir: "/", Env: []string{"PATH=/usr/bin:/bin"}, Files: []uintptr{0, writer.Fd(), writer.Fd()}, Sys: &syscall.SysProcAttr{},
	})
	_ = writer.Close()
	if err != nil {
		t.Fatal(err)
	}
	p.denials.identify(pid, id)
	said, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := process.Wait(); err != nil {
		t.Fatal(err)
	}
	p.denials.settle(time.Minute)
	return string(said)
}
