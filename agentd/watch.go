package agentd

import (
	"context"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settleTime lets the several events of one atomic swap pass before the files are read.
	settleTime = 5 * time.Millisecond
	// resyncPeriod bounds how long a lost event could go unnoticed.
	resyncPeriod = 30 * time.Second
	// pollPeriod is used when the kernel gives no watch: the number of inotify instances
	// is limited for each user, and many pods of a node may run as the same one.
	pollPeriod = 500 * time.Millisecond
)

// watch reads the documents whenever the folder changes, and now and then, until ctx
// ends. The kubelet replaces a projected folder by renaming the symlink ..data, so
// the folder is watched, not the files.
func watch(ctx context.Context, log *slog.Logger, r *reader, adopt func(documents)) {
	events, failures, stop := openWatch(log, r.Dir)
	defer stop()
	period := resyncPeriod
	if events == nil {
		period = pollPeriod
	}
	resync := time.NewTicker(period)
	defer resync.Stop()
	// A change between the first reading and the watch would go unseen.
	adopt(r.read())
	for {
		select {
		case <-ctx.Done():
			return
		case <-resync.C:
		case err := <-failures:
			// An overflow of the queue loses events, not the need to look.
			log.Warn("watching the config folder", "dir", r.Dir, "err", err)
		case <-events:
			if !settle(ctx, events) {
				return
			}
		}
		adopt(r.read())
	}
}

// settle drains events until none came for a moment; false when ctx ended.
func settle(ctx context.Context, events <-chan fsnotify.Event) bool {
	quiet := time.NewTimer(settleTime)
	defer quiet.Stop()
	// A folder that changes all the time must still be read.
	for range 100 {
		select {
		case <-events:
		case <-quiet.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// openWatch returns nil channels when the kernel gives no watch.
func openWatch(log *slog.Logger, dir string) (<-chan fsnotify.Event, <-chan error, func()) {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = watcher.Add(dir); err == nil {
			return watcher.Events, watcher.Errors, func() { _ = watcher.Close() }
		}
		_ = watcher.Close()
	}
	log.Warn("polling the config folder because it cannot be watched", "dir", dir, "err", err)
	return nil, nil, func() {}
}
