package unifiedexec

import (
	"bytes"
	"context"
	"io"
	"os"
	osexec "os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

func benchEngine(b *testing.B) *Engine {
	b.Helper()
	b.Helper()
	e, err := New(Config{Settings: Settings{Workdir: b.TempDir()}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return e
}

func engineRun(b *testing.B, e *Engine, c Command) {
	b.Helper()
	p, err := e.Start(context.Background(), c)
	if err != nil {
		b.Fatal(err)
	}
	<-p.Done()
}

func floorPipe(b *testing.B, argv []string) {
	b.Helper()
	bare(b, argv, nil)
}

// floorSession is the floor with a session of its own, as the engine gives to every command: where the
// kernel groups tasks by session for scheduling, that alone costs on a busy machine.
func floorSession(b *testing.B, argv []string) {
	b.Helper()
	bare(b, argv, &syscall.SysProcAttr{Setsid: true})
}

func bare(b *testing.B, argv []string, attr *syscall.SysProcAttr) {
	b.Helper()
	cmd := osexec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = attr
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		b.Fatal(err)
	}
}

func floorPTY(b *testing.B, argv []string) {
	b.Helper()
	cmd := osexec.Command(argv[0], argv[1:]...)
	f, err := pty.Start(cmd)
	if err != nil {
		b.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, f)
	f.Close()
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkStart times commands through the engine beside bare os/exec, one after the other in the
// same loop, because the machine's speed drifts. It reports medians in milliseconds and their ratio.
func BenchmarkStart(b *testing.B) {
	commands := map[string][]string{"true": {"/bin/true"}, "bash-c": {"/bin/bash", "-c", "true"}, "bash-lc": {"/bin/bash", "-lc", "true"}}
	for _, name := range []string{"true", "bash-c", "bash-lc"} {
		argv := commands[name]
		for _, tty := range []bool{false, true} {
			form, floor := "pipe", floorPipe
			if tty {
				form, floor = "pty", floorPTY
			}
			b.Run(name+"/"+form, func(b *testing.B) {
				e := benchEngine(b)
				var ours, bare, session []time.Duration
				for b.Loop() {
					ours = timed(ours, func() { engineRun(b, e, Command{Argv: argv, TTY: tty}) })
					bare = timed(bare, func() { floor(b, argv) })
					session = timed(session, func() { floorSession(b, argv) })
				}
				reportMedians(b, ours, bare)
				b.ReportMetric(median(session), "session-floor-ms")
			})
		}
	}
}

func timed(times []time.Duration, run func()) []time.Duration {
	at := time.Now()
	run()
	return append(times, time.Since(at))
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2]) / float64(time.Millisecond)
}

func reportMedians(b *testing.B, ours, floor []time.Duration) {
	b.Helper()
	o, f := median(ours), median(floor)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(o, "engine-ms")
	b.ReportMetric(f, "floor-ms")
	b.ReportMetric(o/f, "x-floor")
}

// BenchmarkParallel runs eight at a time and reports commands a second.
func BenchmarkParallel(b *testing.B) {
	argv := []string{"/bin/true"}
	e := benchEngine(b)
	eight := func(n int, run func()) float64 {
		began := time.Now()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range n {
					run()
				}
			})
		}
		wg.Wait()
		return float64(8*n) / time.Since(began).Seconds()
	}
	var ours, floor, session float64
	rounds := 0.0
	for b.Loop() {
		ours += eight(25, func() { engineRun(b, e, Command{Argv: argv}) })
		floor += eight(25, func() { floorPipe(b, argv) })
		session += eight(25, func() { floorSession(b, argv) })
		rounds++
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ours/rounds, "engine/s")
	b.ReportMetric(floor/rounds, "floor/s")
	b.ReportMetric(session/rounds, "session-floor/s")
	b.ReportMetric(ours/floor, "x-floor")
}

// BenchmarkBulk reads much output without loss, beside a bare read of the same pipe.
func BenchmarkBulk(b *testing.B) {
	const size = 200 << 20
	script := "head -c 209715200 /dev/zero"
	e := benchEngine(b)
	var ours, floor time.Duration
	for b.Loop() {
		at := time.Now()
		p, err := e.Start(context.Background(), Command{Script: script})
		if err != nil {
			b.Fatal(err)
		}
		r := p.NewReader(ReaderOptions{Lossless: true})
		n := 0
		for {
			c, err := r.Next(context.Background())
			if err != nil {
				break
			}
			n += len(c.Data)
		}
		r.Close()
		if n != size {
			b.Fatalf("%d bytes", n)
		}
		ours += time.Since(at)
		at = time.Now()
		cmd := osexec.Command("/bin/bash", "-c", script)
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, 64<<10)
		for {
			if _, err := out.Read(buf); err != nil {
				break
			}
		}
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
		floor += time.Since(at)
	}
	mb := float64(b.N) * size / 1e6
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(mb/ours.Seconds(), "engine-MB/s")
	b.ReportMetric(mb/floor.Seconds(), "floor-MB/s")
}

// BenchmarkEcho times a terminal's echo of one byte.
func BenchmarkEcho(b *testing.B) {
	e := benchEngine(b)
	p, err := e.Start(context.Background(), Command{Argv: []string{"/bin/cat"}, TTY: true})
	if err != nil {
		b.Fatal(err)
	}
	r := p.NewReader(ReaderOptions{})
	defer r.Close()
	var times []time.Duration
	for b.Loop() {
		at := time.Now()
		if _, err := p.Write(context.Background(), []byte("\n")); err != nil {
			b.Fatal(err)
		}
		for got := 0; got < 4; {
			c, err := r.Next(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			got += len(c.Data)
		}
		times = append(times, time.Since(at))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(times), "echo+copy-ms")
	if _, _, err := p.Stop(context.Background(), 0); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkIdle starts 64 processes that do nothing and reports what one costs the engine in memory.
func BenchmarkIdle(b *testing.B) {
	for _, tty := range []bool{false, true} {
		name := "pipe"
		if tty {
			name = "pty"
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				e := benchEngine(b)
				before := privateKB(b)
				for range 64 {
					if _, err := e.Start(context.Background(), Command{Argv: []string{"/bin/sleep", "1000"}, TTY: tty}); err != nil {
						b.Fatal(err)
					}
				}
				time.Sleep(300 * time.Millisecond)
				b.ReportMetric(float64(privateKB(b)-before)/64, "KB/process")
				b.ReportMetric(float64(threads(b)), "threads")
				if _, err := e.StopAll(context.Background(), -1); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func privateKB(b *testing.B) int {
	b.Helper()
	data, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		b.Fatal(err)
	}
	total := 0
	for line := range bytes.Lines(data) {
		if fields := bytes.Fields(line); len(fields) == 3 && bytes.HasPrefix(fields[0], []byte("Private_")) {
			n := 0
			for _, c := range fields[1] {
				n = n*10 + int(c-'0')
			}
			total += n
		}
	}
	return total
}

func threads(b *testing.B) int {
	b.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		b.Fatal(err)
	}
	return len(entries)
}
