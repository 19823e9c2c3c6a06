package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/wire"
	"execsession.dev/sandbox"
)

func explain(t *testing.T, c wire.AgentClient, request *wire.ExplainRequest) *wire.ExplainResponse {
	t.Helper()
	answer, err := c.Explain(t.Context(), request)
	if err != nil {
		t.Fatalf("explaining %v: %v", request, err)
	}
	return answer
}

func aboutPath(path string, access wire.FileAccess) *wire.ExplainRequest {
	return &wire.ExplainRequest{About: &wire.ExplainRequest_Path{Path: &wire.ExplainPath{Path: path, Access: access}}}
}

func aboutHost(host string, port uint32) *wire.ExplainRequest {
	return &wire.ExplainRequest{About: &wire.ExplainRequest_Host{Host: &wire.ExplainHost{Host: host, Port: port}}}
}

func aboutCall(name string, arguments ...uint64) *wire.ExplainRequest {
	return &wire.ExplainRequest{About: &wire.ExplainRequest_Syscall{Syscall: &wire.ExplainSyscall{Name: name, Arguments: arguments}}}
}

func TestLocalExplain(t *testing.T) {
	l := startLocal(t)
	const allowed, refused, depends = wire.Outcome_OUTCOME_ALLOWED, wire.Outcome_OUTCOME_REFUSED, wire.Outcome_OUTCOME_DEPENDS
	cases := map[string]struct {
		reason  string
		request *wire.ExplainRequest
		outcome wire.Outcome
		rule    string
		errno   string
	}{
		"Relative": {"a path from the workspace", aboutPath("new/../file", wire.FileAccess_FILE_ACCESS_WRITE), refused, "FilePermissions", "ENOENT"},
		"New":      {"a file that can be made", aboutPath("file", wire.FileAccess_FILE_ACCESS_WRITE), allowed, "layout.workspace", ""},
		"Read":     {"no access means reading", aboutPath("/etc/passwd", 0), allowed, "filesystem.mode", ""},
		"Outside":  {"the mode", aboutPath("/etc/passwd", wire.FileAccess_FILE_ACCESS_WRITE), refused, "filesystem.mode", "EACCES"},
		"Agent":    {"the socket's folder", aboutPath(l.socket, wire.FileAccess_FILE_ACCESS_READ), refused, "layout.hidden[0]", "EACCES"},
		"Program":  {"a program", aboutPath("/bin/sh", wire.FileAccess_FILE_ACCESS_EXECUTE), allowed, "filesystem.mode", ""},
		"Host":     {"there is no network", aboutHost("localhost", 80), refused, "network.mode", "EACCES"},
		"Mount":    {"a rule of the filter", aboutCall("mount"), refused, "mounts", "EPERM"},
		"Socket":   {"it has cases", aboutCall("socket"), depends, "", ""},
		"Unix":     {"one of the cases", aboutCall("socket", 1, 1, 0), allowed, "socket", ""},
		"Getpid":   {"no rule", aboutCall("getpid"), allowed, "", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := explain(t, l, tc.request)
			if got.GetOutcome() != tc.outcome || got.GetRule() != tc.rule || got.GetErrno() != tc.errno || got.GetReason() == "" {
				t.Errorf("%s: %v, want %v by %q with %q", tc.reason, got, tc.outcome, tc.rule, tc.errno)
			}
		})
	}
	for field, request := range map[string]*wire.ExplainRequest{
		"about": {}, "path.path": aboutPath("", 0), "path.access": aboutPath("/", 99), "host.host": aboutHost("", 0), "host.port": aboutHost("x", 70_000),
		"syscall.name": aboutCall("x"), "syscall.arguments": aboutCall("read", 1, 2, 3, 4, 5, 6, 7),
	} {
		_, err := l.Explain(t.Context(), request)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(fmt.Sprint(status.Convert(err).Details()), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// What is explained about a host is what the proxy answers to whoever asks it.
func TestExplainHostsAsProxied(t *testing.T) {
	if !sandbox.Probe().UserNotify {
		t.Skip("no supervisor can be had here, which mode Proxy needs")
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	listed := uint32(server.Listener.Addr().(*net.TCPAddr).Port)
	for _, methods := range []string{"Full", "Limited"} {
		t.Run(methods, func(t *testing.T) {
			policy := config.DefaultPolicy()
			policy.Sandbox.Network = sandbox.Network{
				Mode: sandbox.ProxyNetwork, Methods: methods,
				AllowedDomains: []string{"allowed.invalid", "*.wild.invalid", "localhost", fmt.Sprintf("127.0.0.1:%d", listed), "10.1.2.0/24:81"},
				DeniedDomains:  []string{"bad.wild.invalid", "10.1.2.3"},
			}
			l := startLocal(t, "--policy", writeJSON(t, policy))
			proxy, _ := execute(t, l, script(`printf %s "${HTTPS_PROXY#http://}"`))
			for _, host := range []string{
				"allowed.invalid", "ALLOWED.invalid.", "other.invalid", "a.wild.invalid", "bad.wild.invalid", "wild.invalid", "localhost",
				"127.0.0.1", "0x7f.1", "2130706433", "10.1.2.3", "169.254.169.254", "::1", "::ffff:127.0.0.1", "192.0.2.1", "exa mple", "-",
			} {
				for _, port := range []uint32{443, listed} {
					got := explain(t, l, aboutHost(host, port))
					tunnel := askProxy(t, proxy, "CONNECT", host, port)
					want := wire.Outcome_OUTCOME_ALLOWED
					if tunnel == http.StatusForbidden || tunnel == http.StatusBadRequest {
						want = wire.Outcome_OUTCOME_REFUSED
						if methods == "Limited" && askProxy(t, proxy, "GET", host, port) != tunnel {
							want = wire.Outcome_OUTCOME_DEPENDS
						}
					}
					if got.GetOutcome() != want || got.GetReason() == "" {
						t.Errorf("%s:%d is explained as %v, but the proxy says %d, want %v", host, port, got, tunnel, want)
					}
				}
			}
			for host, rule := range map[string]string{"bad.wild.invalid": `network.deniedDomains[0] "bad.wild.invalid"`, "10.1.2.3": `network.deniedDomains[1] "10.1.2.3"`} {
				if got := explain(t, l, aboutHost(host, 443)); got.GetRule() != rule {
					t.Errorf("%s is refused by %q, want %q", host, got.GetRule(), rule)
				}
			}
		})
	}
}

// askProxy makes one request to the proxy and returns its status.
func askProxy(t *testing.T, proxy, method, host string, port uint32) int {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	authority := net.JoinHostPort(host, fmt.Sprint(port))
	target := authority
	if method != "CONNECT" {
		target = "http://" + authority + "/"
	}
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\n\r\n", method, target, authority); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	defer answer.Body.Close()
	return answer.StatusCode
}
