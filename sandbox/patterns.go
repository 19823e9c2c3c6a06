package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Bounds of one pattern. They are counted and not timed, so that a busy machine
// refuses nothing that an idle one accepts.
const (
	maxMatches = 1000
	maxEntries = 100_000
)

// anyFolders matches any number of folders, none too.
const anyFolders = "**"

// isPattern says that a path is to be looked up.
func isPattern(path string) bool { return strings.ContainsAny(path, "*?[") }

// checkPattern says what is wrong with a pattern.
func checkPattern(path string) string {
	for part := range strings.SplitSeq(path, "/") {
		if part != anyFolders && strings.Contains(part, anyFolders) {
			return "** has to stand alone between two slashes"
		}
		if _, err := filepath.Match(part, ""); err != nil {
			return fmt.Sprintf("%q is not a pattern: brackets are not closed, or empty, or a backslash ends it", part)
		}
	}
	return ""
}

// expansion is a pattern that is being looked up.
type expansion struct {
	roots  []string
	places []string
	// unsure says why there may be more matches at any time, "" if there cannot.
	unsure  string
	entries int
	seen    map[step]bool
}

// step is a folder and how many parts of the pattern are left for what is below it.
type step struct {
	dir  string
	left int
}

// expand finds the real places of what a pattern matches. It looks into no folder where commands or
// the kernel make entries at any time. ** does not pass through links, the other parts do.
func expand(pattern string, roots []string) (*expansion, error) {
	parts := strings.Split(pattern, "/")[1:]
	parts = slices.CompactFunc(parts, func(a, b string) bool { return a == anyFolders && b == anyFolders })
	if parts[len(parts)-1] == anyFolders { // a folder is everything below it
		parts = parts[:len(parts)-1]
	}
	fixed := slices.IndexFunc(parts, isMeta)
	if fixed < 0 {
		fixed = len(parts)
	}
	e := &expansion{roots: roots, seen: make(map[step]bool)}
	dir, links := follow("/" + strings.Join(parts[:fixed], "/"))
	if link := movableLink(links, roots); link != "" {
		e.unsure = fmt.Sprintf("passes through the symbolic link %q, which commands can turn elsewhere", link)
	}
	if err := e.walk(dir, parts[fixed:]); err != nil {
		return nil, err
	}
	slices.Sort(e.places)
	e.places = slices.Compact(e.places)
	return e, nil
}

// isMeta says that a part of a pattern is not simply a name.
func isMeta(part string) bool { return strings.ContainsAny(part, `*?[\`) }

func (e *expansion) walk(dir string, parts []string) error {
	at := step{dir, len(parts)}
	if e.seen[at] {
		return nil
	}
	e.seen[at] = true
	if len(parts) == 0 {
		if len(e.places) == maxMatches {
			return fmt.Errorf("matches more than %d paths", maxMatches)
		}
		e.places = append(e.places, dir)
		return nil
	}
	if root := inOneOf(e.roots, dir); root != "" {
		e.unsure = fmt.Sprintf("can match below %q, where commands can make a match at any time", root)
		return nil
	}
	if folder := inOneOf([]string{"/dev", "/proc", "/sys"}, dir); folder != "" {
		e.unsure = fmt.Sprintf("can match below %q, where the kernel makes entries at any time", folder)
		return nil
	}
	if parts[0] == anyFolders {
		if err := e.walk(dir, parts[1:]); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil
	case err != nil:
		e.unsure = fmt.Sprintf("can match in %q, which cannot be listed", dir)
		return nil //nolint:nilerr // the pattern is in order, and what it says is a gap now
	}
	if e.entries += len(entries); e.entries > maxEntries {
		return fmt.Errorf("needs more than %d files to be looked at", maxEntries)
	}
	for _, entry := range entries {
		if err := e.enter(dir, entry, parts); err != nil {
			return err
		}
	}
	return nil
}

func (e *expansion) enter(dir string, entry fs.DirEntry, parts []string) error {
	path, link := filepath.Join(dir, entry.Name()), entry.Type()&fs.ModeSymlink != 0
	if parts[0] == anyFolders {
		if link || !entry.IsDir() {
			return nil
		}
		return e.walk(path, parts)
	}
	// What is malformed was refused before.
	if matched, _ := filepath.Match(parts[0], entry.Name()); !matched {
		return nil
	}
	if link {
		path, _ = follow(path)
	} else if len(parts) > 1 && !entry.IsDir() {
		return nil
	}
	return e.walk(path, parts[1:])
}
