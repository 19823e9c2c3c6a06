package main

import (
	"crypto/ed25519"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/wire"
)

// reasonWithin waits until starting a command gives this policy reason; "" is success.
func reasonWithin(t *testing.T, c wire.AgentClient, limit time.Duration, want string) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		got := ""
		if _, err := c.Start(t.Context(), &wire.StartRequest{Command: argv("true")}); err != nil {
			if status.Code(err) != codes.FailedPrecondition || reasonOf(err) != wire.ReasonPolicyInvalid {
				t.Fatalf("starting a command: %v", err)
			}
			state, err := c.GetStatus(t.Context(), &wire.GetStatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			got = state.GetPolicy().GetReason()
		}
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s starting a command gives %q, want %q", limit, got, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestPodPolicyTransitions(t *testing.T) {
	p, c := startedPod(t, io.Discard)
	profile, session := p.sign(t, podProfile(), 5, nil)
	long := attachStart(t, c, script("echo up; while [ ! -e end ]; do sleep 0.05; done; echo still here"))
	if first, err := long.Recv(); err != nil || first.GetProcess() == nil {
		t.Fatalf("starting the command: %v, %v", first, err)
	}

	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	forger := &pod{key: stranger}
	_, forged := forger.sign(t, podProfile(), 9, nil)
	_, foreign := p.sign(t, podProfile(), 9, func(s *config.SessionDocument) { s.UID = "cccc" })
	_, older := p.sign(t, podProfile(), 4, nil)
	_, sameRevision := p.sign(t, podProfile(), 5, func(s *config.SessionDocument) { s.Shell.Login = config.LoginForbidden })
	wide := podProfile()
	wide.Policy.Sandbox.Network.Mode = "Open"
	wideProfile, wideSession := p.sign(t, wide, 6, nil)
	newer := podProfile()
	newer.Policy.Sandbox.MinLandlockABI = 11
	newerProfile, newerSession := p.sign(t, newer, 7, nil)
	lastProfile, lastSession := p.sign(t, podProfile(), 8, nil)

	// The deadline is the product's, in the issue; the rest of the machine is given as much again.
	const limit = 10 * time.Second
	for _, step := range []struct {
		reason           string
		profile, session []byte
		want             string
	}{
		{"a forged session document", profile, forged, "DocumentForged"},
		{"the operator restores it", profile, session, ""},
		{"a document of another session", profile, foreign, "DocumentForeign"},
		{"restored", profile, session, ""},
		{"an older document", profile, older, "DocumentOutdated"},
		{"another document of the same revision", profile, sameRevision, "DocumentOutdated"},
		{"restored", profile, session, ""},
		{"not a document", profile, []byte("hello"), "DocumentMalformed"},
		{"a deleted annotation", profile, nil, "DocumentMissing"},
		{"a forged profile", []byte(strings.Replace(string(profile), "None", "Open", 1)), session, "DocumentForged"},
		{"another authentic profile than the pinned one", wideProfile, session, "ProfileOutOfSync"},
		{"the session document that pins it", wideProfile, wideSession, ""},
		{"back to the former pair", profile, session, "DocumentOutdated"},
		{"a profile that cannot be enforced", newerProfile, newerSession, "NotEnforceable"},
		{"a profile that can", lastProfile, lastSession, ""},
	} {
		t.Log(step.reason)
		p.write(t, step.profile, step.session)
		reasonWithin(t, c, limit, step.want)
	}

	// A command that ran all the while was left alone.
	if err := os.WriteFile(p.path("workspace/end"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := receive(long); string(got.output) != "up\nstill here\n" || got.exit.GetExitCode() != 0 {
		t.Errorf("the command that ran through all of it gave %q and %v", got.output, got.exit)
	}
}

func TestPodWaitsForAPairOnItsWay(t *testing.T) {
	p, c := startedPod(t, io.Discard)
	wide := podProfile()
	wide.Policy.Sandbox.Network.Mode = "Open"
	wideProfile, wideSession := p.sign(t, wide, 6, nil)
	oldProfile, _ := p.sign(t, podProfile(), 5, nil)
	p.write(t, oldProfile, wideSession)
	eventually(t, "agentd saw that the pair is out of sync", func() bool {
		state, err := c.GetStatus(t.Context(), &wire.GetStatusRequest{})
		return err == nil && state.GetPolicy().GetReason() == "ProfileOutOfSync"
	})
	type answer struct {
		result *wire.ToolResult
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		result, err := c.ExecCommand(t.Context(), &wire.ExecCommandRequest{Command: script("echo ran")})
		answers <- answer{result, err}
	}()
	time.Sleep(200 * time.Millisecond) // the call is waiting by now; if not, the test is only easier
	p.write(t, wideProfile, wideSession)
	if got := <-answers; got.err != nil || got.result.GetOutput() != "ran\n" {
		t.Errorf("the waiting call gave %v, %v", got.result, got.err)
	}
}

// refusesOlderAfterKill kills agentd, gives the next one documents that are older than the last one saw, and expects it to notice.
func (p *pod) refusesOlderAfterKill(t *testing.T) wire.AgentClient {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.done
	profile, older := p.sign(t, podProfile(), 4, nil)
	p.write(t, profile, older)
	p.start(t, io.Discard)
	c := p.connect(t)
	reasonWithin(t, c, patience, "DocumentOutdated")
	return c
}

func TestPodRemembersTheRevisionOverARestart(t *testing.T) {
	p, c := startedPod(t, io.Discard)
	execute(t, c, argv("true"))
	c = p.refusesOlderAfterKill(t)
	profile, session := p.sign(t, podProfile(), 5, nil)
	p.write(t, profile, session)
	reasonWithin(t, c, patience, "")
}

// Limits of an edited profile hold for the commands that start afterwards; who runs keeps what it started with.
func TestPodLimitsFollowTheProfile(t *testing.T) {
	p, c := startedPod(t, io.Discard)
	apply := func(revision int64, files uint64) {
		t.Helper()
		document := podProfile()
		document.Policy.Sandbox.Process.Limits = map[string]uint64{"nofile": files}
		profile, session := p.sign(t, document, revision, nil)
		p.write(t, profile, session)
		eventually(t, "the edited profile is in force", func() bool {
			state, err := c.GetStatus(t.Context(), &wire.GetStatusRequest{})
			return err == nil && state.GetPolicy().GetValid() && state.GetPolicy().GetSessionRevision() == revision && state.GetSandbox().GetEnforced()
		})
	}
	apply(6, 64)
	long := attachStart(t, c, script("while [ ! -e end ]; do sleep 0.05; done; ulimit -Hn"))
	if first, err := long.Recv(); err != nil || first.GetProcess() == nil {
		t.Fatalf("starting the command: %v, %v", first, err)
	}
	apply(7, 128)
	if output, code := execute(t, c, script("ulimit -n; ulimit -Hn; touch end")); code != 0 || output != "128\n128\n" {
		t.Errorf("under the edited profile a command has %q (%d), want 128 twice", output, code)
	}
	if got := receive(long); string(got.output) != "64\n" {
		t.Errorf("the command that ran has %q, want 64", got.output)
	}
	if _, err := c.Start(t.Context(), &wire.StartRequest{Command: argv("/no/such/program")}); reasonOf(err) != wire.ReasonStartFailed {
		t.Errorf("a program that does not exist gave %v", err)
	}
}
