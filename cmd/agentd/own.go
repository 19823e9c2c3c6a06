package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// takeBack makes agentd's own files be its own again, for reading and writing. A command of the same user cannot
// open them, but it can change their modes by their names, because Landlock does not mediate chmod; without this, one that did
// so would keep the next agentd from starting.
func takeBack(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at agentd's own files: %w", err)
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		if err := os.Chmod(filepath.Join(dir, entry.Name()), 0o600); err != nil {
			return fmt.Errorf("taking back agentd's own files: %w", err)
		}
	}
	return nil
}
