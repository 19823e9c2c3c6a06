package agentd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execsession.dev/agentd/wire"
	"execsession.dev/sandbox"
	"execsession.dev/sandbox/egress"
)

const (
	// defaultPort is the one of a host that is asked about without any.
	defaultPort = 443
	// resolveTime bounds looking a name up; the proxy waits no longer either.
	resolveTime = 10 * time.Second
)

// Explain implements wire.AgentServer.
func (s *service) Explain(ctx context.Context, r *wire.ExplainRequest) (*wire.ExplainResponse, error) {
	s.reporter.active()
	state, err := s.policy.admit(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	var answer sandbox.Answer
	switch about := r.GetAbout().(type) {
	case *wire.ExplainRequest_Path:
		answer, err = s.explainPath(state, about.Path)
	case *wire.ExplainRequest_Syscall:
		answer, err = state.launcher.ExplainSyscall(about.Syscall.GetName(), about.Syscall.GetArguments())
	case *wire.ExplainRequest_Host:
		answer, err = explainHost(ctx, state, about.Host)
	default:
		return nil, fieldError("about", "is missing")
	}
	if field, ok := errors.AsType[*sandbox.FieldError](err); ok {
		return nil, fieldError(field.Field, "%s", describe(field.Value, field.Reason))
	}
	if err != nil {
		return nil, toStatus(err)
	}
	return explainTo(answer, state.report), nil
}

func (s *service) explainPath(state *policyState, about *wire.ExplainPath) (sandbox.Answer, error) {
	accesses := map[wire.FileAccess]sandbox.Access{
		wire.FileAccess_FILE_ACCESS_UNSPECIFIED: sandbox.ReadAccess, wire.FileAccess_FILE_ACCESS_READ: sandbox.ReadAccess,
		wire.FileAccess_FILE_ACCESS_WRITE: sandbox.WriteAccess, wire.FileAccess_FILE_ACCESS_EXECUTE: sandbox.ExecuteAccess,
	}
	access, known := accesses[about.GetAccess()]
	if !known {
		return sandbox.Answer{}, fieldError("path.access", "%d is no access that this agent knows", about.GetAccess())
	}
	path := about.GetPath()
	if path != "" && !filepath.IsAbs(path) {
		path = s.policy.layout.Workspace + "/" + path // what ".." leads to depends on links
	}
	return state.launcher.ExplainPath(path, access)
}

// explainHost answers as the network mode does. In mode Proxy that is what the proxy says; a command
// that does not ask it reaches nothing.
func explainHost(ctx context.Context, state *policyState, about *wire.ExplainHost) (sandbox.Answer, error) {
	port := about.GetPort()
	if port == 0 {
		port = defaultPort
	}
	if port > math.MaxUint16 {
		return sandbox.Answer{}, fieldError("host.port", "%d: must be at most %d", port, math.MaxUint16)
	}
	if about.GetHost() == "" {
		return sandbox.Answer{}, fieldError("host.host", "is empty")
	}
	if sandbox.NetworkMode(state.report.Network) == sandbox.ProxyNetwork {
		return explainProxied(ctx, state.rules, about.GetHost(), uint16(port)), nil
	}
	if address, err := netip.ParseAddr(about.GetHost()); err == nil {
		return state.launcher.ExplainAddress(netip.AddrPortFrom(address, uint16(port))), nil
	}
	return explainName(ctx, state.launcher, about.GetHost(), uint16(port)), nil
}

// explainName resolves a name as this pod does, and answers for what is reached first.
func explainName(ctx context.Context, launcher *sandbox.Launcher, name string, port uint16) sandbox.Answer {
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	mode := sandbox.NetworkMode(launcher.Report().Network)
	resolver := net.DefaultResolver
	if mode != sandbox.OpenNetwork {
		// A command has no datagrams to ask a name server with: what it has is /etc/hosts.
		resolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.EACCES }}
	}
	addresses, err := resolver.LookupNetIP(ctx, "ip", name)
	if mode == sandbox.NoNetwork {
		addresses, err = []netip.Addr{netip.IPv4Unspecified()}, nil // the same for all of them
	}
	subject := net.JoinHostPort(name, fmt.Sprint(port))
	if err != nil && mode != sandbox.OpenNetwork {
		return sandbox.Answer{
			Outcome: sandbox.Refused, Rule: "network.mode", Subject: subject, Errno: syscall.EACCES,
			Reason: fmt.Sprintf("network.mode %s has no name servers, and /etc/hosts does not have the name", mode),
		}
	}
	var answers []sandbox.Answer
	for _, address := range addresses {
		answers = append(answers, launcher.ExplainAddress(netip.AddrPortFrom(address.Unmap(), port)))
	}
	if err != nil {
		answers = append(answers, launcher.ExplainAddress(netip.AddrPortFrom(netip.IPv4Unspecified(), port)))
		answers[0].Reason += "; at the moment the name cannot be resolved: " + err.Error()
	}
	// A program tries one address after the other.
	best := max(0, slices.IndexFunc(answers, func(a sandbox.Answer) bool { return a.Outcome == sandbox.Allowed }))
	answers[best].Subject = subject
	return answers[best]
}

