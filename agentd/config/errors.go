package config

import (
	"errors"
	"fmt"
)

// What may be wrong with a document. Every error of this package is one of these
// (see errors.Is), wrapped with what was found.
var (
	// ErrMalformed: it is not the JSON that it must be.
	ErrMalformed = errors.New("malformed document")
	// ErrForged: no known key signed it, or a signature does not fit.
	ErrForged = errors.New("document is not signed by the operator")
	// ErrVersion: it is of a version that this program does not read.
	ErrVersion = errors.New("unknown document version")
	// ErrKind: it is another kind of document than the one asked for.
	ErrKind = errors.New("wrong kind of document")
	// ErrInvalid: it is authentic, but a value in it is not allowed.
	ErrInvalid = errors.New("invalid document")
	// ErrForeign: it is authentic, but of another session, namespace or profile.
	ErrForeign = errors.New("document is of another session")
	// ErrOutdated: it is authentic, but older than one that was seen already.
	ErrOutdated = errors.New("document is outdated")
	// ErrOutOfSync: profile and session document are authentic, but the session
	// document pins another profile document.
	ErrOutOfSync = errors.New("profile document is not the one that the session document pins")
)

// FieldError names a value that is not allowed. It is an ErrInvalid.
type FieldError struct {
	// Field is the path of the value, as in policy.sandbox.network.mode.
	Field string
	// Value is the value as found.
	Value any
	// Reason says what the field takes.
	Reason string
}

// Error implements error.
func (e *FieldError) Error() string {
	if s, ok := e.Value.(string); ok {
		return fmt.Sprintf("%s: value %q: %s", e.Field, s, e.Reason)
	}
	return fmt.Sprintf("%s: value %v: %s", e.Field, e.Value, e.Reason)
}

// Unwrap makes every FieldError an ErrInvalid.
func (e *FieldError) Unwrap() error { return ErrInvalid }
