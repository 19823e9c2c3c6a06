package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// cache is where finished binaries live, outside any checkout: GROUP-KEY/NAME for each group, and KEY/bin with links
// to all of them.
type cache struct {
	root string
	dirs map[string]string // by group
	key  string            // of all groups together
}

// cacheRoot is the folder named by EXECSESSION_CACHE, or the machine's.
func cacheRoot() (string, error) {
	root := os.Getenv("EXECSESSION_CACHE")
	if root == "" && os.Geteuid() == 0 {
		root = "/var/cache/execsession"
	}
	if root == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("finding a folder for the cache: %w", err)
		}
		root = filepath.Join(user, "execsession")
	}
	return filepath.Abs(root)
}

func openCache(ctx context.Context, checkout string) (cache, error) {
	root, err := cacheRoot()
	if err != nil {
		return cache{}, err
	}
	version, err := output(ctx, nil, "go", "env", "GOVERSION", "GOARCH", "GOOS")
	if err != nil {
		return cache{}, err
	}
	c := cache{root: filepath.Join(root, "cluster"), dirs: map[string]string{}}
	modules := os.DirFS(modulesDir(checkout))
	parts := map[string][]byte{}
	for _, g := range groups {
		key, err := g.key(modules, strings.Join(strings.Fields(version), " "))
		if err != nil {
			return cache{}, err
		}
		c.dirs[g.name] = filepath.Join(c.root, g.name+"-"+key)
		parts[g.name] = []byte(key)
	}
	c.key = digest(parts)
	return c, os.MkdirAll(c.bin(), 0o755)
}

func modulesDir(checkout string) string { return filepath.Join(checkout, "hack", "cluster", "modules") }

// bin is the folder with links to the binaries of every group.
func (c cache) bin() string { return filepath.Join(c.root, c.key, "bin") }

// path is where a finished binary of a group is.
func (c cache) path(g group, b program) string { return filepath.Join(c.dirs[g.name], b.name) }

// has says whether a binary is finished: builds end with a rename, so a file that exists is whole.
func (c cache) has(g group, b program) bool {
	_, err := os.Stat(c.path(g, b))
	return err == nil
}

// link makes bin show a binary.
func (c cache) link(g group, b program) error {
	target, err := filepath.Rel(c.bin(), c.path(g, b))
	if err != nil {
		return err
	}
	name := filepath.Join(c.bin(), b.name)
	if old, err := os.Readlink(name); err == nil && old == target {
		return nil
	}
	temp := fmt.Sprintf("%s.%d", name, os.Getpid())
	if err := os.Symlink(target, temp); err != nil {
		return fmt.Errorf("linking %s: %w", b.name, err)
	}
	return os.Rename(temp, name)
}
