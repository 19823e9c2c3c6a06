package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// maxGrants bounds the rules of one policy; each holds a descriptor while they are made.
const maxGrants = 2000

// deviceFiles can be opened for writing in every mode. Everything else in /dev
// stays closed: a disk's device would show the files that the rules hide.
var deviceFiles = []string{
	"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts",
}

// kernelFolders can be read but not written even with FullAccess: for a root
// without capabilities some of their files start programs outside every sandbox.
var kernelFolders = []string{"/proc", "/sys"}

// terminalFolder is where terminals come and go.
const terminalFolder = "/dev/pts"

// grantReadAndRoots grants reading everywhere but in what is closed, the devices and the roots.
func (p *plan) grantReadAndRoots(rules fileRules) error {
	leftOut := rules.closed()
	if inOneOf(rules.roots, "/dev") == "" {
		leftOut = append(leftOut, "/dev")
	}
	if err := p.grantAround("/", readRights, leftOut); err != nil {
		return err
	}
	leftOut = slices.Concat(rules.closed(), rules.readOnly)
	for _, path := range deviceFiles {
		if inOneOf(leftOut, path) == "" {
			p.grantDevice(path)
		}
	}
	for _, root := range rules.roots {
		rights := writeRights
		if within(root, "/dev") {
			rights |= ll.AccessFSIoctlDev
		}
		if err := p.grantAround(root, rights, leftOut); err != nil {
			return err
		}
	}
	return p.checkCount()
}

// grantFullAccess grants everything everywhere but in what is closed or read-only and the kernel's folders.
func (p *plan) grantFullAccess(rules fileRules) error {
	readOnly := slices.Concat(rules.readOnly, kernelFolders)
	if err := p.grantAround("/", fullRights, slices.Concat(rules.closed(), readOnly)); err != nil {
		return err
	}
	for _, path := range readOnly {
		if err := p.grantAround(path, readRights, rules.closed()); err != nil {
			return err
		}
	}
	return p.checkCount()
}

func (p *plan) checkCount() error {
	if len(p.grants) > maxGrants {
		return fmt.Errorf("making rules: %d entries have to be granted one by one, more than %d", len(p.grants), maxGrants)
	}
	return nil
}

func (p *plan) grantDevice(path string) {
	if checkLinkFree(path) != nil {
		return // a container's /dev/ptmx is a link into /dev/pts
	}
	rights := deviceRights
	if path == "/dev/pts" {
		rights |= ll.AccessFSReadDir
	}
	p.grants = append(p.grants, grant{path: path, rights: rights})
}

// grantAround grants rights to everything below a folder except to the places
// left out. A rule reaches all that lies below it and cannot be taken back further down, so
// a folder that holds such a place is granted entry by entry. What is created in it
// later has no rights; and its names, with those of the places left out, can be
// listed, because the right to list "/" reaches down too.
func (p *plan) grantAround(dir string, rights landlock.AccessFSSet, leftOut []string) error {
	opened := make(map[string]bool)
	if err := p.grantTree(dir, rights, leftOut, opened); err != nil {
		return err
	}
	if len(opened) == 0 {
		return nil
	}
	p.grants = append(p.grants, grant{path: dir, rights: ll.AccessFSReadDir})
	inside := slices.DeleteFunc(slices.Clone(leftOut), func(place string) bool { return !within(place, dir) })
	p.note("%s: granted entry by entry to leave out %s; what is created there later is not accessible, and names can be listed",
		some(slices.Sorted(maps.Keys(opened))), some(compact(inside)))
	return nil
}

func (p *plan) grantTree(path string, rights landlock.AccessFSSet, leftOut []string, opened map[string]bool) error {
	if slices.ContainsFunc(leftOut, func(place string) bool { return within(path, place) }) {
		return nil
	}
	if !slices.ContainsFunc(leftOut, func(place string) bool { return within(place, path) }) {
		p.grants = append(p.grants, grant{path: path, rights: rights})
		return p.checkCount()
	}
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil // nothing to grant, or nothing that we could tell apart
	}
	if err != nil {
		return fmt.Errorf("listing %q to leave a part of it out: %w", path, err)
	}
	opened[path] = true
	for _, entry := range entries {
		if entry.Type()&fs.ModeSymlink != 0 {
			continue // a rule would land where the link points
		}
		if err := p.grantTree(filepath.Join(path, entry.Name()), rights, leftOut, opened); err != nil {
			return err
		}
	}
	return nil
}

func compact(places []string) []string {
	list := slices.Sorted(slices.Values(places))
	return slices.Compact(list)
}

// maxNamed bounds how many paths a note names.
const maxNamed = 8

func some(paths []string) string {
	if more := len(paths) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(paths[:maxNamed], ", "), more)
	}
	return strings.Join(paths, ", ")
}
