package sandbox

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
)

// Outcome is what becomes of something that a command tries.
type Outcome string

// The outcomes.
const (
	// Allowed means that the sandbox refuses it in no case.
	Allowed Outcome = "Allowed"
	// Refused means that it fails, with Answer.Errno.
	Refused Outcome = "Refused"
	// Depends means that it depends on what else the call says: see Answer.Cases.
	Depends Outcome = "Depends"
)

// Answer says what becomes of something that a command tries, and by which rule.
type Answer struct {
	Outcome Outcome
	// Rule is what decided: a field of the policy (filesystem.writableRoots[0]) or of the layout (layout.hidden[1]), a rule of
	// the filter (socket), or FilePermissions or Landlock, which no policy can change. It is empty where no rule says anything.
	Rule string
	// Reason says the rule to people.
	Reason string
	// Errno is what the call fails with when it is refused.
	Errno syscall.Errno
	// Subject is what was decided about: the path where links lead, the host in its normal form, the name of the call.
	Subject string
	// Cases are the ways it can end when that depends; the first whose condition holds decides.
	Cases []Case
}

// Case is one way in which a call can end.
type Case struct {
	// Condition is about the call's arguments; "otherwise" holds always.
	Condition string
	Outcome   Outcome
	Rule      string
	Errno     syscall.Errno
}

// Rules that no policy contains.
const (
	// ruleFilePermissions stands for owners and modes of files, and for read-only mounts.
	ruleFilePermissions = "FilePermissions"
	// ruleLandlock stands for what Landlock does beside its rules.
	ruleLandlock = "Landlock"
)

// Access is what a command wants of a file.
type Access string

// The accesses.
const (
	// ReadAccess opens a file, or lists a folder.
	ReadAccess Access = "Read"
	// WriteAccess opens a file for writing, makes it where there is none, or makes a file in a folder.
	WriteAccess Access = "Write"
	// ExecuteAccess runs a program. Of a script, the interpreter is another question.
	ExecuteAccess Access = "Execute"
)

// ExplainSyscall says what becomes of a system call. With its arguments, at least those that the rules look at, the
// answer is the filter's own; what the kernel says to a call that the filter lets pass is another matter.
func (l *Launcher) ExplainSyscall(name string, arguments []uint64) (Answer, error) {
	numbers, known := syscalls[name]
	switch {
	case !known:
		return Answer{}, &FieldError{Field: "syscall.name", Value: name, Reason: "neither amd64 nor arm64 has a system call of that name"}
	case len(arguments) > maxArguments:
		return Answer{}, &FieldError{Field: "syscall.arguments", Value: fmt.Sprint(len(arguments)), Reason: "a system call has at most 6 arguments"}
	}
	answer := Answer{Outcome: Allowed, Subject: name}
	if !l.report.Seccomp {
		answer.Reason = "there is no filter on this kernel"
		return answer, nil
	}
	number := architectures[l.made.caps.Arch].number(numbers)
	if number == absent {
		answer.Outcome, answer.Errno = Refused, syscall.ENOSYS
		answer.Reason = "the processor's system has no such call"
		return answer, nil
	}
	about := l.decisions[uint32(number)]
	if len(arguments) > 0 || len(about) == 0 || len(about[0].when) == 0 {
		var args [maxArguments]uint64
		copy(args[:], arguments)
		decided, found := l.decisions.decide(uint32(number), &args)
		if !found {
			answer.Reason = "no rule of the filter refuses it"
			return answer, nil
		}
		c := decided.asCase(name)
		answer.Outcome, answer.Rule, answer.Errno, answer.Reason = c.Outcome, c.Rule, c.Errno, "the filter's rule "+decided.id+" decides"
		if decided.then == askOwner {
			answer.Reason = brokeredReason(name)
		}
		return answer, nil
	}
	answer.Outcome, answer.Reason = Depends, "the filter looks at its arguments"
	answer.Cases = casesOf(name, about)
	return answer, nil
}

// maxArguments is how many a system call has at most.
const maxArguments = 6

// casesOf are the rules about a call in their order, and what holds behind them.
func casesOf(name string, rules []rule) []Case {
	var cases []Case
	for _, r := range rules {
		cases = append(cases, r.asCase(name))
		if len(r.when) == 0 {
			return cases
		}
	}
	return append(cases, Case{Condition: otherwise, Outcome: Allowed})
}

const otherwise = "otherwise"

func (r rule) asCase(name string) Case {
	c := Case{Condition: otherwise, Outcome: Allowed, Rule: r.id, Errno: syscall.Errno(r.then.errno())}
	if len(r.when) > 0 {
		conditions := make([]string, len(r.when))
		for i, t := range r.when {
			conditions[i] = t.describe(name)
		}
		c.Condition = strings.Join(conditions, " and ")
	}
	switch {
	case c.Errno != 0:
		c.Outcome = Refused
	case r.then == askOwner && name != "socket":
		c.Outcome = Depends
	}
	return c
}

// brokeredReason says what the supervisor does with a call that the filter hands to it to be allowed.
func brokeredReason(name string) string {
	if name == "socket" {
		return "the agent makes the socket, bound to the loopback device"
	}
	return "the agent looks at the address or the process: ask about the host"
}

// describe spells a test out, with names where a call's argument has some.
func (t test) describe(call string) string {
	subject := fmt.Sprintf("argument %d", t.arg+1)
	if t.high {
		subject = "the high half of " + subject
	}
	value := fmt.Sprintf("%#x", t.value)
	if call == "socket" || call == "socketpair" {
		names := []map[uint64]string{familyNames, typeNames, internetProtocolNames}
		subject = []string{"family", "type", "protocol", subject}[min(t.arg, 3)]
		if t.arg < len(names) {
			value = named(names[t.arg], uint64(t.value))
		}
		if t.arg == 1 && t.mask == sockTypeMask {
			t.mask = 0 // the flags beside the type count for nothing
		}
	}
	if call == "ioctl" && t.arg == 1 {
		subject, value = "request", named(requestNames, uint64(t.value))
	}
	switch {
	case t.mask != 0 && t.value == 0 && !t.equal:
		return fmt.Sprintf("%s has a bit of %#x", subject, t.mask)
	case t.mask != 0:
		subject = fmt.Sprintf("%s & %#x", subject, t.mask)
	}
	if t.equal {
		return subject + " is " + value
	}
	return subject + " is not " + value
}

// ExplainAddress says whether a command can connect to an address with TCP, in every mode but Proxy, whose
// rules are package egress's: there, this is the answer for a command that does not ask the proxy.
func (l *Launcher) ExplainAddress(to netip.AddrPort) Answer {
	mode := NetworkMode(l.report.Network)
	answer := Answer{Outcome: Allowed, Rule: "network.mode", Subject: to.String()}
	switch mode {
	case OpenNetwork:
		answer.Reason = "network.mode Open lets TCP and UDP pass; the cluster's network policies are another matter"
	case LoopbackNetwork, ProxyNetwork:
		if mayConnect(mode, l.access.proxy, to) {
			answer.Reason = fmt.Sprintf("network.mode %s lets TCP to it pass", mode)
			return answer
		}
		answer.Outcome, answer.Errno = Refused, syscall.EACCES
		answer.Reason = "network.mode Loopback reaches the loopback interface only"
		if mode == ProxyNetwork {
			answer.Reason = "network.mode Proxy reaches the agent's proxy only"
		}
	case NoNetwork:
		answer.Outcome, answer.Errno = Refused, syscall.EACCES
		answer.Reason = "network.mode None has no sockets for the internet"
	}
	return answer
}
