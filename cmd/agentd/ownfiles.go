package main

import (
	"fmt"
	"path/filepath"

	"execsession.dev/sandbox"
)

// ownFile is a file of agentd's that a flag names.
type ownFile struct{ flag, path string }

// ownFiles are those whose flags were given, with absolute paths.
func ownFiles(given ...ownFile) ([]ownFile, error) {
	var files []ownFile
	for _, file := range given {
		if file.path == "" {
			continue
		}
		absolute, err := filepath.Abs(file.path)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", file.flag, err)
		}
		files = append(files, ownFile{flag: file.flag, path: absolute})
	}
	return files, nil
}

// checkOwnFiles refuses a file that commands could change: the next policy would be theirs, or the records of what they did.
func checkOwnFiles(files []ownFile, policy sandbox.Policy, layout sandbox.Layout) error {
	for _, file := range files {
		why, err := sandbox.Changeable(policy, layout, file.path)
		if err != nil {
			return fmt.Errorf("--%s %q: %w", file.flag, file.path, err)
		}
		if why != "" {
			return fmt.Errorf("--%s %q: %s; put it where they do not, such as a folder that no command reaches (the socket's, or one of --hidden)", file.flag, file.path, why)
		}
	}
	return nil
}

// pathsOf are where the files lie, as far as that is known.
func pathsOf(files []ownFile) []string {
	var paths []string
	for _, file := range files {
		dir, err := filepath.EvalSymlinks(filepath.Dir(file.path))
		if err == nil {
			paths = append(paths, filepath.Join(dir, filepath.Base(file.path)))
		}
	}
	return paths
}
