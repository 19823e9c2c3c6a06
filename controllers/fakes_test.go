package controllers_test

import (
	"context"
	"io"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"execsession.dev/agentd/ledger"
	"execsession.dev/controllers/follower"
)

// fakeLogs are logs of containers that live as long as the test and can be followed,
// by several readers and from the beginning, as a kubelet's can.
type fakeLogs struct {
	mu    sync.Mutex
	lines map[types.NamespacedName][]byte
	grown chan struct{}
	seq   uint64
}

func newFakeLogs() *fakeLogs {
	return &fakeLogs{lines: map[types.NamespacedName][]byte{}, grown: make(chan struct{})}
}

// write adds a record to a pod's log.
func (l *fakeLogs) write(pod types.NamespacedName, boot string, status ledger.Status) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	line, err := ledger.Encode(ledger.Record{
		Version: ledger.Version, Boot: boot, Seq: l.seq, Time: time.Now(), Type: ledger.TypeStatus, Status: &status,
	})
	if err != nil {
		return err
	}
	if len(line) > 0 && line[len(line)-1] != '\n' {
		line = append(line, '\n')
	}
	l.lines[pod] = append(l.lines[pod], line...)
	close(l.grown)
	l.grown = make(chan struct{})
	return nil
}

// Open implements follower.LogSource.
func (l *fakeLogs) Open(ctx context.Context, pod types.NamespacedName, _ follower.LogOptions) (io.ReadCloser, error) {
	return &fakeStream{ctx: ctx, logs: l, pod: pod}, nil
}

type fakeStream struct {
	ctx  context.Context //nolint:containedctx // a stream ends with the context that it was opened with
	logs *fakeLogs
	pod  types.NamespacedName
	read int
}

func (s *fakeStream) Read(p []byte) (int, error) {
	for {
		s.logs.mu.Lock()
		n := copy(p, s.logs.lines[s.pod][s.read:])
		grown := s.logs.grown
		s.logs.mu.Unlock()
		if n > 0 {
			s.read += n
			return n, nil
		}
		select {
		case <-grown:
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		}
	}
}

func (s *fakeStream) Close() error { return nil }
