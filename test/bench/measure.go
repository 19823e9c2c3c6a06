package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// variant is one way to do a job. Its once does the job and returns one sample.
type variant struct {
	name string
	once func(ctx context.Context) (float64, error)
}

// series is a variant's samples in the order in which they were taken.
type series struct {
	name   string
	values []float64
}

// warmUps is how often each variant runs before the first sample counts: the first starts
// read programs from the disk and grow heaps, which no later one does.
const warmUps = 3

// interleave takes runs samples of each variant, one of each in turn.
func interleave(ctx context.Context, runs int, variants ...variant) ([]series, error) {
	return interleaveRows(ctx, runs, 1, variants...)
}

// interleaveRows takes rounds times so many samples of each variant, a row of each in turn. Every round draws an order of its own: in
// the wake of a variant that shares code with it another one finds its caches warm, and so none may always follow the same. No
// sample is left out.
func interleaveRows(ctx context.Context, rounds, inRow int, variants ...variant) ([]series, error) {
	taken := make([]series, len(variants))
	for i, v := range variants {
		taken[i].name = v.name
	}
	for round := -min(warmUps, rounds); round < rounds; round++ {
		for _, at := range rand.Perm(len(variants)) { //nolint:gosec // an order is no secret
			for range inRow {
				value, err := variants[at].once(ctx)
				if err != nil {
					return nil, fmt.Errorf("measuring %q: %w", variants[at].name, err)
				}
				if round >= 0 {
					taken[at].values = append(taken[at].values, value)
				}
			}
		}
	}
	return taken, nil
}

// timed is a variant whose sample is the time that f takes, in milliseconds.
func timed(name string, f func(ctx context.Context) error) variant {
	return variant{name, func(ctx context.Context) (float64, error) {
		began := time.Now()
		err := f(ctx)
		return milliseconds(time.Since(began)), err
	}}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile is the value below which a share q of the samples lies, between two of them in proportion.
func (s series) quantile(q float64) float64 {
	sorted := slices.Sorted(slices.Values(s.values))
	at := q * float64(len(sorted)-1)
	low := int(math.Floor(at))
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

func (s series) median() float64 { return s.quantile(0.5) }

// pairedRatio is the median of the ratios of the samples that were taken in the same round.
func pairedRatio(s, over series) float64 {
	var ratios series
	for i, value := range s.values {
		ratios.values = append(ratios.values, value/over.values[i])
	}
	return ratios.median()
}

// row is one line of the table.
type row struct {
	Name string  `json:"name"`
	Unit string  `json:"unit"`
	Runs int     `json:"runs"`
	Min  float64 `json:"min"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	// Ratio is the median over that of the row named Over; 0 without one.
	Ratio float64 `json:"ratio,omitempty"`
	Over  string  `json:"over,omitempty"`
	Bar   *bar    `json:"bar,omitempty"`
	// Note says what a reader would else have to guess.
	Note string `json:"note,omitempty"`
}

// rowOf makes a row of a series, over another series when there is one.
func rowOf(unit string, s series, over *series) row {
	r := row{
		Name: s.name, Unit: unit, Runs: len(s.values),
		Min: s.quantile(0), P50: s.median(), P90: s.quantile(0.9),
	}
	if over != nil {
		r.Ratio, r.Over = r.P50/over.median(), over.name
	}
	return r
}

// rowsOf makes the rows of what was interleaved, each over the one at floor.
func rowsOf(unit string, taken []series, floor int) []row {
	rows := make([]row, len(taken))
	for i := range taken {
		over := &taken[floor]
		if i == floor {
			over = nil
		}
		rows[i] = rowOf(unit, taken[i], over)
	}
	return rows
}

// figure is a row of a value that was seen once.
func figure(name, unit string, value float64) row {
	return row{Name: name, Unit: unit, Runs: 1, Min: value, P50: value, P90: value}
}

// bar is what is wanted of a row and what was seen.
type bar struct {
	Wanted string  `json:"wanted"`
	Seen   float64 `json:"seen"`
	Pass   bool    `json:"pass"`
	// Short is by how much the bar is missed, in the bar's unit.
	Short float64 `json:"short,omitempty"`
	unit  string
}

func atMost(limit, seen float64, unit string) *bar {
	return newBar("<=", limit, seen, seen-limit, unit)
}

func atLeast(limit, seen float64, unit string) *bar {
	return newBar(">=", limit, seen, limit-seen, unit)
}

func newBar(sign string, limit, seen, short float64, unit string) *bar {
	b := &bar{Wanted: fmt.Sprintf("%s %s%s", sign, number(limit), unit), Seen: seen, Pass: short <= 0, unit: unit}
	if !b.Pass {
		b.Short = short
	}
	return b
}

// ratioAtMost wants a row to cost no more than so many times its floor.
func (r row) ratioAtMost(limit float64) row {
	r.Bar = atMost(limit, r.Ratio, "x")
	return r
}

// ratioAtLeast wants a row to deliver at least so much of its floor.
func (r row) ratioAtLeast(limit float64) row {
	r.Bar = atLeast(limit, r.Ratio, "x")
	return r
}

// medianAtMost wants a row's median to be no more than so much.
func (r row) medianAtMost(limit float64) row {
	r.Bar = atMost(limit, r.P50, " "+r.Unit)
	return r
}

func (r row) noting(format string, args ...any) row {
	r.Note = fmt.Sprintf(format, args...)
	return r
}
