package follower

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"execsession.dev/agentd/ledger"
	"execsession.dev/api/v1alpha1"
)

const (
	// tailLines surely holds a status: agentd writes one within a second of every change.
	tailLines = 200
	// steady is how long a follow must last to count as one.
	steady   = 5 * time.Second
	minPause = time.Second
	maxPause = 5 * time.Minute
)

// LogOptions says what to read of a log.
type LogOptions struct {
	Container string
	TailLines int64
	Follow    bool
}

// LogSource opens the log of a container.
type LogSource interface {
	Open(ctx context.Context, pod types.NamespacedName, opts LogOptions) (io.ReadCloser, error)
}

// listen reads until the context ends, at once after a follow that lasted and ever
// more slowly where follows do not last.
func (f *Follower) listen(ctx context.Context, r *reader) {
	pause := minPause
	for {
		if err := f.opens.Wait(ctx); err != nil {
			return
		}
		began := f.Clock.Now()
		news, err := f.readOnce(ctx, r)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			f.Log.V(1).Info("The log of an agent ended", "pod", r.target.Pod, "reason", err.Error())
		}
		if news || f.Clock.Since(began) >= steady {
			pause = minPause
		}
		timer := f.Clock.NewTimer(pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// readOnce reads one stream to its end: a follow if one may be open, else the tail.
func (f *Follower) readOnce(ctx context.Context, r *reader) (news bool, err error) {
	opts := LogOptions{Container: v1alpha1.ContainerWorkspace, TailLines: tailLines}
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
		opts.Follow = true
		streams.Inc()
		defer streams.Dec()
	default:
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A stream that is open and says nothing may be a broken one: end it and tell.
	watchdog := f.Clock.AfterFunc(silence, func() {
		f.fallSilent(r)
		f.announce(ctx, r)
		cancel()
	})
	defer watchdog.Stop()
	stream, err := f.Logs.Open(ctx, r.target.Pod, opts)
	if err != nil {
		return false, err
	}
	defer func() { _ = stream.Close() }()
	return f.consume(ctx, r, stream, func() { watchdog.Reset(silence) })
}

// consume reads lines. What is no record is passed over: a container's log may hold
// anything, a crash of the runtime included.
func (f *Follower) consume(ctx context.Context, r *reader, stream io.Reader, heard func()) (news bool, err error) {
	lines := bufio.NewReaderSize(stream, ledger.MaxRecordBytes)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			unread.Inc()
			if err = skipLine(lines); err == nil {
				continue
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return news, err
		}
		record, err := ledger.Parse(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil {
			unread.Inc()
			continue
		}
		heard()
		if f.take(r, record) {
			news = true
			f.announce(ctx, r)
		}
	}
}

func skipLine(lines *bufio.Reader) error {
	for {
		_, err := lines.ReadSlice('\n')
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// same says that two reports mean the same: activity counts by the minute, and the
// time of a heartbeat not at all.
func same(a, b *Report) bool {
	left, right := a.Status, b.Status
	left.LastActivity = left.LastActivity.Truncate(time.Minute)
	right.LastActivity = right.LastActivity.Truncate(time.Minute)
	return a.Boot == b.Boot && left.StartTime.Equal(right.StartTime) && left.LastActivity.Equal(right.LastActivity) &&
		reflect.DeepEqual(timeless(left), timeless(right))
}

func timeless(status ledger.Status) ledger.Status {
	status.StartTime, status.LastActivity = time.Time{}, time.Time{}
	return status
}
