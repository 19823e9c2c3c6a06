package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// inode is what a rule of Landlock sticks to.
type inode struct {
	device uint64
	number uint64
}

// ExplainPath says what becomes of a path that a command opens or executes. It follows the path as the kernel would for
// the command, takes the rules as they were made, and asks the kernel about owners, modes and read-only mounts. The
// path is absolute; the error is a *FieldError.
func (l *Launcher) ExplainPath(path string, access Access) (Answer, error) {
	if err := checkOneOf("path.access", access, ReadAccess, WriteAccess, ExecuteAccess); err != nil {
		return Answer{}, err
	}
	if err := checkPath("path.path", filepath.Clean(path)); err != nil {
		return Answer{}, err
	}
	at := followFor(path, l.made.layout.Workspace)
	answer := Answer{Outcome: Refused, Subject: at.path, Rule: at.rule, Reason: at.reason, Errno: at.errno}
	switch {
	case at.errno != 0:
		return l.blame(answer, at.path, access), nil //nolint:nilerr // it is what the answer is about
	case at.unknown:
		answer.Outcome = Depends
		return answer, nil
	}
	where, wanted, errno := at.rights(access)
	if errno != 0 {
		answer.Errno, answer.Rule, answer.Reason = errno, ruleFilePermissions, whyNone[errno]
		return l.blame(answer, at.path, access), nil //nolint:nilerr // it is what the answer is about
	}
	permitted := at.permitted(where, access)
	if l.lacking(where, wanted) != 0 {
		answer.Rule, answer.Reason = ruleMode, l.whyRefused(where, access)
		answer.Errno = syscall.EACCES
		// The kernel looks at owners and modes first, but for what is to be made.
		if permitted != 0 && (!at.makes(access) || permitted == syscall.EROFS) {
			answer.Errno = permitted
		}
		return l.blame(answer, where, access), nil
	}
	if permitted != 0 {
		answer.Rule, answer.Errno = ruleFilePermissions, permitted
		answer.Reason = "no rule of the sandbox takes it away, but the file's owner and mode, or a read-only mount, do"
		return l.blame(answer, where, access), nil //nolint:nilerr // it is what the answer is about
	}
	answer.Outcome = Allowed
	answer.Rule, answer.Reason = l.whyAllowed(where, access)
	return answer, nil
}

// whyNone says why there is nothing to ask rules about.
var whyNone = map[syscall.Errno]string{
	syscall.ENOENT: "it does not exist", syscall.EACCES: "it is no program",
	syscall.ENOTDIR: "the path wants a folder, and this is none", syscall.EISDIR: "the path wants a folder, and writing makes a file",
}

// rights are what Landlock is asked for, and of which place: what does not exist is made in its folder.
func (t target) rights(access Access) (where string, wanted landlock.AccessFSSet, errno syscall.Errno) {
	switch {
	case t.slash && !t.isFolder() && access == WriteAccess:
		return "", 0, syscall.EISDIR
	case t.slash && !t.isFolder() && t.mode != 0:
		return "", 0, syscall.ENOTDIR
	case t.mode == 0 && access == WriteAccess:
		return filepath.Dir(t.path), ll.AccessFSMakeReg | ll.AccessFSWriteFile, 0
	case t.mode == 0:
		return "", 0, syscall.ENOENT
	case access == ReadAccess && t.isFolder():
		return t.path, ll.AccessFSReadDir, 0
	case access == ReadAccess:
		return t.path, ll.AccessFSReadFile, 0
	case access == WriteAccess && t.isFolder():
		return t.path, ll.AccessFSMakeReg | ll.AccessFSWriteFile, 0
	case access == WriteAccess:
		return t.path, ll.AccessFSWriteFile, 0
	case t.mode&unix.S_IFMT != unix.S_IFREG:
		return "", 0, syscall.EACCES
	}
	return t.path, ll.AccessFSExecute, 0
}

