package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"execsession.dev/unifiedexec"
)

// The bars of group engine.
const (
	inProcessBar  = 1.15
	socketBar     = 1.3
	throughputBar = 0.7
	rateBar       = 0.8
)

// The names of the floors.
const (
	plainFloor   = "floor: os/exec"
	sessionFloor = "floor: os/exec, own session"
)

func (b *bench) measureEngine(ctx context.Context) (err error) {
	engine, err := b.newEngine(nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeEngine(ctx, engine)) }()
	return b.withAgents(ctx, func(bare, confined *agent) error {
		for _, j := range []job{trueJob, shellJob, loginJob} {
			for _, j := range []job{j, j.onTerminal()} {
				if err := b.measureStart(ctx, j, engine, bare, confined); err != nil {
					return err
				}
			}
		}
		for _, measure := range []func(context.Context, *unifiedexec.Engine, *agent, *agent) error{
			b.measureFirstByte, b.measureRate, b.measureThroughput, b.measureEcho,
		} {
			if err := measure(ctx, engine, bare, confined); err != nil {
				return err
			}
		}
		return nil
	})
}

// floors are the bare ways to run a job; bars are over the last of them.
func (j job) floors() []variant {
	session := timed(sessionFloor, func(ctx context.Context) error { return j.runBare(ctx, true) })
	if j.tty {
		session.name = "floor: creack/pty"
		return []variant{session}
	}
	return []variant{timed(plainFloor, func(ctx context.Context) error { return j.runBare(ctx, false) }), session}
}

// measureStart is from asking for a command to having its exit record.
func (b *bench) measureStart(ctx context.Context, j job, engine *unifiedexec.Engine, bare, confined *agent) error {
	floors := j.floors()
	taken, err := interleave(ctx, b.runs, append(floors,
		timed("in process: exec_command", func(ctx context.Context) error { return j.execIn(ctx, engine) }),
		timed("in process: start and read", func(ctx context.Context) error { return j.readIn(ctx, engine, &writeCounter{}) }),
		timed("socket: exec_command", func(ctx context.Context) error { return j.execBy(ctx, bare.Client) }),
		timed("socket: run", func(ctx context.Context) error { return j.runBy(ctx, bare.Client, &writeCounter{}) }),
		timed("socket, "+sandboxed+": exec_command", func(ctx context.Context) error { return j.execBy(ctx, confined.Client) }),
	)...)
	if err != nil {
		return err
	}
	first := len(floors)
	rows := rowsOf("ms", taken, first-1)
	for i := first; i < first+2; i++ {
		rows[i] = rows[i].ratioAtMost(inProcessBar)
	}
	if j.name == trueJob.name {
		rows[first+2] = rows[first+2].ratioAtMost(socketBar)
	}
	b.section("engine", fmt.Sprintf("%s on %s, start to exit record", j.name, j.stdio()), rows...)
	return nil
}

// measureFirstByte is from asking for a command to having the first byte that it writes.
func (b *bench) measureFirstByte(ctx context.Context, engine *unifiedexec.Engine, bare, confined *agent) error {
	on := shellScript("first byte", "printf x; exec sleep 0.02")
	for _, j := range []job{on, on.onTerminal()} {
		clocked := func(name string, run func(ctx context.Context, output io.Writer) error) variant {
			return variant{name, func(ctx context.Context) (float64, error) {
				var clock firstByteClock
				began := time.Now()
				err := run(ctx, &clock)
				if err == nil && clock.came.IsZero() {
					err = errors.New("the byte did not come")
				}
				return milliseconds(clock.came.Sub(began)), err
			}}
		}
		taken, err := interleave(ctx, b.share(4, 5),
			clocked("floor", j.readBare),
			clocked("in process", func(ctx context.Context, output io.Writer) error { return j.readIn(ctx, engine, output) }),
			clocked("socket", func(ctx context.Context, output io.Writer) error { return j.runBy(ctx, bare.Client, output) }),
			clocked("socket, "+sandboxed, func(ctx context.Context, output io.Writer) error { return j.runBy(ctx, confined.Client, output) }),
		)
		if err != nil {
			return err
		}
		b.section("engine", fmt.Sprintf("bash -c 'printf x; ...' on %s, start to first byte", j.stdio()), rowsOf("ms", taken, 0)...)
	}
	return nil
}

// inFlight is how many commands run at a time where a rate is measured.
const inFlight = 8

