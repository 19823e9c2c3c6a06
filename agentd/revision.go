package agentd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// loadRevision reads the newest revision that an earlier run of this container saw,
// so that a restart does not open a way back to an older document. The folder is one
// that no command reaches. What is not there is 0; what is not a number is an error:
// only agentd writes the file.
func (r *reader) loadRevision() error {
	if r.RevisionFile == "" {
		return nil
	}
	data, err := os.ReadFile(r.RevisionFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the last seen revision: %w", err)
	}
	floor, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return fmt.Errorf("reading the last seen revision from %q: %w", r.RevisionFile, err)
	}
	r.floor = floor
	return nil
}

// saveRevision is best effort: losing it only shortens the memory to this run.
func (r *reader) saveRevision(revision int64) {
	if r.RevisionFile == "" {
		return
	}
	next := filepath.Join(filepath.Dir(r.RevisionFile), "."+filepath.Base(r.RevisionFile)+".new")
	if err := os.WriteFile(next, []byte(strconv.FormatInt(revision, 10)+"\n"), 0o600); err != nil {
		return
	}
	_ = os.Rename(next, r.RevisionFile)
}
