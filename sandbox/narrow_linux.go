package sandbox

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Narrow makes a launcher whose processes may do what both this launcher and the narrowing allow. It has rules of its
// own for what it takes away, above this launcher's: the kernel allows what all of them do, so that what was created
// since this launcher was made is not allowed by rules that are newer than it. Both are to be closed.
func (l *Launcher) Narrow(n Narrowing) (*Launcher, error) {
	policy, err := Narrow(l.made.policy, n)
	if err != nil {
		return nil, err
	}
	narrowed, err := Compile(policy, l.made.layout, l.made.caps)
	if err != nil {
		return nil, &SetupError{Stage: StageNarrowing, Err: err}
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		_ = narrowed.Close() // It only releases what was made above.
		return nil, &SetupError{Stage: StageLauncher, Err: os.ErrClosed}
	}
	for _, rules := range l.rules {
		copied, err := rules.duplicate()
		if err != nil {
			_ = narrowed.Close() // It only releases what was made above.
			return nil, &SetupError{Stage: StageNarrowing, Err: err}
		}
		narrowed.rules = append(narrowed.rules, copied)
	}
	return narrowed, nil
}

func (r *ruleset) duplicate() (*ruleset, error) {
	if r.fd < 0 {
		return &ruleset{fd: -1}, nil
	}
	fd, err := unix.FcntlInt(uintptr(r.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicating a ruleset: %w", err)
	}
	copied := *r
	copied.fd = fd
	return &copied, nil
}
