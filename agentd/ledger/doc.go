// Package ledger holds the records that agentd writes to its standard output, one
// JSON object a line: what started, what ended and how, and status records with the
// whole current state. A record has at most MaxRecordBytes and is written with one
// write, so that a log collector never sees half of one unless it cuts lines itself.
package ledger
