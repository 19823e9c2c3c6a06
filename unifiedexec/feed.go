package unifiedexec

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// maxFeeds is how many feeds a process remembers; the least recently used that nobody watches goes first.
const maxFeeds = 64

// Feed is the input of one client that may lose its connection in the midst of it. Every byte has an offset, counted
// from the client's first, and is taken once, however often it is sent.
type Feed struct {
	process *Process
	name    string
	// welcome is whether the process took input when the feed was made.
	welcome bool

	mu sync.Mutex
	// queued counts the bytes that need not be sent again, taken those that the process has.
	queued, taken uint64
	// ended is set once the client's end was put; closed once the process takes no more.
	ended, closed bool
	watchers      []feedWatcher
}

// feedWatcher is somebody who wants to know of so many bytes at a time.
type feedWatcher struct {
	changed chan struct{}
	every   uint64
}

// Feed finds the feed of a name, or makes it. An empty name is nobody's: its feed is not remembered.
func (p *Process) Feed(name string) *Feed {
	feed := &Feed{process: p, name: name, welcome: p.takesInput()}
	if name == "" {
		return feed
	}
	p.feedsMu.Lock()
	defer p.feedsMu.Unlock()
	if i := slices.IndexFunc(p.feeds, func(f *Feed) bool { return f.name == name }); i >= 0 {
		feed = p.feeds[i]
		p.feeds = slices.Delete(p.feeds, i, i+1)
	}
	p.feeds = append(p.feeds, feed)
	if len(p.feeds) > maxFeeds {
		if i := slices.IndexFunc(p.feeds, (*Feed).unwatched); i >= 0 {
			p.feeds = slices.Delete(p.feeds, i, i+1)
		}
	}
	return feed
}

// Welcome is whether the process took input when the feed was made: whoever feeds it then is not to blame when it
// takes no more.
func (f *Feed) Welcome() bool { return f.welcome }

func (f *Feed) unwatched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.watchers) == 0
}

// Put gives data that begins at an offset, and the end of the input when nothing follows it; data then belongs to the
// engine. What was taken before is passed over. It waits, until ctx ends, only while much of what was given is not
// read. ErrStdinClosed says that the process takes no input any more.
func (f *Feed) Put(ctx context.Context, offset uint64, data []byte, end bool) error {
	in := f.process.input
	if in == nil || in.fed {
		return ErrStdinClosed
	}
	if err := in.awaitRoom(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	last := offset + uint64(len(data))
	switch {
	case offset > f.queued:
		return &FieldError{Field: "input.offset", Value: fmt.Sprint(offset), Problem: fmt.Sprintf("leaves a hole: the input was taken up to %d", f.queued)}
	case f.ended && last > f.queued:
		return &FieldError{Field: "input.data", Problem: fmt.Sprintf("goes on after the input's end at %d", f.queued)}
	}
	if last > f.queued {
		f.putLocked(data[f.queued-offset:])
	}
	if end && !f.ended {
		f.ended = true
		f.process.input.putEnd()
	}
	if f.closed && last > f.taken {
		return ErrStdinClosed
	}
	return nil
}

func (f *Feed) putLocked(data []byte) {
	f.queued += uint64(len(data))
	if !f.process.takesInput() {
		f.changeLocked(f.taken, true)
		return
	}
	if piece := f.process.input.put(data, f.told); piece.done == nil {
		f.tookLocked(piece)
	}
}

func (f *Feed) told(p *piece) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tookLocked(p)
}

func (f *Feed) tookLocked(p *piece) {
	f.changeLocked(f.taken+uint64(p.written), f.closed || p.err != nil)
}

func (f *Feed) changeLocked(taken uint64, closed bool) {
	for _, w := range f.watchers {
		if taken/w.every == f.taken/w.every && closed == f.closed {
			continue
		}
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
	f.taken, f.closed = taken, closed
}

// Taken tells how many bytes the process has, and whether it takes no more.
func (f *Feed) Taken() (bytes uint64, closed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.taken, f.closed
}

// Watch returns a channel that gets an element when Taken has passed a multiple of so many bytes or the process takes no more,
// until stop is called.
func (f *Feed) Watch(every uint64) (changed <-chan struct{}, stop func()) {
	watcher := feedWatcher{changed: make(chan struct{}, 1), every: every}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers = append(f.watchers, watcher)
	return watcher.changed, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.watchers = slices.DeleteFunc(f.watchers, func(w feedWatcher) bool { return w == watcher })
	}
}
