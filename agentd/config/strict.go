package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// maxBytes bounds a document; a ConfigMap holds 1 MiB at most.
const maxBytes = 1 << 20

// decodeStrict decodes one JSON value and refuses unknown fields, fields that are
// given twice and anything that follows.
func decodeStrict(data []byte, into any) error {
	if len(data) > maxBytes {
		return fmt.Errorf("%w: %d bytes, at most %d are read", ErrMalformed, len(data), maxBytes)
	}
	if err := refuseDuplicates(json.NewDecoder(bytes.NewReader(data))); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows the document", ErrMalformed)
	}
	return nil
}

// refuseMissing wants every field in data that the value decoded from it has when it is written. encoding/json leaves a field at its zero value
// that is missing or null, and false may be the wider of two; and it takes a name in any case, which others do not.
func refuseMissing(data []byte, value any) error {
	written, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	var given, whole any
	if err := errors.Join(json.Unmarshal(data, &given), json.Unmarshal(written, &whole)); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if field := missing("", given, whole); field != "" {
		return fmt.Errorf("%w: field %q is missing; names count with their case, and null is no value", ErrMalformed, field)
	}
	return nil
}

// missing is the path of the first field that is in whole and not in given; an empty object may be left out.
func missing(at string, given, whole any) string {
	switch w := whole.(type) {
	case map[string]any:
		g, _ := given.(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(w)) {
			if field := missing(strings.TrimPrefix(at+"."+name, "."), g[name], w[name]); field != "" {
				return field
			}
		}
	case []any:
		g, _ := given.([]any)
		for i := range w {
			if i >= len(g) {
				return at
			}
			if field := missing(fmt.Sprintf("%s[%d]", at, i), g[i], w[i]); field != "" {
				return field
			}
		}
	default:
		if given == nil && whole != nil {
			return at
		}
	}
	return ""
}

// refuseDuplicates reads one value and refuses an object with two equal fields.
// encoding/json would let the last one win, so that two readers could disagree about
// what a document says; it also matches names without regard to case, so does this.
func refuseDuplicates(decoder *json.Decoder) error {
	type object struct {
		names map[string]bool // nil for an array
		name  bool            // whether a name comes next
	}
	var open []object
	for {
		token, err := decoder.Token()
		if err != nil {
			return err
		}
		top := len(open) - 1
		switch t := token.(type) {
		case json.Delim:
			switch t {
			case '{':
				open = append(open, object{names: map[string]bool{}, name: true})
				continue
			case '[':
				open = append(open, object{})
				continue
			}
			open = open[:top]
		case string:
			if top >= 0 && open[top].name {
				folded := strings.ToLower(t)
				if open[top].names[folded] {
					return fmt.Errorf("field %q is given twice", t)
				}
				open[top].names[folded] = true
				open[top].name = false
				continue
			}
		}
		if len(open) == 0 {
			return nil
		}
		// A value ended: in an object the next token is a name again.
		last := &open[len(open)-1]
		last.name = last.names != nil
	}
}
