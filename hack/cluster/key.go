package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// digest hashes named parts so that neither their order of arrival nor a shifted boundary between two of them can
// yield the same key for different content.
func digest(parts map[string][]byte) string {
	names := make([]string, 0, len(parts))
	for name := range parts {
		names = append(names, name)
	}
	slices.Sort(names)
	hash := sha256.New()
	for _, name := range names {
		hash.Write(fmt.Appendf(nil, "%d %s %d\n", len(name), name, len(parts[name])))
		hash.Write(parts[name])
	}
	return hex.EncodeToString(hash.Sum(nil))[:16]
}

// key names the folder of the cache that holds the group's binaries: everything that decides their content goes in.
func (g group) key(modules fs.FS, goVersion string) (string, error) {
	parts := map[string][]byte{"flags": []byte(fmt.Sprintf("%q %t %q", g.flags(), g.cgo, goVersion))}
	err := fs.WalkDir(modules, g.name, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		base := path.Base(name)
		if base != "go.mod" && base != "go.sum" && !strings.HasSuffix(base, ".go") {
			return nil
		}
		content, err := fs.ReadFile(modules, name)
		parts[name] = content
		return err
	})
	if err != nil {
		return "", fmt.Errorf("reading the module of %s: %w", g.name, err)
	}
	for _, b := range g.binaries {
		parts["binary "+b.name] = []byte(b.pkg)
	}
	return digest(parts), nil
}

// flags are the arguments of go build that do not name a file.
func (g group) flags() []string {
	flags := []string{"-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=" + strings.TrimSpace("-s -w "+g.ldflags)}
	if g.tags != "" {
		flags = append(flags, "-tags="+g.tags)
	}
	return flags
}
