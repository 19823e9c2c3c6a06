package sandbox

import (
	"errors"
	"fmt"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
)

// ruleset is a Landlock ruleset that threads may be restricted by, again and again.
type ruleset struct {
	// fd is -1 when the kernel has no Landlock. The launcher closes it.
	fd    int
	flags uint32
	// handled are the rights that it restricts, and opened those that it gives; opened is nil when it restricts nothing.
	handled landlock.AccessFSSet
	opened  map[inode]landlock.AccessFSSet
}

func (r *ruleset) close() error {
	if r.fd < 0 {
		return nil
	}
	fd := r.fd
	r.fd = -1
	return unix.Close(fd)
}

// newRuleset makes the ruleset of a plan. The library takes paths, but a path
// below a writable folder could be replaced by a command between our check and its
// opening; so every path is opened here, without following links, and the library gets
// the descriptor's path. The process's own descriptors stay open to it when it is not dumpable.
func newRuleset(p *plan) (*ruleset, error) {
	if p.abi == 0 {
		return &ruleset{fd: -1}, nil
	}
	fs, net, scoped := handledRights(p.abi)
	if p.network == OpenNetwork || p.network == LoopbackNetwork {
		net = 0
	}
	config := landlock.Config{HandledAccessFS: fs, HandledAccessNet: net, Scoped: scoped}
	if p.abi >= abiLogNewExec {
		config = config.EnableLoggingForSubprocesses()
	}
	opened := make(map[inode]landlock.AccessFSSet, len(p.grants))
	rules, descriptors, err := openGrants(p.grants, fs, opened)
	defer closeAll(descriptors)
	if err != nil {
		return nil, err
	}
	if p.network == ProxyNetwork {
		rules = append(rules, landlock.ConnectTCP(p.proxy.Port()))
	}
	fd, flags, err := config.NewRulesetFD(rules...)
	if err != nil {
		return nil, fmt.Errorf("making Landlock ruleset: %w", err)
	}
	if fd < 0 {
		return nil, errors.New("making Landlock ruleset: it would restrict nothing")
	}
	return &ruleset{fd: fd, flags: flags, handled: fs, opened: opened}, nil
}

// openGrants opens what the grants name. What vanished, or became a link, since the
// plan was made is left out: that grants less, never more. The caller closes the
// descriptors, also those returned with an error. What each place is given is noted in opened.
func openGrants(grants []grant, handled landlock.AccessFSSet, opened map[inode]landlock.AccessFSSet) (rules []landlock.Rule, descriptors []int, err error) {
	for _, g := range grants {
		how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
		fd, err := unix.Openat2(unix.AT_FDCWD, g.path, &how)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			return nil, descriptors, fmt.Errorf("opening %q for a rule: %w", g.path, err)
		}
		descriptors = append(descriptors, fd)
		rights, at, err := rightsFor(fd, g.rights&handled)
		if err != nil {
			return nil, descriptors, fmt.Errorf("looking at %q for a rule: %w", g.path, err)
		}
		opened[at] |= rights
		if rights != 0 {
			rules = append(rules, landlock.PathAccess(rights, fmt.Sprintf("/proc/self/fd/%d", fd)))
		}
	}
	return rules, descriptors, nil
}

// rightsFor cuts off what the kernel refuses for something that is not a folder.
func rightsFor(fd int, rights landlock.AccessFSSet) (landlock.AccessFSSet, inode, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, inode{}, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	return rights, inode{device: stat.Dev, number: stat.Ino}, nil
}

func closeAll(descriptors []int) {
	for _, fd := range descriptors {
		_ = unix.Close(fd) // O_PATH descriptors have nothing to lose
	}
}
