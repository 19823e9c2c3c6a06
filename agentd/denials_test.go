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
	if p.denials.of(7) != 1 || p.denials.count() != 1 || p.denials.of(8) != 0 {
		t.Errorf("counted %d of the command, %d in all", p.denials.of(7), p.denials.count())
	}
}

// TestDenialsAreBounded: whatever commands do, the ledger gets a bounded number of records, and the counts stay true.
func TestDenialsAreBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	var out deniedRecords
	d := newDenials(&out, func() time.Time { return now })
	l, watch := d.watch()
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
	if d.count() != 6*events || d.of(1) != 6*events {
		t.Errorf("counted %d and %d, want %d", d.count(), d.of(1), 6*events)
	}
}

// TestDenialsForgetTheNameless: starts that never become commands, and commands of long ago, leave nothing behind.
func TestDenialsForgetTheNameless(t *testing.T) {
	d := newDenials(new(deniedRecords), time.Now)
	for pid := range 10 * keptLaunches {
		l, watch := d.watch()
		d.begun(l, pid+2)
		watch.OnEnd()
	}
	if len(d.launches) > keptLaunches {
		t.Errorf("%d launches are remembered", len(d.launches))
	}
	for id := range int32(2 * keptCounts) {
		l, watch := d.watch()
		d.begun(l, int(id)+2)
		d.identify(int(id)+2, id)
		watch.OnDenial(sandbox.Denial{Count: 1})
		watch.OnEnd()
	}
	if len(d.counts) > keptCounts || d.of(2*keptCounts-1) != 1 || d.of(0) != 0 {
		t.Errorf("%d counts are remembered", len(d.counts))
	}
	d.settle(time.Minute)
}
