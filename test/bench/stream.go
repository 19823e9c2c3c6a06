package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"execsession.dev/agentd/client"
	"execsession.dev/agentd/wire"
)

// The bars of group stream.
const (
	privateBar = 40.0 // MiB
	holdUpBar  = 1.0  // s
)

func (b *bench) measureStream(ctx context.Context) (err error) {
	a, err := b.startAgent(ctx, sandboxed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	for _, measure := range []func(context.Context, *agent) error{b.measureFollower, b.measureStall, b.measureAlone} {
		if err := measure(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// onlyWriter counts the bytes of a stream and those that are not what they should be.
type onlyWriter struct {
	want         []byte
	bytes, wrong int64
}

func (w *onlyWriter) Write(p []byte) (int, error) {
	if len(p) > len(w.want) {
		w.want = bytes.Repeat([]byte("x"), len(p))
	}
	if !bytes.Equal(p, w.want[:len(p)]) {
		w.wrong += int64(len(p) - bytes.Count(p, []byte("x")))
	}
	w.bytes += int64(len(p))
	return len(p), nil
}

// measureFollower is a reader that keeps reading while a command writes as fast as it can.
func (b *bench) measureFollower(ctx context.Context, a *agent) error {
	var off, speed series
	var peak int64
	samples := 0
	for range b.share(40, 3) {
		var output onlyWriter
		sampler := sampleMemory(ctx, a.pid())
		began := time.Now()
		err := flood.runBy(ctx, a.Client, &output)
		took := time.Since(began)
		most, n, sampleErr := sampler.peak()
		if err := errors.Join(err, sampleErr); err != nil {
			return err
		}
		peak, samples = max(peak, most), samples+n
		off.values = append(off.values, float64(floodBytes-output.bytes+output.wrong))
		speed.values = append(speed.values, float64(output.bytes)/1e6/took.Seconds())
	}
	off.name, speed.name = "bytes lost, doubled or wrong", "speed"
	worst := rowOf("bytes", off, nil)
	worst.Bar = atMost(0, max(off.quantile(1), -off.quantile(0)), " bytes")
	memory := figure("private memory, most", "MiB", mebibytes(peak)).medianAtMost(privateBar).
		noting("of %d looks, one each %s", samples, sampleEvery)
	b.section("stream", "500 MiB from head and tr to a reader that follows", worst, memory, rowOf("MB/s", speed, nil))
	return nil
}

// numberReader checks the stream of writeNumbers against its own offsets.
type numberReader struct {
	// at is the offset of the next byte.
	at       uint64
	received uint64
	gaps     []gap
	wrong    int
	// longest is the longest time between two pieces, last when the newest came.
	longest time.Duration
	last    time.Time
	// onPiece is called with what was received until then, if it is set.
	onPiece func(received uint64)
}

type gap struct{ from, to uint64 }

// Write checks both ends of a piece: were bytes missing within, its end would not fit its offset.
func (r *numberReader) Write(p []byte) (int, error) {
	now := time.Now()
	if !r.last.IsZero() {
		r.longest = max(r.longest, now.Sub(r.last))
	}
	if !numbersAt(r.at, p[:min(len(p), 2*wordBytes)]) || !numbersAt(r.at+uint64(max(0, len(p)-2*wordBytes)), p[max(0, len(p)-2*wordBytes):]) {
		r.wrong++
	}
	r.at += uint64(len(p))
	r.received += uint64(len(p))
	if r.onPiece != nil {
		r.onPiece(r.received)
	}
	r.last = time.Now()
	return len(p), nil
}

// numbersAt says whether p is what the stream holds at an offset.
func numbersAt(offset uint64, p []byte) bool {
	var word [wordBytes]byte
	for i, b := range p {
		at := offset + uint64(i)
		binary.LittleEndian.PutUint64(word[:], at/wordBytes)
		if word[at%wordBytes] != b {
			return false
		}
	}
	return true
}

func (r *numberReader) skip(from, to uint64) {
	if from != r.at {
		r.wrong++
	}
	r.gaps = append(r.gaps, gap{from, to})
	r.at = to
}

// missing counts the bytes that gaps told of, up to the end of the numbers: the writer's report follows them.
func (r *numberReader) missing(end uint64) uint64 {
	var n uint64
	for _, g := range r.gaps {
		n += min(g.to, end) - min(g.from, end)
	}
	return n
}

// stallAfter is what the stalling reader takes before it stalls.
const stallAfter = 32 << 20

// measureStall is a reader that reads nothing for a while, beside one that follows.
func (b *bench) measureStall(ctx context.Context, a *agent) error {
	const before, after = 3 * time.Second, 3 * time.Second
	seconds := (before + b.stall + after).Seconds()
	command := &wire.Command{Program: &wire.Command_Argv{Argv: &wire.Argv{
		Args: []string{b.self, childWrite, strconv.FormatFloat(seconds, 'f', -1, 64)},
	}}}
	stalled := false
	var follower, staller numberReader
	staller.onPiece = func(received uint64) {
		if !stalled && received >= stallAfter {
			stalled = true
			wait(ctx, b.stall)
		}
	}
	second := a.newClient()
	joined := make(chan error, 1)
	var words strings.Builder
	sampler := sampleMemory(ctx, a.pid())
	exit, err := a.Run(ctx, command, client.Streams{
		Stdout: &follower, Stderr: &words, OnGap: follower.skip,
		OnStart: func(p *wire.Process) {
			go func() {
				_, err := second.Attach(ctx, &wire.AttachOpen{ProcessId: p.GetId()}, client.Streams{Stdout: &staller, OnGap: staller.skip})
				joined <- err
			}()
		},
	})
	peak, _, sampleErr := sampler.peak()
	if err != nil {
		return errors.Join(err, second.Close())
	}
	if err := errors.Join(<-joined, second.Close(), sampleErr); err != nil {
		return err
	}
	var total uint64
	var longest int64
	if _, err := fmt.Sscanf(words.String(), writerReport, &total, &longest); err != nil {
		return fmt.Errorf("the writer ended as %v and said %q: %w", exit, words.String(), err)
	}
	if !stalled {
		return fmt.Errorf("the reader got %d bytes, too few to stall", staller.received)
	}
	missing := staller.missing(total)
	told := abs(int64(staller.received+missing) - int64(total))
	lost := abs(int64(follower.received) - int64(total))
	b.section("stream", fmt.Sprintf("a reader that reads nothing for %s beside one that follows", b.stall),
		figure("longest hold-up of the process", "s", time.Duration(longest).Seconds()).medianAtMost(holdUpBar),
		figure("longest hold-up of the follower", "s", follower.longest.Seconds()).medianAtMost(holdUpBar),
		figure("follower: bytes lost or wrong", "bytes", float64(lost)+float64(follower.wrong)).medianAtMost(0),
		figure("stalled reader: bytes neither received nor told as a gap, or wrong", "bytes", float64(told)+float64(staller.wrong)).medianAtMost(0),
		figure("stalled reader: told as gaps", "MiB", mebibytes(int64(missing))).noting("%d gaps", len(staller.gaps)),
		figure("written", "MB/s", float64(total)/1e6/seconds),
		figure("private memory, most", "MiB", mebibytes(peak)).medianAtMost(privateBar),
	)
	return nil
}

func abs(n int64) int64 { return max(n, -n) }

// wait ends early with ctx.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// measureAlone is a command that writes while nobody reads.
func (b *bench) measureAlone(ctx context.Context, a *agent) error {
	toNull := shellScript("null", `head -c 500M /dev/zero | tr '\0' x >/dev/null`)
	sampler := sampleMemory(ctx, a.pid())
	taken, err := interleave(ctx, b.share(40, 3),
		timed("bare, to /dev/null", func(ctx context.Context) error { return toNull.runBare(ctx, true) }),
		timed("floor: bare, read and thrown away", func(ctx context.Context) error { return flood.readBare(ctx, &writeCounter{}) }),
		timed("socket: exec_command, nobody reads", func(ctx context.Context) error { return flood.execBy(ctx, a.Client) }),
	)
	peak, _, sampleErr := sampler.peak()
	if err := errors.Join(err, sampleErr); err != nil {
		return err
	}
	b.section("stream", "500 MiB from head and tr with no reader", append(rowsOf("ms", taken, 1),
		figure("private memory, most", "MiB", mebibytes(peak)).medianAtMost(privateBar))...)
	return nil
}
