package agentd

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// tend syncs after exits, and writes the file anew when it is too long or has holes. It ends with stop, after a last sync.
func (j *journal) tend() {
	for {
		select {
		case <-j.work:
		case <-j.stop:
			j.finish()
			return
		}
		rest := j.limits.syncEvery
		if !j.renew() {
			rest = j.limits.retry
			signal(j.work) // to be tried again then
		}
		j.sync()
		if !j.pause(rest) {
			j.finish()
			return
		}
	}
}

// pause is false when the journal ends.
func (j *journal) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-j.stop:
		return false
	}
}

// renew writes the file anew if that is due; false when it could not be.
func (j *journal) renew() bool {
	j.mu.Lock()
	due := j.stale
	j.mu.Unlock()
	if !due {
		return true
	}
	if err := j.rewrite(); err != nil {
		j.mu.Lock()
		j.stale = true
		j.mu.Unlock()
		j.trouble(0, fmt.Errorf("writing the journal anew: %w", err))
		return false
	}
	j.whole()
	return true
}

// rewrite makes a file of what is kept now and puts it in the place of the old one. The old one is written on
// meanwhile, and what it gets goes to the new one too: no command waits for this.
func (j *journal) rewrite() error {
	next := j.path + ".new"
	var tee []byte
	j.fileMu.Lock()
	j.tee = &tee
	j.fileMu.Unlock()
	defer func() {
		j.fileMu.Lock()
		j.tee = nil
		j.fileMu.Unlock()
	}()
	// From here on nothing is missed, so what goes wrong later is another time's.
	j.mu.Lock()
	j.stale = false
	j.mu.Unlock()
	lines := appendRecord(nil, journalRecord{Open: &j.head})
	for _, info := range j.kept() {
		lines = appendRecord(lines, startOf(info))
		if info.Exit != nil {
			lines = appendRecord(lines, endOf(info))
		}
		if info.Told {
			lines = appendRecord(lines, journalRecord{Told: info.ID})
		}
	}
	file, err := j.open(next, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	if _, err = file.WriteAt(lines, 0); err == nil {
		err = file.Sync()
	}
	var old journalFile
	if err == nil {
		old, err = j.exchange(next, file, int64(len(lines)), &tee)
	}
	if err != nil {
		return errors.Join(err, file.Close(), os.Remove(next))
	}
	j.mu.Lock()
	j.dirty = true // What came meanwhile is not synced.
	j.mu.Unlock()
	if old != nil {
		_ = old.Close() // Its name is gone.
	}
	return j.folder()
}

// exchange puts the new file in the place of the old one, between two writes.
func (j *journal) exchange(next string, file journalFile, size int64, tee *[]byte) (old journalFile, err error) {
	j.fileMu.Lock()
	defer j.fileMu.Unlock()
	if _, err := file.WriteAt(*tee, size); err != nil {
		return nil, err
	}
	if err := os.Rename(next, j.path); err != nil {
		return nil, err
	}
	old = j.file
	j.file, j.size, j.floor = file, size+int64(len(*tee)), size
	j.headed, j.flawed = true, false
	return old, nil
}

// sync puts exits on the disk. They were told long before: after a fall of the machine the journal says that it may
// lack the last moment.
func (j *journal) sync() {
	j.mu.Lock()
	due := j.dirty
	j.dirty = false
	j.mu.Unlock()
	j.fileMu.Lock()
	file := j.file
	j.fileMu.Unlock()
	if !due || file == nil {
		return
	}
	if err := file.Sync(); err != nil {
		j.mu.Lock()
		j.stale = true // The kernel may have dropped what it could not write.
		j.mu.Unlock()
		signal(j.work)
		j.trouble(0, fmt.Errorf("syncing the journal: %w", err))
	}
}

// finish syncs a last time and closes the file.
func (j *journal) finish() {
	j.sync()
	j.fileMu.Lock()
	defer j.fileMu.Unlock()
	if j.file != nil {
		_ = j.file.Close() // It is synced.
		j.file = nil
	}
}
