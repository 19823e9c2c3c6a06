package unifiedexec

import "testing"

// BenchmarkOutputLog tells what a log costs that nobody reads, without and with a file.
func BenchmarkOutputLog(b *testing.B) {
	for name, spilled := range map[string]bool{"Memory": false, "File": true} {
		b.Run(name, func(b *testing.B) {
			piece := pattern(pumpBuffer)
			b.SetBytes(pumpBuffer)
			var e Engine
			store, err := newSpillStore(SpillConfig{Dir: b.TempDir(), Bytes: 1 << 40}, e.running.Go)
			if err != nil {
				b.Fatal(err)
			}
			const most = 4 << 30 // on a disk that others use
			var l *outputLog
			for i := 0; b.Loop(); i++ {
				if i%(most/pumpBuffer) == 0 {
					if l != nil {
						l.forgotten()
					}
					l = newOutputLog(1<<20, 1)
					if spilled {
						l.spill = newSpill(store, l)
					}
				}
				l.append(StreamStdout, piece)
			}
			l.forgotten()
			e.running.Wait()
		})
	}
}
