package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"
)

// maxListed is how many lines of a list stay in a record that is too long.
const maxListed = 8

// text is a string of a record that may be cut, and how much of it is kept.
type text struct {
	at    *string
	whole string
	keep  int
}

// halve keeps half of what is kept, at the boundary of a character, and says how
// many bytes are gone.
func (t *text) halve() {
	keep := t.keep / 2
	for keep > 0 && !utf8.RuneStart(t.whole[keep]) {
		keep--
	}
	t.keep = keep
	*t.at = fmt.Sprintf("%s… (%d bytes cut)", t.whole[:keep], len(t.whole)-keep)
}

// encodeCut shortens a list that is too long, then cuts the longest text by half,
// again and again, until the record fits.
func encodeCut(record Record, limit int) ([]byte, error) {
	texts := cuttable(&record)
	for {
		line, err := json.Marshal(record)
		if err != nil {
			return nil, fmt.Errorf("encoding a %s record: %w", record.Type, err)
		}
		if len(line) < limit {
			return append(line, '\n'), nil
		}
		longest := slices.MaxFunc(texts, func(a, b *text) int { return a.keep - b.keep })
		if longest.keep == 0 {
			return nil, fmt.Errorf("encoding a %s record: it does not fit into %d bytes", record.Type, limit)
		}
		longest.halve()
	}
}

// cuttable replaces the body of a record by a copy and returns the copy's texts.
func cuttable(record *Record) []*text {
	var texts []*text
	add := func(fields ...*string) {
		for _, at := range fields {
			texts = append(texts, &text{at: at, whole: *at, keep: len(*at)})
		}
	}
	switch {
	case record.Status != nil:
		body := *record.Status
		body.Sandbox.NotEnforced = shorten(body.Sandbox.NotEnforced)
		record.Status = &body
		add(&body.Policy.Message, &body.Policy.Reason, &body.AgentVersion, &body.Sandbox.Network)
		if body.Journal != nil {
			journal := *body.Journal
			body.Journal = &journal
			add(&journal.Problem)
		}
		for i := range body.Sandbox.NotEnforced {
			add(&body.Sandbox.NotEnforced[i])
		}
	case record.Started != nil:
		body := *record.Started
		record.Started = &body
		add(&body.Command, &body.Program)
	case record.Exited != nil:
		body := *record.Exited
		record.Exited = &body
		add(&body.Message, &body.Signal, &body.Reason)
	case record.Policy != nil:
		body := *record.Policy
		record.Policy = &body
		add(&body.Message, &body.Reason)
	case record.Refused != nil:
		body := *record.Refused
		record.Refused = &body
		add(&body.Message, &body.Reason)
	case record.Denied != nil:
		body := *record.Denied
		record.Denied = &body
		add(&body.Program, &body.Arguments, &body.Address)
	default:
		add(&record.Boot)
	}
	return texts
}

func shorten(lines []string) []string {
	if len(lines) <= maxListed {
		return slices.Clone(lines)
	}
	return append(slices.Clone(lines[:maxListed]), fmt.Sprintf("… (%d more)", len(lines)-maxListed))
}
