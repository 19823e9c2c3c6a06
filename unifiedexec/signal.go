package unifiedexec

import (
	"os"

	"golang.org/x/sys/unix"
)

// Signal sends a signal (INT, SIGTERM, 15, RTMIN+1 and so on) to the process and every descendant, also to those that left its
// group and session. INT, QUIT and TSTP, the keys of a terminal, go where a key goes: to the foreground group, on pipes
// to the process's own. A process that ended is no error.
func (p *Process) Signal(name string) error {
	sig, err := parseSignal(name)
	if err != nil {
		return err
	}
	if sig == unix.SIGINT || sig == unix.SIGQUIT || sig == unix.SIGTSTP {
		return p.signalKey(sig)
	}
	if err := p.signalGroup(sig); err != nil {
		return err
	}
	return p.signalMembers(sig, func(e procEntry) bool { return e.pgrp != p.pid })
}

// signalKey does what a key of a terminal does.
func (p *Process) signalKey(sig unix.Signal) error {
	if p.terminal == nil {
		return p.signalGroup(sig)
	}
	foreground, err := p.foreground()
	if err != nil {
		return p.signalGroup(sig)
	}
	// The kernel finds the group itself, so there is no moment in which its number could go stale.
	if p.terminalIoctl(func(fd int) error { return unix.IoctlSetInt(fd, unix.TIOCSIG, int(sig)) }) == nil {
		return nil
	}
	if err := p.signalGroup(sig); err != nil || foreground == p.pid {
		return err
	}
	return p.signalMembers(sig, func(e procEntry) bool { return e.pgrp == foreground })
}

// signalGroup signals the process's own group. While the process is not reaped its number, and so
// its group's, cannot be anybody else's; afterwards each member is checked.
func (p *Process) signalGroup(sig unix.Signal) error {
	p.mu.Lock()
	reaped := p.reaped
	var err error
	if !reaped {
		err = unix.Kill(-p.pid, sig)
	}
	p.mu.Unlock()
	if reaped {
		return p.signalMembers(sig, func(e procEntry) bool { return e.pgrp == p.pid })
	}
	if err == unix.ESRCH {
		return nil
	}
	return os.NewSyscallError("kill", err)
}

// signalMembers signals those of the process's descendants that a condition holds for.
func (p *Process) signalMembers(sig unix.Signal, which func(procEntry) bool) error {
	var first error
	for _, entry := range p.members() {
		if !which(entry) {
			continue
		}
		m, ok := holdMember(entry)
		if !ok {
			continue
		}
		if err := m.signal(sig); err != nil && first == nil {
			first = err
		}
		m.release()
	}
	return first
}

// member is a descendant that a pidfd holds: its number cannot come round again meanwhile.
type member struct {
	entry procEntry
	pidfd *os.File
}

// holdMember opens a pidfd and then makes sure that it is of the same process.
func holdMember(entry procEntry) (member, bool) {
	fd, err := unix.PidfdOpen(entry.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return member{}, false
	}
	now, ok := readProcEntry(entry.pid)
	if !ok || now.start != entry.start {
		unix.Close(fd)
		return member{}, false
	}
	return member{entry: entry, pidfd: os.NewFile(uintptr(fd), "pidfd")}, true
}

func (m member) release() { m.pidfd.Close() }

// signal sends a signal; a process that ended meanwhile is no error.
func (m member) signal(sig unix.Signal) error {
	conn, err := m.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return err
	}
	if sent == unix.ESRCH {
		return nil
	}
	return os.NewSyscallError("pidfd_send_signal", sent)
}
