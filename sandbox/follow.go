package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// checkFolder checks what must exist.
func checkFolder(field, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &FieldError{Field: field, Value: path, Reason: "does not exist"}
	case err != nil:
		return fmt.Errorf("looking at %s: %w", field, err)
	}
	if err := checkLinkFree(path); err != nil {
		return &FieldError{Field: field, Value: path, Reason: err.Error()}
	}
	if !info.IsDir() {
		return &FieldError{Field: field, Value: path, Reason: "is not a folder"}
	}
	return nil
}

var errLink = errors.New("passes through a symbolic link")

// checkLinkFree says why a path would grant nothing. The rule itself is opened
// without following links again, so that a swap in between grants nothing either.
func checkLinkFree(path string) error {
	resolved, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("does not exist")
	}
	if err != nil {
		return err
	}
	if resolved != path {
		return errLink
	}
	return nil
}

// maxLinks is how many links the kernel follows in one path.
const maxLinks = 40

// follow resolves the links of a path as far as it exists, and tells where each of
// them lies. A link that leads to nothing is followed too, since something may be made
// there. What cannot be looked at counts as no link: commands have no more rights.
func follow(path string) (place string, links []string) {
	place = "/"
	rest := strings.Split(path, "/")
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		next := filepath.Join(place, name)
		target, err := os.Readlink(next)
		if err != nil || name == "" || name == "." || name == ".." || len(links) == maxLinks {
			place = next
			continue
		}
		links = append(links, next)
		if filepath.IsAbs(target) {
			place = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return place, links
}

// realPaths resolves links as far as the paths exist.
func realPaths(paths []string) []string {
	places := make([]string, len(paths))
	for i, path := range paths {
		places[i], _ = follow(path)
	}
	return places
}

// within says that path is dir or lies below it.
func within(path, dir string) bool {
	if path == dir || dir == "/" {
		return true
	}
	return strings.HasPrefix(path, dir+"/")
}

// inOneOf returns the shortest of the folders that a path is or lies below, "" if there is none.
func inOneOf(dirs []string, path string) string {
	found := ""
	for _, dir := range dirs {
		if within(path, dir) && (found == "" || len(dir) < len(found)) {
			found = dir
		}
	}
	return found
}
