package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// section is a table about one question.
type section struct {
	Group string `json:"group"`
	Title string `json:"title"`
	Rows  []row  `json:"rows"`
}

// results are what a run leaves in its file.
type results struct {
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended"`
	Runs     int       `json:"runs"`
	Soak     int       `json:"soak"`
	Machine  *machine  `json:"machine"`
	Sections []section `json:"sections"`
	// Failed lists the groups that could not be measured, and why.
	Failed []string `json:"failed,omitempty"`
}

// shortfalls lists the bars that were missed.
func (r *results) shortfalls() []string {
	var missed []string
	for _, s := range r.Sections {
		for _, row := range s.Rows {
			if row.Bar != nil && !row.Bar.Pass {
				missed = append(missed, fmt.Sprintf("%s: %s: %s: wanted %s, seen %s%s, short by %s%s",
					s.Group, s.Title, row.Name, row.Bar.Wanted, number(row.Bar.Seen), row.Bar.unit, number(row.Bar.Short), row.Bar.unit))
			}
		}
	}
	return missed
}

// save writes the results as JSON.
func (r *results) save(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // the user's -o
		return fmt.Errorf("writing the results: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil { //nolint:gosec // the user's -o
		return fmt.Errorf("writing the results: %w", err)
	}
	return nil
}

var columns = []string{"", "runs", "min", "p50", "p90", "unit", "ratio", "wanted", "seen", ""}

// table writes a section as Markdown whose columns also line up for who reads it as text.
func (s section) table(w io.Writer) error {
	lines := [][]string{columns}
	var notes []string
	for _, r := range s.Rows {
		lines = append(lines, r.cells())
		if r.Note != "" {
			notes = append(notes, fmt.Sprintf("%s: %s", r.Name, r.Note))
		}
	}
	widths := make([]int, len(columns))
	for _, cells := range lines {
		for i, cell := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	_, err := fmt.Fprintf(w, "\n### %s: %s\n\n", s.Group, s.Title)
	for i, cells := range lines {
		_, writeErr := fmt.Fprintf(w, "| %s |\n", join(cells, widths, " "))
		err = errors.Join(err, writeErr)
		if i == 0 {
			_, writeErr := fmt.Fprintf(w, "|-%s-|\n", strings.ReplaceAll(join(make([]string, len(columns)), widths, "-"), " ", "-"))
			err = errors.Join(err, writeErr)
		}
	}
	for _, note := range notes {
		_, writeErr := fmt.Fprintf(w, "\n%s\n", note)
		err = errors.Join(err, writeErr)
	}
	return err
}

func join(cells []string, widths []int, fill string) string {
	padded := make([]string, len(cells))
	for i, cell := range cells {
		padded[i] = cell + strings.Repeat(fill, widths[i]-utf8.RuneCountInString(cell))
	}
	return strings.Join(padded, " | ")
}

func (r row) cells() []string {
	ratio, wanted, seen, verdict := "", "", "", ""
	if r.Ratio > 0 {
		ratio = number(r.Ratio) + "x"
	}
	if r.Bar != nil {
		wanted, seen, verdict = r.Bar.Wanted, number(r.Bar.Seen)+r.Bar.unit, "pass"
		if !r.Bar.Pass {
			verdict = fmt.Sprintf("short by %s%s", number(r.Bar.Short), r.Bar.unit)
		}
	}
	return []string{r.Name, strconv.Itoa(r.Runs), number(r.Min), number(r.P50), number(r.P90), r.Unit, ratio, wanted, seen, verdict}
}

// number writes three digits that say something; large values whole.
func number(v float64) string {
	switch size := math.Abs(v); {
	case v == math.Trunc(v) && size < 1e15, size >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case size >= 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case size >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
}
