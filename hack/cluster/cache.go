package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// cache is the folder, outside any checkout, in which the finished binaries of one key live.
type cache struct {
	key string
	dir string
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
	key, err := cacheKey(os.DirFS(componentsDir(checkout)), programs, strings.Join(strings.Fields(version), " "))
	if err != nil {
		return cache{}, err
	}
	c := cache{key: key, dir: filepath.Join(root, "cluster", key)}
	return c, os.MkdirAll(c.bin(), 0o755)
}

func componentsDir(checkout string) string {
	return filepath.Join(checkout, "hack", "cluster", "components")
}

// bin is the folder of the finished binaries.
func (c cache) bin() string { return filepath.Join(c.dir, "bin") }

// path is where a finished binary is.
func (c cache) path(name string) string { return filepath.Join(c.bin(), name) }

// has says whether a binary is finished: builds end with a rename, so a file that exists is whole.
func (c cache) has(name string) bool {
	_, err := os.Stat(c.path(name))
	return err == nil
}
