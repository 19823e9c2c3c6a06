package sandbox

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// pathState is what mounts and existence say about a path.
type pathState struct {
	exists     bool
	mountPoint bool
	readOnly   bool
}

// statReadOnly is ST_RDONLY: the file system or this mount of it is read-only.
const statReadOnly = 1

// lookAt looks at a path without following links: a link on the way is an error.
func lookAt(path string) (pathState, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	if errors.Is(err, unix.ENOENT) {
		return pathState{}, nil
	}
	if err != nil {
		return pathState{}, err
	}
	defer unix.Close(fd)
	var stat unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &stat); err != nil {
		return pathState{}, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return pathState{}, err
	}
	return pathState{
		exists: true,
		// A kernel that does not know leaves the bit out of the mask too.
		mountPoint: stat.Attributes&stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0,
		readOnly:   fs.Flags&statReadOnly != 0,
	}, nil
}

// mountsBelow are the mount points below a folder.
func mountsBelow(dir string) ([]string, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var below []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			return nil, fmt.Errorf("reading /proc/self/mountinfo: line %q is too short", lines.Text())
		}
		if point := mountEscapes.Replace(fields[4]); point != dir && within(point, dir) {
			below = append(below, point)
		}
	}
	return below, lines.Err()
}

// mountEscapes undoes what the kernel does to names with characters that separate.
var mountEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// isEmptyFolder says that there is nothing to read at a path.
func isEmptyFolder(path string) bool {
	entries, err := os.ReadDir(path)
	return err == nil && len(entries) == 0
}

// mayChange says that a process with our user, and without capabilities, could make or rename
// entries of a folder, or give itself the permission to. What cannot be looked at may be changed.
func mayChange(dir string) bool {
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return true
	}
	if int(stat.Uid) == os.Geteuid() {
		return true
	}
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK, unix.AT_EACCESS) == nil
}
