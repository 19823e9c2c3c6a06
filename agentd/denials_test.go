package agentd

import (
	"os"
	"syscall"
	"testing"
	"time"

	"execsession.dev/agentd/ledger"
	"execsession.dev/sandbox"
)

// deniedRecords keeps the denials.
type deniedRecords struct{ kept []ledger.Denied }

func (d *deniedRecords) Append(r ledger.Record) {
	if r.Denied != nil {
		d.kept = append(d.kept, *r.Denied)
	}
}

// TestDenialReachesTheLedger: a real command's refused call becomes a record with the command's id.
func TestDenialReachesTheLedger(t *testing.T) {
	if !sandbox.Probe().UserNotify {
		t.Skip("the kernel gives this process no listener: it has none, or a filter above this process has the only one")
	}
	p, keeper := testPolicy(t)
	var out deniedRecords
	p.denials = newDenials(&out, time.Now)
	p.adopt(validDocuments(1))
	pid, err := keeper.start()("/bin/sh", []string{"sh", "-c", "unshare -n true; exit 3"}, &syscall.ProcAttr{
		Dir: "/", Env: []string{"PATH=/usr/bin:/bin"}, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{},
	})
	if err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	state, err := process.Wait()
	if err != nil || state.ExitCode() != 3 {
		t.Fatalf("got %v %v", state, err)
	}
	p.denials.settle(time.Minute)
	if len(out.kept) > 0 {
		t.Fatalf("told before the command had an id: %+v", out.kept)
	}
	p.denials.identify(pid, 7)
	if len(out.kept) != 1 {
		t.Fatalf("got %+v, want one record", out.kept)
	}
	got := out.kept[0]
	if got.ID != 7 || got.Source != ledger.SourceEnforced || got.Rule != "namespaces" || got.Syscall != "unshare" ||
		got.Arguments != "flags=CLONE_NEWNET" || got.Errno != "EPERM" || got.Count != 1 || got.PID <= 1 || got.Program == "" {
		t.Errorf("got %+v", got)
	}
	if p.denials.of(7).Total() != 1 || p.denials.count() != 1 || p.denials.of(8) != nil {
		t.Errorf("counted %d of the command, %d in all", p.denials.of(7).Total(), p.denials.count())
	}
}

// TestDenialsAreBounded: whatever commands do, the ledger gets a bounded number of records, and the counts stay true.
func TestDenialsAreBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	var out deniedRecords
	d := newDenials(&out, func() time.Time { return now })
	l := &launch{}
	watch := d.watch(l)
	d.begun(l, 50)
	d.identify(50, 1)
	const events = 5000
	for range events {
		watch.OnDenial(sandbox.Denial{Rule: "socket", Errno: syscall.EACCES, Count: 3})
	}
	if len(out.kept) != denialsBurst {
		t.Errorf("got %d records at one moment, want %d", len(out.kept), denialsBurst)
	}
	now = now.Add(2 * time.Second)
	for range events {
		watch.OnDenial(sandbox.Denial{Rule: "socket", Errno: syscall.EACCES, Count: 3})
	}
	if len(out.kept) != denialsBurst+2*denialsPerSecond {
		t.Errorf("got %d records two seconds later, want %d", len(out.kept), denialsBurst+2*denialsPerSecond)
	}
	if d.count() != 6*events {
		t.Errorf("counted %d, want %d", d.count(), 6*events)
	}
}

// TestDenialsForget: starts that never become commands, commands that were refused nothing and those of long ago leave
// nothing behind.
func TestDenialsForget(t *testing.T) {
	p, keeper := testPolicy(t)
	p.adopt(validDocuments(1))
	if !p.current().report.Denials {
		t.Skip("the kernel gives this process no listener: it has none, or a filter above this process has the only one")
	}
	d := p.denials
	for pid := range 10 * keptLaunches {
		l := &launch{}
		watch := d.watch(l)
		d.begun(l, pid+2)
		watch.OnEnd()
	}
	if len(d.launches) > keptLaunches {
		t.Errorf("%d launches are remembered", len(d.launches))
	}
	for id := range int32(20) {
		if text := runScript(t, p, keeper, id, "true"); text != "" {
			t.Fatalf("got %q", text)
		}
	}
	if len(d.commands) != 0 {
		t.Errorf("%d commands are remembered that were refused nothing", len(d.commands))
	}
	const first = 100
	for id := range int32(keptCommands + 2) {
		runScript(t, p, keeper, first+id, "exec 3<>/dev/tcp/192.0.2.1/80")
	}
	if len(d.commands) != keptCommands || d.of(first+1) != nil || d.of(first+2).Total() != 1 {
		t.Errorf("%d commands are remembered, of one %+v", len(d.commands), d.of(first+2).All())
	}
	d.settle(time.Minute)
}
