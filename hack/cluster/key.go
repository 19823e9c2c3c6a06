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

// cacheKey names the folder of the cache that holds the binaries: everything that decides their content goes in.
func cacheKey(module fs.FS, programs []program, goVersion string) (string, error) {
	parts := map[string][]byte{"go": []byte(goVersion)}
	err := fs.WalkDir(module, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		base := path.Base(name)
		if base != "go.mod" && base != "go.sum" && !strings.HasSuffix(base, ".go") {
			return nil
		}
		content, err := fs.ReadFile(module, name)
		parts["file "+name] = content
		return err
	})
	if err != nil {
		return "", fmt.Errorf("reading the module of the components: %w", err)
	}
	for _, p := range programs {
		parts["program "+p.name] = []byte(fmt.Sprintf("%s %q", p.pkg, buildFlags(p.cgo)))
	}
	return digest(parts), nil
}
