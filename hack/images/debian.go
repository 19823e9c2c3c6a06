package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// packagedFile is the path of a file out of a Debian package, which is fetched and unpacked below the cache, not
// installed.
func packagedFile(ctx context.Context, pkg, file string) (string, error) {
	root, err := cacheRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "images", pkg)
	unpacked := filepath.Join(dir, "unpacked")
	path := filepath.Join(unpacked, file)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	archive, err := fetchPackage(ctx, dir, pkg)
	if err != nil {
		return "", fmt.Errorf("fetching %s: %w", pkg, err)
	}
	// Beside the target and renamed, so that an interrupted run leaves nothing that looks finished.
	temp, err := os.MkdirTemp(dir, "unpacking")
	if err != nil {
		return "", fmt.Errorf("unpacking %s: %w", pkg, err)
	}
	defer func() { _ = os.RemoveAll(temp) }()
	if err := command(ctx, dir, "dpkg-deb", "-x", archive, temp); err != nil {
		return "", err
	}
	if err := os.RemoveAll(unpacked); err != nil {
		return "", fmt.Errorf("unpacking %s: %w", pkg, err)
	}
	if err := os.Rename(temp, unpacked); err != nil {
		return "", fmt.Errorf("unpacking %s: %w", pkg, err)
	}
	for _, candidate := range []string{path, filepath.Join(unpacked, "usr", file)} {
		if _, err := os.Stat(candidate); err == nil {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("unpacking %s: it has no %s", pkg, file)
}

// fetchPackage downloads a package; a fresh machine has no lists yet, so they are fetched when the first try fails.
func fetchPackage(ctx context.Context, dir, pkg string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := command(ctx, dir, "apt-get", "-q", "download", pkg); err != nil {
		if err := command(ctx, dir, "apt-get", "-q", "update"); err != nil {
			return "", err
		}
		if err := command(ctx, dir, "apt-get", "-q", "download", pkg); err != nil {
			return "", err
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, pkg+"_*.deb"))
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("apt-get left no archive in %s", dir)
	}
	return found[len(found)-1], nil
}

func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running %s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(text)))
	}
	return nil
}

// cacheRoot is the folder named by EXECSESSION_CACHE, or the machine's, or the user's.
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
