package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestQuantile(t *testing.T) {
	cases := map[string]struct {
		values []float64
		q      float64
		want   float64
	}{
		"Least":       {[]float64{3, 1, 2}, 0, 1},
		"Most":        {[]float64{3, 1, 2}, 1, 3},
		"MedianOdd":   {[]float64{9, 1, 2}, 0.5, 2},
		"MedianEven":  {[]float64{4, 1, 2, 3}, 0.5, 2.5},
		"InBetween":   {[]float64{0, 10}, 0.9, 9},
		"OnlyOne":     {[]float64{7}, 0.9, 7},
		"StaysUnsort": {[]float64{5, 4, 3, 2, 1}, 0.25, 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before := append([]float64(nil), tc.values...)
			if got := (series{values: tc.values}).quantile(tc.q); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			if diff := cmp.Diff(before, tc.values); diff != "" {
				t.Errorf("the samples lost their order:\n%s", diff)
			}
		})
	}
}

func TestInterleave(t *testing.T) {
	const rounds = 200
	var order []string
	of := func(name string) variant {
		return variant{name, func(context.Context) (float64, error) {
			order = append(order, name)
			return float64(len(order)), nil
		}}
	}
	taken, err := interleave(t.Context(), rounds, of("A"), of("B"), of("C"))
	if err != nil {
		t.Fatal(err)
	}
	if len(order) != 3*(warmUps+rounds) {
		t.Fatalf("%d samples were taken, want %d rounds of 3", len(order), warmUps+rounds)
	}
	followed := map[string]int{}
	for round := range slices.Chunk(order, 3) {
		if sorted := slices.Sorted(slices.Values(round)); !slices.Equal(sorted, []string{"A", "B", "C"}) {
			t.Errorf("a round is %v, want one sample of each variant", round)
		}
		followed[round[0]+round[1]]++
		followed[round[1]+round[2]]++
	}
	if len(followed) != 6 {
		t.Errorf("some variant never ran in the wake of another: %v", followed)
	}
	want := []series{{name: "A"}, {name: "B"}, {name: "C"}}
	for i, name := range order[3*warmUps:] {
		of := &want[strings.Index("ABC", name)]
		of.values = append(of.values, float64(3*warmUps+i+1))
	}
	if diff := cmp.Diff(want, taken, cmp.AllowUnexported(series{})); diff != "" {
		t.Errorf("the samples (-want +got):\n%s", diff)
	}
}

func TestInterleaveStopsAtAnError(t *testing.T) {
	broken := errors.New("broken")
	_, err := interleave(t.Context(), 3, variant{"A", func(context.Context) (float64, error) { return 0, broken }})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), `"A"`) {
		t.Errorf("the error is %v, want one that names the variant", err)
	}
}

// A drift that doubles everything from round to round leaves the pairs alone.
func TestPairedRatio(t *testing.T) {
	over := series{"floor", []float64{1, 2, 4, 8, 16}}
	s := series{"product", []float64{1.25, 2.5, 5, 10, 400}}
	if got := pairedRatio(s, over); got != 1.25 {
		t.Errorf("got %v, want 1.25", got)
	}
}

func TestBars(t *testing.T) {
	over := series{"floor", []float64{2}}
	costs, delivers := rowOf("ms", series{"a", []float64{3}}, &over), rowOf("1/s", series{"b", []float64{1.5}}, &over)
	cases := map[string]struct {
		row    row
		wanted string
		pass   bool
		short  float64
	}{
		"RatioMet":       {costs.ratioAtMost(1.5), "<= 1.50x", true, 0},
		"RatioMissed":    {costs.ratioAtMost(1.25), "<= 1.25x", false, 0.25},
		"DeliveryMet":    {delivers.ratioAtLeast(0.7), ">= 0.700x", true, 0},
		"DeliveryMissed": {delivers.ratioAtLeast(1), ">= 1x", false, 0.25},
		"MedianMet":      {costs.medianAtMost(3), "<= 3 ms", true, 0},
		"MedianMissed":   {costs.medianAtMost(2.5), "<= 2.50 ms", false, 0.5},
		"NoneAtAll":      {figure("lost", "bytes", 1).medianAtMost(0), "<= 0 bytes", false, 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bar := tc.row.Bar
			if bar.Wanted != tc.wanted || bar.Pass != tc.pass || bar.Short != tc.short {
				t.Errorf("got %+v, want %q, %v and short by %v", bar, tc.wanted, tc.pass, tc.short)
			}
			r := results{Sections: []section{{Group: "g", Title: "t", Rows: []row{tc.row}}}}
			if missed := r.shortfalls(); (len(missed) == 0) != tc.pass {
				t.Errorf("the shortfalls are %q", missed)
			}
		})
	}
}

