package wire

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// Before anything else agentd writes one line into every connection to its socket:
// whether it serves the peer. So a refused peer learns why, and `agentd connect` can
// say so before the first byte of gRPC. A client on an inherited pair (`agentd serve
// --stdio`) or behind `agentd connect` gets no such line.
const (
	verdictAccepted = "execsession-agentd/1 accepted\n"
	verdictRefused  = "execsession-agentd/1 refused: "
	// maxVerdict bounds the line, its newline included.
	maxVerdict = 512
)

// RefusedError says why agentd does not serve a peer.
type RefusedError struct {
	Reason string
}

// Error implements error.
func (e *RefusedError) Error() string { return "refused: " + e.Reason }

// WriteVerdict writes the line: acceptance when the reason is empty.
func WriteVerdict(w io.Writer, refusal string) error {
	line := verdictAccepted
	if refusal != "" {
		refusal = strings.ReplaceAll(refusal, "\n", " ")
		line = verdictRefused + refusal[:min(len(refusal), maxVerdict-len(verdictRefused)-1)] + "\n"
	}
	if _, err := io.WriteString(w, line); err != nil {
		return fmt.Errorf("writing the verdict: %w", err)
	}
	return nil
}

// ReadVerdict reads the line and not one byte more. The error is a *RefusedError when
// agentd does not serve this process.
func ReadVerdict(r io.Reader) error {
	line := make([]byte, 0, len(verdictAccepted))
	next := make([]byte, 1)
	for !bytes.HasSuffix(line, []byte("\n")) {
		if len(line) == maxVerdict {
			return fmt.Errorf("reading agentd's verdict: %q… is none", line[:64])
		}
		if _, err := io.ReadFull(r, next); err != nil {
			return fmt.Errorf("reading agentd's verdict: %w", err)
		}
		line = append(line, next[0])
	}
	if string(line) == verdictAccepted {
		return nil
	}
	reason, ok := strings.CutPrefix(string(line), verdictRefused)
	if !ok {
		return fmt.Errorf("reading agentd's verdict: %q is none", line)
	}
	return &RefusedError{Reason: strings.TrimSuffix(reason, "\n")}
}
