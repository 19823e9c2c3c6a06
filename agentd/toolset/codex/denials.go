package codex

import (
	"fmt"
	"strings"

	"execsession.dev/agentd/wire"
)

// Denial is the structured form of what the sandbox refused: so many calls of one kind.
type Denial struct {
	// Source is Enforced: the sandbox itself answered the calls.
	Source string `json:"source"`
	Rule   string `json:"rule"`
	// Syscall, Arguments, Address and Program are missing where calls of many kinds are counted together.
	Syscall   string `json:"syscall,omitempty"`
	Arguments string `json:"arguments,omitempty"`
	Address   string `json:"address,omitempty"`
	Errno     string `json:"errno,omitempty"`
	Program   string `json:"program,omitempty"`
	PID       int32  `json:"pid,omitempty"`
	Count     uint64 `json:"count"`
	// Mixed says that calls of more kinds than are told apart were counted together, by their rule alone.
	Mixed bool `json:"mixed,omitempty"`
}

// Denials gives the structured form.
func Denials(denials []*wire.Denial) []Denial {
	var forms []Denial
	for _, d := range denials {
		forms = append(forms, Denial{
			Source: d.GetSource(), Rule: d.GetRule(), Syscall: d.GetSyscall(), Arguments: d.GetArguments(), Address: d.GetAddress(),
			Errno: d.GetErrno(), Program: d.GetProgram(), PID: d.GetPid(), Count: d.GetCount(), Mixed: d.GetMixed(),
		})
	}
	return forms
}

// DenialText is one line for a reader, such as
//
//	socket family=AF_INET type=SOCK_STREAM protocol=TCP, 3 times, by /usr/bin/curl (EACCES, rule socket)
func DenialText(d *wire.Denial) string {
	if d.GetMixed() {
		return Escape(fmt.Sprintf("%s of further kinds (%s, rule %s)", times(d.GetCount(), "call"), d.GetErrno(), d.GetRule()))
	}
	var b strings.Builder
	b.WriteString(d.GetSyscall())
	if d.GetArguments() != "" {
		b.WriteString(" " + d.GetArguments())
	}
	if d.GetAddress() != "" {
		b.WriteString(" to " + oneWord(d.GetAddress()))
	}
	if d.GetCount() > 1 {
		b.WriteString(", " + times(d.GetCount(), "time"))
	}
	if d.GetProgram() != "" {
		b.WriteString(", by " + oneWord(d.GetProgram()))
	}
	fmt.Fprintf(&b, " (%s, rule %s)", d.GetErrno(), d.GetRule())
	return Escape(b.String())
}

func times(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