func TestTableAndFile(t *testing.T) {
	over := series{"floor", []float64{2}}
	s := section{Group: "engine", Title: "a job", Rows: []row{
		rowOf("ms", over, nil),
		rowOf("ms", series{"product", []float64{3}}, &over).ratioAtMost(1.25).noting("why"),
	}}
	var table strings.Builder
	if err := s.table(&table); err != nil {
		t.Fatal(err)
	}
	want := `
### engine: a job

|         | runs | min | p50 | p90 | unit | ratio | wanted   | seen  |                 |
|---------|------|-----|-----|-----|------|-------|----------|-------|-----------------|
| floor   | 1    | 2   | 2   | 2   | ms   |       |          |       |                 |
| product | 1    | 3   | 3   | 3   | ms   | 1.50x | <= 1.25x | 1.50x | short by 0.250x |

product: why
`
	if diff := cmp.Diff(want, table.String()); diff != "" {
		t.Errorf("the table (-want +got):\n%s", diff)
	}

	path := filepath.Join(t.TempDir(), "new", "results.json")
	if err := (&results{Machine: &machine{Cores: 2}, Sections: []section{s}}).save(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var read results
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	if got := read.Sections[0].Rows[1]; got.Bar.Pass || got.Bar.Short != 0.25 || got.Over != "floor" {
		t.Errorf("the file says %+v", got)
	}
}

// numbers is what writeNumbers writes from an offset on.
func numbers(offset, n uint64) []byte {
	out := make([]byte, n)
	for i := range out {
		var word [wordBytes]byte
		at := offset + uint64(i)
		binary.LittleEndian.PutUint64(word[:], at/wordBytes)
		out[i] = word[at%wordBytes]
	}
	return out
}

func TestNumberReader(t *testing.T) {
	write := func(offset, n uint64) func(*numberReader) {
		return func(r *numberReader) { _, _ = r.Write(numbers(offset, n)) }
	}
	skip := func(from, to uint64) func(*numberReader) { return func(r *numberReader) { r.skip(from, to) } }
	cases := map[string]struct {
		steps             []func(*numberReader)
		received, missing uint64
		wrong             int
	}{
		"Whole":        {[]func(*numberReader){write(0, 100), write(100, 33), write(133, 3)}, 136, 0, 0},
		"ToldGap":      {[]func(*numberReader){write(0, 10), skip(10, 77), write(77, 20)}, 30, 67, 0},
		"UntoldGap":    {[]func(*numberReader){write(0, 10), write(18, 20)}, 30, 0, 1},
		"WrongGap":     {[]func(*numberReader){write(0, 10), skip(11, 77), write(77, 20)}, 30, 66, 1},
		"Twice":        {[]func(*numberReader){write(0, 64), write(0, 64)}, 128, 0, 1},
		"BeyondTheEnd": {[]func(*numberReader){write(0, 10), skip(10, 300)}, 10, 190, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var r numberReader
			for _, step := range tc.steps {
				step(&r)
			}
			if missing := r.missing(200); r.received != tc.received || missing != tc.missing || r.wrong != tc.wrong {
				t.Errorf("received %d, missing %d, wrong %d; want %d, %d, %d", r.received, missing, r.wrong, tc.received, tc.missing, tc.wrong)
			}
		})
	}
}

func TestOnlyWriter(t *testing.T) {
	var w onlyWriter
	for _, piece := range []string{"xxx", "xyxz", ""} {
		_, _ = w.Write([]byte(piece))
	}
	if w.bytes != 7 || w.wrong != 2 {
		t.Errorf("%d bytes and %d wrong, want 7 and 2", w.bytes, w.wrong)
	}
}

// The figures of a process that is known: this one.
func TestProcessFigures(t *testing.T) {
	pid := os.Getpid()
	before, err := processorUseOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	const busy = 200 * time.Millisecond
	for {
		now, err := processorUseOf(pid)
		if err != nil {
			t.Fatal(err)
		}
		// The scheduler's clock alone misses threads that ended meanwhile, ticks alone are coarse.
		if now.scheduled-before.scheduled >= busy && now.ticks-before.ticks >= busy/2 {
			break
		}
	}
	m, err := memoryOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	if m.private <= 0 || m.private > m.resident {
		t.Errorf("%d bytes private of %d", m.private, m.resident)
	}
	held, err := holdingsOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	more, err := holdingsOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	if more.descriptors != held.descriptors+1 || held.threads < 1 || held.children != 0 {
		t.Errorf("held %+v, and %+v with one more file", held, more)
	}
}
