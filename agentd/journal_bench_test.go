package agentd

import (
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"execsession.dev/unifiedexec"
)

// BenchmarkJournal times what a command waits for its two records: as it is, and as it would be if its end were
// synced before it is told. It reports medians, because a disk has bad moments.
func BenchmarkJournal(b *testing.B) {
	for name, synced := range map[string]bool{"Written": false, "Synced": true} {
		b.Run(name, func(b *testing.B) {
			j := newJournal(filepath.Join(b.TempDir(), "journal"), "boot", slog.New(slog.DiscardHandler))
			if synced {
				j.limits.syncEvery = time.Hour
			}
			j.start(func() []unifiedexec.Info { return nil })
			defer j.close()
			var took []time.Duration
			for b.Loop() {
				info := begun(1001)
				began := time.Now()
				<-j.Started(info)
				<-j.Ended(over(info))
				if synced {
					j.fileMu.Lock()
					file := j.file
					j.fileMu.Unlock()
					if err := file.Sync(); err != nil {
						b.Fatal(err)
					}
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "median-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
			b.ReportMetric(0, "ns/op")
		})
	}
}
