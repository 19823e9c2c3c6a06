package agentd

import (
	"errors"
	"sync"

	"execsession.dev/sandbox"
)

// narrowedLaunchers are the launchers of a policy for commands that ask for less than it allows, made when the first
// such command comes. They are as few as the pairs of modes: at most eight.
type narrowedLaunchers struct {
	mu     sync.Mutex
	closed bool
	made   map[sandbox.Narrowing]*sandbox.Launcher
}

// narrowing gives the modes that hold for a command that asks for these. Where that is more than the policy allows,
// beyond says so; the error is about what it is not possible to ask for.
func (s *policyState) narrowing(asked sandbox.Narrowing) (n sandbox.Narrowing, beyond string, err error) {
	if asked == (sandbox.Narrowing{}) {
		return asked, "", nil
	}
	narrowed, err := sandbox.Narrow(s.policy.Sandbox, asked)
	if wider, ok := errors.AsType[*sandbox.WiderError](err); ok {
		return asked, "sandbox." + wider.Error(), nil
	}
	if field, ok := errors.AsType[*sandbox.FieldError](err); ok {
		return asked, "", fieldError("command."+field.Field, "%q %s", field.Value, field.Reason)
	}
	return sandbox.Narrowing{Filesystem: narrowed.Filesystem.Mode, Network: narrowed.Network.Mode}, "", err
}

// launcherFor gives the launcher for a narrowing that the policy allows.
func (s *policyState) launcherFor(n sandbox.Narrowing) (*sandbox.Launcher, error) {
	whole := sandbox.Narrowing{Filesystem: s.policy.Sandbox.Filesystem.Mode, Network: s.policy.Sandbox.Network.Mode}
	if n == (sandbox.Narrowing{}) || n == whole {
		return s.launcher, nil
	}
	s.narrowed.mu.Lock()
	defer s.narrowed.mu.Unlock()
	if s.narrowed.closed {
		return nil, errPolicyReplaced
	}
	if launcher := s.narrowed.made[n]; launcher != nil {
		return launcher, nil
	}
	launcher, err := s.launcher.Narrow(n)
	if err != nil {
		return nil, err
	}
	if s.narrowed.made == nil {
		s.narrowed.made = make(map[sandbox.Narrowing]*sandbox.Launcher)
	}
	s.narrowed.made[n] = launcher
	return launcher, nil
}

// close closes what was made. No start relies on it any more.
func (n *narrowedLaunchers) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	for _, launcher := range n.made {
		// As with closeLauncher, nothing can be done about an error.
		_ = launcher.Close()
	}
	n.made = nil
}
