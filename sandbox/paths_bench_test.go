package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// BenchmarkManyEntries is what a folder of a thousand entries, granted one by one to leave one
// out, adds to a start; starts with and without take turns. Making the rules is paid once a policy.
func BenchmarkManyEntries(b *testing.B) {
	s := newStage(b, true)
	for i := range 1000 {
		check(b, os.WriteFile(filepath.Join(s.base, "outside", strconv.Itoa(i)), nil, 0o644))
	}
	many := with(func(p *Policy) { p.Filesystem.DeniedPaths = []string{filepath.Join(s.base, "outside/file")} })
	compile := func(policy Policy) (*Launcher, time.Duration) {
		start := time.Now()
		launcher, err := Compile(policy, s.layout(), Probe())
		check(b, err)
		return launcher, time.Since(start)
	}
	few, fewTook := compile(Default())
	defer few.Close()
	thousand, thousandTook := compile(many)
	defer thousand.Close()
	start := func(launcher *Launcher) time.Duration {
		began := time.Now()
		pid, err := launcher.Start("/bin/true", []string{"true"}, &syscall.ProcAttr{})
		check(b, err)
		wait(b, pid)
		return time.Since(began)
	}
	var without, added []time.Duration
	for b.Loop() {
		without = append(without, start(few))
		added = append(added, start(thousand))
	}
	slices.Sort(without)
	slices.Sort(added)
	milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(milliseconds(without[len(without)/2]), "ms-without")
	b.ReportMetric(milliseconds(added[len(added)/2]), "ms-with")
	b.ReportMetric(milliseconds(fewTook), "ms-compile-without")
	b.ReportMetric(milliseconds(thousandTook), "ms-compile-with")
}
