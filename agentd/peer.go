package agentd

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// peerChecker says whether the peer of a connected socket is served; the error is the reason
// that the peer is told. Only one call is made at a time.
type peerChecker func(fd int) error

// podPeers serves only what the container runtime started: a process without a
// parent in the pod's pid namespace. No descendant of process id 1 can be that: an
// orphan is given to process id 1, and CLONE_PARENT reaches no further up. The same
// user and the same executable narrow it to `agentd connect`.
func podPeers() (peerChecker, error) {
	if pid := os.Getpid(); pid != 1 {
		return nil, fmt.Errorf("process id is %d, want 1: the peer check relies on it (no hostPID, no shareProcessNamespace, agentd as the container's command)", pid)
	}
	self, err := executableOf("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("looking at the own executable: %w", err)
	}
	return func(fd int) error {
		peer, err := openPeer(fd)
		if err != nil {
			return err
		}
		defer peer.close()
		parent, err := peer.parent()
		if err != nil {
			return err
		}
		if parent != 0 {
			return fmt.Errorf("process %d was not started by the container runtime (its parent is process %d): commands of the session do not control agentd", peer.pid, parent)
		}
		if err := peer.checkUser(); err != nil {
			return err
		}
		return peer.checkExecutable(self)
	}, nil
}

// localPeers serves processes of the same user that do not descend from agentd. agentd
// is their subreaper, so a command cannot leave its descent by a double fork.
func localPeers() peerChecker {
	known := descendants{ancestor: os.Getpid(), now: time.Now}
	return func(fd int) error {
		cred, err := credentials(fd)
		if err != nil {
			return err
		}
		if err := known.again(int(cred.Pid)); err != nil {
			return err
		}
		peer, err := openPeer(fd)
		if err != nil {
			return err
		}
		defer peer.close()
		if err := peer.checkUser(); err != nil {
			return err
		}
		return known.check(peer)
	}
}

// peer is a connected process, pinned by a pidfd: its process id cannot come to mean
// another process unnoticed.
type peer struct {
	pid   int
	uid   int
	pidfd int
}

func credentials(fd int) (*unix.Ucred, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, fmt.Errorf("asking for the peer's credentials: %w", err)
	}
	if cred.Pid <= 0 {
		return nil, errors.New("the peer is in another pid namespace")
	}
	return cred, nil
}

// openPeer asks the socket who is on its other side. The peer's user is the one it
// had when it connected.
func openPeer(fd int) (*peer, error) {
	cred, err := credentials(fd)
	if err != nil {
		return nil, err
	}
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		// Before Linux 6.5. The process id could have been reused by now; that whatever
		// it means stays the same from here on is all this gives.
		pidfd, err = unix.PidfdOpen(int(cred.Pid), 0)
	}
	if err != nil {
		return nil, fmt.Errorf("pinning peer process %d: %w", cred.Pid, err)
	}
	unix.CloseOnExec(pidfd)
	return &peer{pid: int(cred.Pid), uid: int(cred.Uid), pidfd: pidfd}, nil
}

func (p *peer) close() { _ = unix.Close(p.pidfd) }

// alive fails once the peer ended, so that what was read about its process id before
// is known to be about it.
func (p *peer) alive() error {
	if err := unix.PidfdSendSignal(p.pidfd, 0, nil, 0); err != nil {
		return fmt.Errorf("peer process %d is gone: %w", p.pid, err)
	}
	return nil
}

// parent returns the process id of the peer's parent: 0 when it is outside of our pid
// namespace.
func (p *peer) parent() (int, error) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_PID}
	if err := unix.IoctlPidfdInfo(p.pidfd, &info); err == nil && info.Mask&unix.PIDFD_INFO_PID != 0 {
		if int(info.Tgid) != p.pid {
			return 0, fmt.Errorf("peer process %d is pinned as %d", p.pid, info.Tgid)
		}
		return int(info.Ppid), nil
	}
	// Before Linux 6.13.
	status, err := readProcess(p.pid)
	if err != nil {
		return 0, err
	}
	return status.parent, p.alive()
}

func (p *peer) checkUser() error {
	if own := os.Getuid(); p.uid != own {
		return fmt.Errorf("process %d runs as uid %d, agentd as %d", p.pid, p.uid, own)
	}
	return nil
}

// checkExecutable wants the peer to run our own executable. `agentd connect` stays
// dumpable until it read the verdict, because the link of a process that is not
// cannot be followed.
func (p *peer) checkExecutable(self executable) error {
	found, err := executableOf(fmt.Sprintf("/proc/%d/exe", p.pid))
	if err != nil {
		return fmt.Errorf("looking at the executable of process %d: %w", p.pid, err)
	}
	if err := p.alive(); err != nil {
		return err
	}
	if found != self {
		return fmt.Errorf("process %d is not `agentd connect`", p.pid)
	}
	return nil
}

// process is what tells one process from another that had its id.
type process struct {
	pid    int
	parent int
	// start is the kernel's clock at its start.
	start string
}

// readProcess reads /proc/PID/stat: the name in parentheses may hold anything, so the
// fields are counted from its end.
func readProcess(pid int) (process, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, fmt.Errorf("looking at process %d: %w", pid, err)
	}
	const parentField, startField = 1, 19 // after the name
	_, rest, _ := strings.Cut(string(data[max(strings.LastIndexByte(string(data), ')'), 0):]), " ")
	fields := strings.Fields(rest)
	if len(fields) <= startField {
		return process{}, fmt.Errorf("looking at process %d: %d fields in its stat, want more than %d", pid, len(fields), startField)
	}
	found := process{pid: pid, start: fields[startField]}
	if _, err := fmt.Sscan(fields[parentField], &found.parent); err != nil {
		return process{}, fmt.Errorf("looking at process %d: parent %q: %w", pid, fields[parentField], err)
	}
	return found, nil
}

// executable tells one file from another.
type executable struct {
	device, inode uint64
}

func executableOf(link string) (executable, error) {
	info, err := os.Stat(link)
	if err != nil {
		return executable{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return executable{}, fmt.Errorf("no device and inode for %q", link)
	}
	return executable{device: uint64(stat.Dev), inode: stat.Ino}, nil //nolint:unconvert // Dev has other types on other architectures
}
