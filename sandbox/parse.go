package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ParsePolicy reads a policy from JSON strictly: a field that is unknown or that
// stands there twice, trailing data and values that are not acceptable are errors.
func ParsePolicy(data []byte) (Policy, error) {
	if err := checkNoDuplicates(data); err != nil {
		return Policy{}, fmt.Errorf("parsing policy: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var policy Policy
	if err := decoder.Decode(&policy); err != nil {
		return Policy{}, fmt.Errorf("parsing policy: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Policy{}, errors.New("parsing policy: data follows the document")
	}
	if err := policy.Validate(); err != nil {
		return Policy{}, fmt.Errorf("checking policy: %w", err)
	}
	return policy, nil
}

// checkNoDuplicates walks one JSON value. encoding/json lets the last of two equal
// keys win, so that a reviewer could read the narrow one and the machine the wide one.
func checkNoDuplicates(data []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	return walkValue(decoder, "")
}

func walkValue(decoder *json.Decoder, path string) error {
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	switch token {
	case json.Delim('{'):
		return walkObject(decoder, path)
	case json.Delim('['):
		for decoder.More() {
			if err := walkValue(decoder, path); err != nil {
				return err
			}
		}
		_, err = decoder.Token()
	}
	return err
}

func walkObject(decoder *json.Decoder, path string) error {
	seen := make(map[string]bool)
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string)
		field := key
		if path != "" {
			field = path + "." + key
		}
		if seen[key] {
			return &FieldError{Field: field, Value: key, Reason: "the field stands there twice"}
		}
		seen[key] = true
		if err := walkValue(decoder, field); err != nil {
			return err
		}
	}
	_, err := decoder.Token()
	return err
}
