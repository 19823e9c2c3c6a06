package agentd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/ledger"
	"execsession.dev/sandbox"
	"execsession.dev/unifiedexec"
)

// settingsKeeper is an engine that keeps what it was told.
type settingsKeeper struct {
	mu      sync.Mutex
	current unifiedexec.Settings
	err     error
}

func (k *settingsKeeper) Configure(s unifiedexec.Settings) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.current = s
	}
	return k.err
}

func (k *settingsKeeper) start() unifiedexec.StartFunc {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current.Start
}

func testPolicy(t *testing.T) (*policy, *settingsKeeper) {
	t.Helper()
	keeper := &settingsKeeper{current: unifiedexec.Settings{Start: closedGate}}
	p := newPolicy(sandbox.Layout{Workspace: t.TempDir()}, sandbox.Probe(), unifiedexec.Settings{})
	p.engine = keeper
	p.denials = newDenials(new(statuses), time.Now)
	t.Cleanup(p.close)
	return p, keeper
}

func validDocuments(revision int64) documents {
	return documents{policy: config.DefaultPolicy(), shell: config.DefaultShell(), hash: "sha256:x", revision: revision}
}

// startTrue starts /bin/true through the engine's StartFunc and waits for it.
func startTrue(start unifiedexec.StartFunc) error {
	pid, err := start("/bin/true", []string{"true"}, &syscall.ProcAttr{Dir: "/", Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{}})
	if err != nil {
		return err
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	_, err = process.Wait()
	return err
}

func TestGateClosesWithItsPolicy(t *testing.T) {
	p, keeper := testPolicy(t)
	if err := startTrue(keeper.start()); !errors.Is(err, errPolicyReplaced) {
		t.Errorf("before the first policy a start gives %v", err)
	}
	p.adopt(validDocuments(1))
	first := keeper.start()
	if err := startTrue(first); err != nil {
		t.Fatalf("under a valid policy: %v", err)
	}
	p.adopt(validDocuments(2))
	if err := startTrue(first); !errors.Is(err, errPolicyReplaced) {
		t.Errorf("under a policy that was replaced: %v", err)
	}
	if err := startTrue(keeper.start()); err != nil {
		t.Errorf("under the policy that replaced it: %v", err)
	}
	// What a call got from the engine before the documents were forged is worth nothing after.
	p.adopt(documents{reason: ReasonDocumentForged, message: "forged"})
	if err := startTrue(keeper.start()); !errors.Is(err, errPolicyReplaced) {
		t.Errorf("after a forged document: %v", err)
	}
}

// Calls that start while the policy changes all the time either run or are told why not.
func TestLaunchWhileThePolicyChanges(t *testing.T) {
	p, keeper := testPolicy(t)
	p.adopt(validDocuments(1))
	var ran, refusals atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for ctx.Err() == nil {
				err := p.launch(t.Context(), func(*policyState) error { return startTrue(keeper.start()) })
				var refusal *policyError
				switch {
				case err == nil:
					ran.Add(1)
				case errors.As(err, &refusal) && refusal.reason == ReasonDocumentForged:
					refusals.Add(1)
				case errors.Is(err, errPolicyReplaced):
					// Replaced three times during one call; the caller is told.
				default:
					t.Errorf("launching: %v", err)
					return
				}
			}
		})
	}
	deadline := time.Now().Add(patience)
	for revision := int64(2); (ran.Load() < 50 || refusals.Load() < 50) && time.Now().Before(deadline); revision++ {
		p.adopt(validDocuments(revision))
		time.Sleep(2 * time.Millisecond)
		p.adopt(documents{reason: ReasonDocumentForged, message: "forged"})
		time.Sleep(time.Millisecond)
	}
	cancel()
	callers.Wait()
	if ran.Load() == 0 || refusals.Load() == 0 {
		t.Errorf("%d ran and %d were refused, want some of both", ran.Load(), refusals.Load())
	}
}

