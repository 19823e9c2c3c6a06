package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"execsession.dev/agentd/strictjson"
)

// maxBytes bounds a document; a ConfigMap holds 1 MiB at most.
const maxBytes = 1 << 20

// decodeStrict decodes one JSON value that is not too large, as package strictjson does.
func decodeStrict(data []byte, into any) error {
	if len(data) > maxBytes {
		return fmt.Errorf("%w: %d bytes, at most %d are read", ErrMalformed, len(data), maxBytes)
	}
	if err := strictjson.Decode(data, into); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}

// refuseMissing wants every field in data that the value decoded from it has when it is written. encoding/json leaves a field at its zero value
// that is missing or null, and false may be the wider of two.
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
		return fmt.Errorf("%w: field %q is missing; null is no value", ErrMalformed, field)
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