// lacking are those of the wanted rights that a layer of rules does not give. A layer gives what it grants to the place
// and to every folder above it; the rules stick to what they were made for and not to its name.
func (l *Launcher) lacking(where string, wanted landlock.AccessFSSet) landlock.AccessFSSet {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var lacking landlock.AccessFSSet
	for _, layer := range l.rules {
		if layer.opened == nil {
			continue // it restricts nothing
		}
		missing := wanted & layer.handled
		for dir := where; missing != 0; dir = filepath.Dir(dir) {
			if at, err := inodeOf(dir); err == nil {
				missing &^= layer.opened[at]
			}
			if dir == "/" {
				break
			}
		}
		lacking |= missing
	}
	return lacking
}

func inodeOf(path string) (inode, error) {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return inode{}, err
	}
	return inode{device: stat.Dev, number: stat.Ino}, nil
}

// makes is whether a file is to be made.
func (t target) makes(access Access) bool {
	return access == WriteAccess && (t.mode == 0 || t.isFolder())
}

// permitted asks the kernel what it would answer without the sandbox to a process of this user.
func (t target) permitted(where string, access Access) syscall.Errno {
	mode := map[Access]uint32{ReadAccess: unix.R_OK, WriteAccess: unix.W_OK, ExecuteAccess: unix.X_OK}[access]
	if t.own {
		// This process's own file only tells the mode; the command owns its own.
		if t.mode>>6&mode != mode {
			return syscall.EACCES
		}
		return 0
	}
	if t.makes(access) {
		mode |= unix.X_OK
		var on unix.Statfs_t
		if err := unix.Statfs(where, &on); err == nil && on.Flags&unix.ST_RDONLY != 0 {
			return syscall.EROFS
		}
	}
	return errnoOf(unix.Faccessat(unix.AT_FDCWD, where, mode, unix.AT_EACCESS))
}

// whyAllowed names what gives the rights, for the narrowest folder that has them.
func (l *Launcher) whyAllowed(where string, access Access) (rule, reason string) {
	filesystem, layout := l.made.policy.Filesystem, l.made.layout
	switch {
	case l.report.LandlockABI == 0:
		return "", "this kernel has no Landlock, so no rule holds"
	case access != WriteAccess:
		return ruleMode, "every mode lets commands read and execute what no rule takes away"
	}
	for _, root := range l.writableRoots() {
		if within(where, root.path) {
			return root.rule, fmt.Sprintf("it lies in %q, which commands may write", root.path)
		}
	}
	if inOneOf(deviceFiles, where) != "" {
		return ruleMode, "every mode has this device"
	}
	return ruleMode, fmt.Sprintf("mode %s lets commands write what no rule takes away (workspace %s)", filesystem.Mode, layout.Workspace)
}

// blame names who takes the place away, whatever makes it fail: some are protected by mounts or by their owner. A path
// that could not be taken away (a gap) is named only where rules hold it all the same.
func (l *Launcher) blame(answer Answer, where string, access Access) Answer {
	filesystem := l.made.policy.Filesystem
	open := func(list, path string) bool {
		isGap := func(g Gap) bool { return g.Field == list && g.Value == path }
		return slices.ContainsFunc(l.made.gaps, isGap) && l.lacking(where, ll.AccessFSReadFile|ll.AccessFSWriteFile) == 0
	}
	if i := l.holding(l.made.layout.Hidden, where); i >= 0 {
		answer.Rule, answer.Reason = fmt.Sprintf("layout.hidden[%d]", i), "it protects the agent itself, in every mode"
	} else if i := l.holding(filesystem.DeniedPaths, where); i >= 0 && !open(deniedPaths, filesystem.DeniedPaths[i]) {
		answer.Rule, answer.Reason = fmt.Sprintf("filesystem.deniedPaths[%d]", i), fmt.Sprintf("the policy denies %q", filesystem.DeniedPaths[i])
	} else if i := l.holding(filesystem.ReadOnlyPaths, where); i >= 0 && access == WriteAccess && !open(readOnlyPaths, filesystem.ReadOnlyPaths[i]) {
		answer.Rule, answer.Reason = fmt.Sprintf("filesystem.readOnlyPaths[%d]", i), fmt.Sprintf("the policy makes %q read-only", filesystem.ReadOnlyPaths[i])
	}
	return answer
}

