package agentd

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"execsession.dev/sandbox"
	"execsession.dev/unifiedexec"
)

// startAs starts a program under a narrowing and returns its exit code.
func startAs(t *testing.T, p *policy, s *policyState, n sandbox.Narrowing, argv ...string) (int, error) {
	t.Helper()
	launcher, err := s.launcherFor(n)
	if err != nil {
		return 0, err
	}
	pid, err := p.starter(s, launcher, &launch{})(argv[0], argv, &syscall.ProcAttr{Dir: "/", Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{}})
	if err != nil {
		return 0, err
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	state, err := process.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return state.ExitCode(), nil
}

func TestNarrowedLaunchers(t *testing.T) {
	p, _ := testPolicy(t)
	p.adopt(validDocuments(1))
	s := p.current()
	if !s.valid() {
		t.Skipf("no policy can be enforced here: %s %s", s.reason, s.message)
	}
	file := filepath.Join(p.layout.Workspace, "file")
	touch := []string{"/bin/touch", file}
	if code, err := startAs(t, p, s, sandbox.Narrowing{Filesystem: sandbox.ReadOnly, Network: sandbox.NoNetwork}, touch...); err != nil || code == 0 {
		t.Errorf("ReadOnly wrote: %d, %v", code, err)
	}
	for _, whole := range []sandbox.Narrowing{{}, {Filesystem: sandbox.WorkspaceWrite, Network: sandbox.NoNetwork}} {
		if code, err := startAs(t, p, s, whole, touch...); err != nil || code != 0 {
			t.Errorf("%+v under the same policy: %d, %v", whole, code, err)
		}
	}
	// One launcher serves all who ask for the same.
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			if _, err := s.launcherFor(sandbox.Narrowing{Filesystem: sandbox.ReadOnly, Network: sandbox.NoNetwork}); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	if len(s.narrowed.made) != 1 {
		t.Errorf("%d launchers were made for one narrowing", len(s.narrowed.made))
	}
	made := s.narrowed.made[sandbox.Narrowing{Filesystem: sandbox.ReadOnly, Network: sandbox.NoNetwork}]
	p.adopt(validDocuments(2))
	if _, err := startAs(t, p, s, sandbox.Narrowing{Filesystem: sandbox.ReadOnly, Network: sandbox.NoNetwork}, touch...); !errors.Is(err, errPolicyReplaced) {
		t.Errorf("under a policy that was replaced: %v", err)
	}
	if _, err := made.Start("/bin/true", []string{"true"}, &syscall.ProcAttr{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a launcher outlives its policy: %v", err)
	}
}

// TestNarrowingFailsClosed: where the profile itself may be weakened, a narrowing that cannot be had in full is none.
func TestNarrowingFailsClosed(t *testing.T) {
	keeper := &settingsKeeper{current: unifiedexec.Settings{Start: closedGate}}
	caps := sandbox.Probe()
	caps.LandlockABI = 0
	p := newPolicy(sandbox.Layout{Workspace: t.TempDir()}, caps, unifiedexec.Settings{})
	p.engine = keeper
	p.denials = newDenials(new(statuses), time.Now)
	t.Cleanup(p.close)
	read := validDocuments(1)
	read.policy.Sandbox.Enforcement = sandbox.BestEffort
	p.adopt(read)
	s := p.current()
	if !s.valid() || s.report.Enforced {
		t.Fatalf("got %s %+v, want a policy that is not enforced", s.reason, s.report)
	}
	var setup *sandbox.SetupError
	_, err := startAs(t, p, s, sandbox.Narrowing{Filesystem: sandbox.ReadOnly, Network: sandbox.NoNetwork}, "/bin/true")
	if !errors.As(err, &setup) || setup.Stage != sandbox.StageNarrowing || !errors.As(err, new(*sandbox.NotEnforceableError)) {
		t.Errorf("got %v", err)
	}
}

func TestNarrowing(t *testing.T) {
	read := validDocuments(1)
	read.policy.Sandbox.Network.Mode = sandbox.OpenNetwork
	s := &policyState{documents: read}
	cases := map[string]struct {
		reason string
		asked  sandbox.Narrowing
		want   sandbox.Narrowing
		beyond string
	}{
		"nothing":  {reason: "the profile holds", asked: sandbox.Narrowing{}, want: sandbox.Narrowing{}},
		"one mode": {reason: "the other stays", asked: sandbox.Narrowing{Network: sandbox.LoopbackNetwork}, want: sandbox.Narrowing{Filesystem: sandbox.WorkspaceWrite, Network: sandbox.LoopbackNetwork}},
		"more":     {reason: "an approval's matter", asked: sandbox.Narrowing{Filesystem: sandbox.FullAccess}, want: sandbox.Narrowing{Filesystem: sandbox.FullAccess}, beyond: "sandbox.filesystem FullAccess is not within the profile's WorkspaceWrite, which holds ReadOnly and WorkspaceWrite"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, beyond, err := s.narrowing(c.asked)
			if err != nil || got != c.want || beyond != c.beyond {
				t.Errorf("%s: got %+v, %q, %v", c.reason, got, beyond, err)
			}
		})
	}
	if _, _, err := s.narrowing(sandbox.Narrowing{Filesystem: "All"}); err == nil {
		t.Error("a mode that does not exist is no error")
	}
}