// explainProxied asks the proxy's rules what the proxy asks them: about the name, and about the addresses that it has.
func explainProxied(ctx context.Context, rules *egress.Rules, host string, port uint16) sandbox.Answer {
	tunnel := egress.Query{Protocol: egress.ProtocolConnect, Host: host, Port: port}
	read := egress.Query{Protocol: egress.ProtocolHTTP, Method: "GET", Host: host, Port: port}
	note := ""
	if d := rules.Decide(read); d.Allowed && !d.Address.IsValid() {
		ctx, cancel := context.WithTimeout(ctx, resolveTime)
		defer cancel()
		addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", d.Host+".")
		if err != nil {
			note = "; at the moment the name cannot be resolved: " + err.Error()
		}
		tunnel.Addresses, read.Addresses = addresses, addresses
	}
	through, reading := rules.Decide(tunnel), rules.Decide(read)
	answer := sandbox.Answer{Outcome: sandbox.Refused, Rule: through.Rule, Reason: through.Message + note, Subject: net.JoinHostPort(through.Host, fmt.Sprint(port))}
	if through.Host == "" {
		answer.Subject = host
	}
	if through.Allowed {
		answer.Outcome = sandbox.Allowed
	} else if reading.Allowed {
		answer.Outcome = sandbox.Depends
		answer.Cases = []sandbox.Case{
			{Condition: "plain HTTP that reads, through the proxy", Outcome: sandbox.Allowed, Rule: reading.Rule},
			{Condition: "otherwise", Outcome: sandbox.Refused, Rule: through.Rule},
		}
	}
	return answer
}

var outcomes = map[sandbox.Outcome]wire.Outcome{
	sandbox.Allowed: wire.Outcome_OUTCOME_ALLOWED, sandbox.Refused: wire.Outcome_OUTCOME_REFUSED, sandbox.Depends: wire.Outcome_OUTCOME_DEPENDS,
}

func explainTo(a sandbox.Answer, report sandbox.Report) *wire.ExplainResponse {
	answer := &wire.ExplainResponse{
		Outcome: outcomes[a.Outcome], Rule: a.Rule, Reason: valid(a.Reason), Errno: errnoTo(a.Errno), Subject: valid(a.Subject), NotEnforced: report.NotEnforced,
	}
	for _, c := range a.Cases {
		answer.Cases = append(answer.Cases, &wire.ExplainCase{Condition: c.Condition, Outcome: outcomes[c.Outcome], Rule: c.Rule, Errno: errnoTo(c.Errno)})
	}
	return answer
}

func errnoTo(errno syscall.Errno) string {
	if errno == 0 {
		return ""
	}
	return unix.ErrnoName(errno)
}
