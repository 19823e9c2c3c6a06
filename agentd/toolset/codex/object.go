package codex

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"execsession.dev/agentd/strictjson"
)

// ArgumentError says what is wrong with a tool's arguments.
type ArgumentError struct {
	// Field is the field that is wrong, or empty when the arguments as a whole are.
	Field string
	// Value is the field's JSON, cut to a readable length, or empty when it has none.
	Value   string
	Problem string
}

func (e *ArgumentError) Error() string {
	switch {
	case e.Field == "" && e.Value == "":
		return "arguments: " + e.Problem
	case e.Field == "":
		return fmt.Sprintf("arguments: value %s: %s", e.Value, e.Problem)
	case e.Value == "":
		return fmt.Sprintf("field %q: %s", e.Field, e.Problem)
	}
	return fmt.Sprintf("field %q: value %s: %s", e.Field, e.Value, e.Problem)
}

// maxShown is how much of a wrong value an error shows.
const maxShown = 80

func wrong(field string, value json.RawMessage, problem string, args ...any) error {
	return &ArgumentError{Field: field, Value: shorten(string(value)), Problem: fmt.Sprintf(problem, args...)}
}

func shorten(s string) string {
	if len(s) <= maxShown {
		return s
	}
	cut := maxShown
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return fmt.Sprintf("%s... (%d bytes)", s[:cut], len(s))
}

// setter takes a field's value, which is never null.
type setter func(field string, value json.RawMessage) error

// parseObject gives each field of the one object in data to its setter. Fields in
// required must be there.
func parseObject(data []byte, fields map[string]setter, required ...string) error {
	return parseFields("", data, fields, required...)
}

// parseFields is parseObject for the value of field parent.
func parseFields(parent string, data []byte, fields map[string]setter, required ...string) error {
	seen, err := eachField(parent, data, func(name string, value json.RawMessage) error {
		set, known := fields[name]
		if !known {
			return wrong(qualified(parent, name), value, "unknown field; the fields are %s", strings.Join(sortedNames(fields), ", "))
		}
		if string(value) != "null" {
			return set(qualified(parent, name), value)
		}
		if slices.Contains(required, name) {
			return wrong(qualified(parent, name), value, "must be given")
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range required {
		if !seen[name] {
			return &ArgumentError{Field: qualified(parent, name), Problem: "must be given"}
		}
	}
	return nil
}

func sortedNames(fields map[string]setter) []string {
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// eachField walks the one object in data, which is the value of field parent, and refuses
// what encoding/json would let pass: names given twice, text that it would change and
// anything after the object. It tells which names it saw.
func eachField(parent string, data []byte, visit func(name string, value json.RawMessage) error) (map[string]bool, error) {
	malformed := func(err error) error {
		return &ArgumentError{Field: parent, Problem: "malformed JSON: " + describe(err)}
	}
	// Which field it is in is looked at below; what is in no value is told by its place.
	changed := strictjson.CheckText(data)
	decoder := json.NewDecoder(bytes.NewReader(data))
	opening, err := decoder.Token()
	if err != nil {
		return nil, malformed(err)
	}
	if opening != json.Delim('{') {
		return nil, &ArgumentError{Field: parent, Value: shorten(strings.TrimSpace(string(data))), Problem: "must be an object"}
	}
	seen := map[string]bool{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, malformed(err)
		}
		name, _ := token.(string)
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, malformed(err)
		}
		if changed != nil && value[0] != '{' {
			if err := strictjson.CheckText(value); err != nil {
				return nil, wrong(qualified(parent, name), value, "%v", err)
			}
		}
		if seen[name] {
			return nil, wrong(qualified(parent, name), value, "given twice")
		}
		seen[name] = true
		if err := visit(name, value); err != nil {
			return nil, err
		}
	}
	if _, err := decoder.Token(); err != nil {
		return nil, malformed(err)
	}
	if changed != nil {
		return nil, malformed(changed)
	}
	if rest := strings.TrimSpace(string(data[decoder.InputOffset():])); rest != "" {
		return nil, &ArgumentError{Field: parent, Problem: "there is something after the object: " + shorten(rest)}
	}
	return seen, nil
}

func describe(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "it ends too early"
	}
	return err.Error()
}

func qualified(parent, name string) string {
	if parent == "" {
		return name
	}
	return parent + "." + name
}