// whyRefused says why the mode gives no rights.
func (l *Launcher) whyRefused(where string, access Access) string {
	mode := l.made.policy.Filesystem.Mode
	switch {
	case within(where, "/dev"):
		return "of /dev, commands have " + strings.Join(deviceFiles, ", ") + " and what is in writable folders"
	case access == WriteAccess && mode == FullAccess && inOneOf(kernelFolders, where) != "":
		return "mode FullAccess leaves the kernel's folders read-only"
	case access == WriteAccess && mode == ReadOnly:
		return "mode ReadOnly writes nowhere"
	case access == WriteAccess && mode == WorkspaceWrite:
		return "mode WorkspaceWrite writes in the workspace, the temporary folders and the writable roots only"
	}
	return "it was made after the policy came into force, in a folder that is granted entry by entry to leave something out"
}

// ruleMode is the field that decides where no list does.
const ruleMode = "filesystem.mode"

type writableRoot struct{ rule, path string }

// writableRoots are the folders that a policy opens for writing by name.
func (l *Launcher) writableRoots() []writableRoot {
	roots := []writableRoot{{"layout.workspace", l.made.layout.Workspace}}
	for i, path := range l.made.layout.Writable {
		roots = append(roots, writableRoot{fmt.Sprintf("layout.writable[%d]", i), path})
	}
	for i, path := range l.made.policy.Filesystem.WritableRoots {
		roots = append(roots, writableRoot{fmt.Sprintf("filesystem.writableRoots[%d]", i), path})
	}
	return roots
}

// holding is the first of the policy's paths that holds the place, or -1. What a pattern matches is looked up
// as it was when the policy was compiled.
func (l *Launcher) holding(paths []string, place string) int {
	roots := []string{"/"}
	if l.made.policy.Filesystem.Mode != FullAccess {
		roots = nil
		for _, root := range l.writableRoots() {
			roots = append(roots, root.path)
		}
	}
	return slices.IndexFunc(paths, func(path string) bool {
		if !isPattern(path) {
			leads, _ := follow(path)
			return within(place, leads)
		}
		found, err := expand(path, roots)
		return err == nil && inOneOf(found.places, place) != ""
	})
}

// target is where a path leads.
type target struct {
	path string
	// mode is the kernel's, 0 if nothing is there.
	mode uint32
	// slash says that the path ends with one, which only a folder's may.
	slash bool
	// own says that it is a file of the command's own in /proc, unknown that it leads to whatever the command has open.
	own, unknown bool
	// errno says that the command does not get that far, by which rule and why.
	errno  syscall.Errno
	rule   string
	reason string
}

func (t target) isFolder() bool { return t.mode&unix.S_IFMT == unix.S_IFDIR }

// followFor resolves a path as the kernel would for a command that works in a folder. What /proc/self is to this process it
// is not to a command, so links are followed here and not by the kernel.
func followFor(path, workspace string) target {
	done, rest := "/", parts(path)
	links := 0
	for len(rest) > 0 {
		next := filepath.Join(done, rest[0]) // of "..", the folder above
		if rest[0] == "." || rest[0] == ".." {
			if !lookAtTarget(done).isFolder() {
				return unreachable(done, unix.ENOTDIR)
			}
			done, rest = next, rest[1:]
			continue
		}
		rest = rest[1:]
		t, onward, found := followProcess(next, rest, workspace)
		if !found {
			t, onward, found = followLink(next, rest)
		}
		switch {
		case !found:
			done = next
			continue
		case onward == nil:
			return withSlash(path, t)
		}
		if links++; links > maxLinks {
			return target{path: next, errno: syscall.ELOOP, rule: ruleFilePermissions, reason: "it passes through too many links"}
		}
		done, rest = "/", onward
	}
	return withSlash(path, lookAtTarget(done))
}