// inParallel calls do for 0 to n-1, inFlight at a time. After an error no more calls begin.
func inParallel(n int, do func(i int) error) error {
	var next atomic.Int64
	var workers sync.WaitGroup
	errs := make([]error, inFlight)
	for w := range errs {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[w] == nil; i = int(next.Add(1)) - 1 {
				if errs[w] = do(i); errs[w] != nil {
					next.Store(int64(n))
				}
			}
		})
	}
	workers.Wait()
	return errors.Join(errs...)
}

// measureRate is how many commands a second end with eight in flight.
func (b *bench) measureRate(ctx context.Context, engine *unifiedexec.Engine, bare, confined *agent) error {
	const batch = 25 * inFlight
	rate := func(name string, once func(ctx context.Context) error) variant {
		return variant{name, func(ctx context.Context) (float64, error) {
			began := time.Now()
			err := inParallel(batch, func(int) error { return once(ctx) })
			return batch / time.Since(began).Seconds(), err
		}}
	}
	taken, err := interleave(ctx, b.share(10, 5),
		rate(plainFloor, func(ctx context.Context) error { return trueJob.runBare(ctx, false) }),
		rate(sessionFloor, func(ctx context.Context) error { return trueJob.runBare(ctx, true) }),
		rate("in process: exec_command", func(ctx context.Context) error { return trueJob.execIn(ctx, engine) }),
		rate("socket: exec_command", func(ctx context.Context) error { return trueJob.execBy(ctx, bare.Client) }),
		rate("socket, "+sandboxed+": exec_command", func(ctx context.Context) error { return trueJob.execBy(ctx, confined.Client) }),
	)
	if err != nil {
		return err
	}
	rows := rowsOf("1/s", taken, 1)
	rows[2], rows[3] = rows[2].ratioAtLeast(rateBar), rows[3].ratioAtLeast(rateBar)
	b.section("engine", fmt.Sprintf("/bin/true, %d in flight", inFlight), rows...)
	return nil
}

// floodBytes is what flood writes: 500 MiB.
const floodBytes = 500 << 20

var flood = shellScript("flood", `head -c 500M /dev/zero | tr '\0' x`)

// measureThroughput is how fast a reader gets all of what a command writes.
func (b *bench) measureThroughput(ctx context.Context, engine *unifiedexec.Engine, bare, confined *agent) error {
	all := func(name string, run func(ctx context.Context, output io.Writer) error) variant {
		return variant{name, func(ctx context.Context) (float64, error) {
			var count writeCounter
			began := time.Now()
			err := run(ctx, &count)
			if err == nil && count.bytes != floodBytes {
				err = fmt.Errorf("%d bytes came, want %d", count.bytes, int64(floodBytes))
			}
			return float64(count.bytes) / 1e6 / time.Since(began).Seconds(), err
		}}
	}
	taken, err := interleave(ctx, b.share(25, 5),
		all("plain read", flood.readBare),
		all("floor: pipe, copier, Unix socket", b.readThroughCopier),
		all("in process: start and read", func(ctx context.Context, output io.Writer) error { return flood.readIn(ctx, engine, output) }),
		all("socket: run", func(ctx context.Context, output io.Writer) error { return flood.runBy(ctx, bare.Client, output) }),
		all("socket, "+sandboxed+": run", func(ctx context.Context, output io.Writer) error { return flood.runBy(ctx, confined.Client, output) }),
	)
	if err != nil {
		return err
	}
	rows := rowsOf("MB/s", taken, 1)
	for i := 3; i < len(rows); i++ {
		rows[i] = rows[i].ratioAtLeast(throughputBar)
	}
	b.section("engine", "500 MiB from head and tr, start to exit record", rows...)
	return nil
}

// readThroughCopier is the raw hop: the same pipeline, a process that copies from its pipe into a
// Unix socket, and a reader on the other side. It has as many processes and copies as the product's way.
func (b *bench) readThroughCopier(ctx context.Context, output io.Writer) error {
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	ours, theirs, err := unixSocketPair()
	if err != nil {
		return errors.Join(err, read.Close(), write.Close())
	}
	defer ours.Close()
	writer, copier := bareCommand(ctx, flood.bare...), bareCommand(ctx, b.self, childCopy)
	writer.Stdout, copier.Stdin = write, read
	copier.ExtraFiles = []*os.File{theirs}
	err = errors.Join(copier.Start(), writer.Start(), read.Close(), write.Close(), theirs.Close())
	if err != nil {
		return fmt.Errorf("starting the raw hop: %w", err)
	}
	err = copyPlainly(output, ours)
	return errors.Join(err, writer.Wait(), copier.Wait())
}
