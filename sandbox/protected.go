package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Changeable says why commands under a policy could change a file of the agent's, or put another in its place; "" if they could
// not. The file may be missing. What is no regular file counts as one that they cannot.
func Changeable(policy Policy, layout Layout, path string) (why string, err error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return "", nil
	}
	hidden := realPaths(layout.Hidden)
	roots, err := new(plan).writableRoots(policy, layout, hidden)
	if err != nil {
		return "", err
	}
	if policy.Filesystem.Mode == FullAccess {
		roots = []string{"/"}
	}
	file := taken{value: path}
	file.place, file.links = follow(filepath.Clean(path))
	links := slices.DeleteFunc(file.links, func(link string) bool { return inOneOf(hidden, link) != "" })
	if link := movableLink(links, roots); link != "" {
		return fmt.Sprintf("passes through the symbolic link %q, which commands can turn elsewhere", link), nil
	}
	root := inOneOf(roots, file.place)
	switch {
	case root == "", inOneOf(hidden, file.place) != "", whyNoMount(root, file) == "":
		return "", nil
	case heldByPermissions(root, file.place) && !mayChange(file.place):
		return "", nil
	}
	return fmt.Sprintf("lies below %q, where commands write", root), nil
}