func withSlash(path string, t target) target {
	t.slash = strings.HasSuffix(path, "/")
	return t
}

// parts are a path's names. "" and "." lead nowhere, but for a "." at the end, which wants a folder before it.
func parts(path string) []string {
	names := slices.DeleteFunc(strings.Split(path, "/"), func(part string) bool { return part == "" || part == "." })
	if strings.HasSuffix(strings.TrimRight(path, "/"), "/.") {
		names = append(names, ".")
	}
	return names
}

// followLink looks at one step of a path. It answers false when it can be passed; else the end of the
// way or, for a link, the parts of the path to go on with.
func followLink(next string, rest []string) (t target, onward []string, found bool) {
	var stat unix.Stat_t
	err := unix.Lstat(next, &stat)
	switch {
	case errors.Is(err, unix.ENOENT) && len(rest) == 0:
		return target{path: next}, nil, true
	case err != nil:
		return unreachable(next, err), nil, true
	case stat.Mode&unix.S_IFMT != unix.S_IFLNK:
		return target{}, nil, false
	}
	link, err := os.Readlink(next)
	if err != nil {
		return unreachable(next, err), nil, true
	}
	onward = append(parts(link), rest...)
	if !filepath.IsAbs(link) {
		onward = append(parts(filepath.Dir(next)), onward...)
	}
	return target{}, onward, true
}

func unreachable(path string, err error) target {
	return target{path: path, errno: errnoOf(err), rule: ruleFilePermissions, reason: "it cannot be reached: " + errnoOf(err).Error()}
}

func errnoOf(err error) syscall.Errno {
	errno, _ := errors.AsType[syscall.Errno](err)
	return errno
}

func lookAtTarget(path string) target {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return target{path: path}
	}
	return target{path: path, mode: stat.Mode}
}

// closedToOthers are the entries of a process's folder in /proc that the kernel shows to whoever may trace it, which no
// command may but for its own processes.
var closedToOthers = []string{
	"auxv", "clear_refs", "cwd", "environ", "exe", "fd", "fdinfo", "io", "map_files", "maps", "mem", "ns", "numa_maps", "pagemap",
	"personality", "root", "seccomp_cache", "smaps", "smaps_rollup", "stack", "syscall", "timerslack_ns",
}

// followProcess is followLink for what /proc shows of processes.
func followProcess(next string, rest []string, workspace string) (t target, onward []string, found bool) {
	name, inProc := strings.CutPrefix(next, "/proc/")
	own := name == "self" || name == "thread-self"
	if !inProc || !own && !isNumber(name) {
		return target{}, nil, false
	}
	entries := rest
	if len(entries) > 1 && entries[0] == "task" {
		entries = entries[2:]
	}
	entry := ""
	if len(entries) > 0 {
		entry = entries[0]
	}
	t = target{path: filepath.Join(append([]string{next}, rest...)...)}
	switch {
	case !own && slices.Contains(closedToOthers, entry):
		t.errno, t.rule, t.reason = syscall.EACCES, ruleLandlock, "a command may look only into its own processes"
		return t, nil, true
	case !own:
		return target{}, nil, false
	case entry == "root":
		return t, append([]string{}, entries[1:]...), true
	case entry == "cwd":
		return t, append(parts(workspace), entries[1:]...), true
	case entry == "exe" || entry == "fd" && len(entries) > 1 || entry == "map_files":
		t.unknown, t.rule, t.reason = true, ruleLandlock, "it is whatever the command itself has open"
	}
	t.own, t.mode = true, lookAtTarget(t.path).mode
	return t, nil, true
}

func isNumber(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}
