package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ErrNotRecord is the error for a line that is no record: a container's log holds
// other lines too, and half ones after a cut.
var ErrNotRecord = errors.New("not a ledger record")

// Parse reads one line, with or without its newline. Fields and types that this
// package does not know are passed over, because the agent of a pod may be newer
// than its reader; a record of an unknown type has no body.
func Parse(line []byte) (Record, error) {
	if len(line) > MaxRecordBytes {
		return Record{}, fmt.Errorf("%w: %d bytes, at most %d are read", ErrNotRecord, len(line), MaxRecordBytes)
	}
	var record Record
	if err := json.Unmarshal(line, &record); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrNotRecord, err)
	}
	if record.Version != Version {
		return Record{}, fmt.Errorf("%w: version %d, want %d", ErrNotRecord, record.Version, Version)
	}
	if record.Boot == "" || record.Seq == 0 || record.Type == "" {
		return Record{}, fmt.Errorf("%w: boot, seq or type is missing", ErrNotRecord)
	}
	if !record.bodyFits() {
		return Record{}, fmt.Errorf("%w: the body does not belong to type %q", ErrNotRecord, record.Type)
	}
	return record, nil
}

// bodyFits says whether exactly the body of the record's type is there.
func (r Record) bodyFits() bool {
	bodies := map[Type]bool{
		TypeStatus:  r.Status != nil,
		TypeStarted: r.Started != nil,
		TypeExited:  r.Exited != nil,
		TypePolicy:  r.Policy != nil,
		TypeRefused: r.Refused != nil,
		TypeDenied:  r.Denied != nil,
	}
	for kind, present := range bodies {
		if present != (kind == r.Type) {
			return false
		}
	}
	return true
}