func TestAdmit(t *testing.T) {
	cases := map[string]struct {
		reason string
		held   documents
		then   *documents
		want   string
	}{
		"Valid":        {"nothing to wait for", validDocuments(1), nil, ""},
		"Forged":       {"is not waited out", documents{reason: ReasonDocumentForged}, nil, ReasonDocumentForged},
		"OutOfSync":    {"is waited out, but not for ever", documents{reason: ReasonProfileOutOfSync}, nil, ReasonProfileOutOfSync},
		"SyncArrives":  {"the other file comes", documents{reason: ReasonProfileOutOfSync}, new(validDocuments(2)), ""},
		"ThenIsForged": {"somebody else's comes", documents{reason: ReasonProfileOutOfSync}, &documents{reason: ReasonDocumentForged}, ReasonDocumentForged},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p, _ := testPolicy(t)
			p.adopt(tc.held)
			var changer sync.WaitGroup
			if tc.then != nil {
				changer.Go(func() {
					time.Sleep(50 * time.Millisecond)
					p.adopt(*tc.then)
				})
			}
			s, err := p.admit(t.Context())
			changer.Wait()
			var refusal *policyError
			switch {
			case tc.want == "" && (err != nil || !s.valid()):
				t.Errorf("%s: got %v, %v, want a valid policy", tc.reason, s, err)
			case tc.want != "" && (!errors.As(err, &refusal) || refusal.reason != tc.want):
				t.Errorf("%s: got %v, want %s", tc.reason, err, tc.want)
			}
		})
	}
	t.Run("CallerGivesUp", func(t *testing.T) {
		p, _ := testPolicy(t)
		p.adopt(documents{reason: ReasonProfileOutOfSync})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.admit(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
}

func TestAdoptTellsEveryChangeOnce(t *testing.T) {
	p, keeper := testPolicy(t)
	var told []ledger.Policy
	p.onChange = func(s *policyState) { told = append(told, s.ledger()) }
	forged := documents{reason: ReasonDocumentForged, message: "forged"}
	for _, read := range []documents{validDocuments(1), validDocuments(1), forged, forged, validDocuments(1)} {
		p.adopt(read)
	}
	keeper.err = &unifiedexec.FieldError{Field: "shell.path", Value: "/no/such", Problem: "is not there"}
	p.adopt(validDocuments(2))
	want := []string{"", ReasonDocumentForged, "", ReasonNotUsable}
	if len(told) != len(want) {
		t.Fatalf("told %d changes, want %d: %+v", len(told), len(want), told)
	}
	for i, reason := range want {
		if told[i].Reason != reason || told[i].Valid != (reason == "") {
			t.Errorf("change %d is %+v, want reason %q", i, told[i], reason)
		}
	}
}

func TestClosedPolicyStaysClosed(t *testing.T) {
	p, keeper := testPolicy(t)
	p.adopt(validDocuments(1))
	p.close()
	p.adopt(validDocuments(2))
	if _, err := p.admit(t.Context()); !errors.Is(err, unifiedexec.ErrClosed) {
		t.Errorf("a call during the end gives %v, want %v", err, unifiedexec.ErrClosed)
	}
	if err := startTrue(keeper.start()); !errors.Is(err, errPolicyReplaced) {
		t.Errorf("a start during the end gives %v", err)
	}
}

// The parent that the kernel tells by a pidfd and the one in /proc, which older kernels
// leave, are the same.
func TestPeerParent(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd := openPidfd(t, cmd.Process.Pid)
	p := &peer{pid: cmd.Process.Pid, uid: os.Getuid(), pidfd: pidfd}
	parent, err := p.parent()
	if err != nil || parent != os.Getpid() {
		t.Errorf("the parent is %d, %v, want %d", parent, err, os.Getpid())
	}
	status, err := readProcess(p.pid)
	if err != nil || status.parent != parent {
		t.Errorf("/proc says parent %d, %v, want %d", status.parent, err, parent)
	}
	if err := (&descendants{ancestor: os.Getpid(), now: time.Now}).check(p); err == nil {
		t.Error("a child passed as no descendant")
	}
	if err := (&descendants{ancestor: 1 << 30, now: time.Now}).check(p); err != nil {
		t.Errorf("a stranger's child was refused: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := p.alive(); err == nil {
		t.Error("a process that ended counts as alive")
	}
	if _, err := p.parent(); err == nil {
		t.Error("a process that ended has a parent")
	}
}
