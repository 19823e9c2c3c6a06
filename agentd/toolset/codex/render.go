package codex

import (
	"fmt"
	"strings"

	"execsession.dev/agentd/wire"
)

// result is the structured form. The first six fields are the tool's own; the others are
// there only when they say something.
type result struct {
	ChunkID            string   `json:"chunk_id"`
	WallTimeSeconds    float64  `json:"wall_time_seconds"`
	ExitCode           *int32   `json:"exit_code,omitempty"`
	SessionID          *int32   `json:"session_id,omitempty"`
	OriginalTokenCount int64    `json:"original_token_count"`
	Output             string   `json:"output"`
	Notices            []string `json:"notices,omitempty"`
	Exit               *exit    `json:"exit,omitempty"`
	Denials            []Denial `json:"denials,omitempty"`
}

// exit says how a command ended that did not simply exit.
type exit struct {
	// Reason is signaled, timed_out, stopped, out_of_memory, policy or engine_stopped.
	Reason string `json:"reason"`
	// Signal is SIGKILL and so on, when a signal ended it.
	Signal  string `json:"signal,omitempty"`
	Message string `json:"message,omitempty"`
}

var exitReasons = map[wire.ExitReason]struct{ name, text string }{
	wire.ExitReason_EXIT_REASON_SIGNALED:       {"signaled", "a signal ended the command"},
	wire.ExitReason_EXIT_REASON_TIMED_OUT:      {"timed_out", "its timeout was over and the command was ended"},
	wire.ExitReason_EXIT_REASON_STOPPED:        {"stopped", "the command was stopped on request"},
	wire.ExitReason_EXIT_REASON_OUT_OF_MEMORY:  {"out_of_memory", "the kernel ended the command because memory ran out"},
	wire.ExitReason_EXIT_REASON_POLICY:         {"policy", "the policy ended the command"},
	wire.ExitReason_EXIT_REASON_ENGINE_STOPPED: {"engine_stopped", "the engine stopped while the command ran"},
}

// exitOf gives nil for a command that runs or that exited by itself.
func exitOf(record *wire.ExitRecord) *exit {
	reason, special := exitReasons[record.GetReason()]
	if !special {
		return nil
	}
	return &exit{Reason: reason.name, Signal: record.GetSignal(), Message: record.GetMessage()}
}

// RenderJSON gives the structured form: one JSON object without a line break.
func RenderJSON(r *wire.ToolResult) ([]byte, error) {
	return oneLine(result{
		ChunkID:            r.GetChunkId(),
		WallTimeSeconds:    r.GetWallTimeSeconds(),
		ExitCode:           r.ExitCode,
		SessionID:          r.SessionId,
		OriginalTokenCount: r.GetOriginalTokenCount(),
		Output:             r.GetOutput(),
		Notices:            r.GetNotices(),
		Exit:               exitOf(r.GetExit()),
		Denials:            Denials(r.GetDenials()),
	})
}

func oneLine(form any) ([]byte, error) {
	encoded, err := EncodeJSON(form, "")
	if err != nil {
		return nil, fmt.Errorf("encoding a result: %w", err)
	}
	return encoded, nil
}

// buffered is the structured form of a buffered run.
type buffered struct {
	WallTimeSeconds float64 `json:"wall_time_seconds"`
	ExitCode        int32   `json:"exit_code"`
	TimedOut        bool    `json:"timed_out"`
	Stdout          string  `json:"stdout"`
	Stderr          string  `json:"stderr"`
	// StdoutBytes and StderrBytes are what was written: more than is there was cut off.
	StdoutBytes      uint64   `json:"stdout_bytes"`
	StderrBytes      uint64   `json:"stderr_bytes"`
	AggregatedOutput string   `json:"aggregated_output"`
	Exit             *exit    `json:"exit,omitempty"`
	Denials          []Denial `json:"denials,omitempty"`
}

// RenderBufferedJSON gives the structured form of a buffered run. Bytes that are no UTF-8
// become U+FFFD.
func RenderBufferedJSON(r *wire.RunResponse) ([]byte, error) {
	return oneLine(buffered{
		WallTimeSeconds: r.GetWallTimeSeconds(), ExitCode: r.GetExit().GetExitCode(), TimedOut: timedOut(r),
		Stdout: string(r.GetStdout()), Stderr: string(r.GetStderr()),
		StdoutBytes: r.GetStdoutBytes(), StderrBytes: r.GetStderrBytes(),
		AggregatedOutput: string(r.GetAggregate()), Exit: exitOf(r.GetExit()), Denials: Denials(r.GetDenials()),
	})
}

func timedOut(r *wire.RunResponse) bool {
	return r.GetExit().GetReason() == wire.ExitReason_EXIT_REASON_TIMED_OUT
}

// RenderBufferedText gives the text of a buffered run that a model reads.
func RenderBufferedText(r *wire.RunResponse) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Exit code: %d\nWall time: %.1f seconds\n", r.GetExit().GetExitCode(), r.GetWallTimeSeconds())
	if written := r.GetStdoutBytes() + r.GetStderrBytes(); written > uint64(len(r.GetAggregate())) {
		fmt.Fprintf(&b, "Notice: the command wrote %d bytes, of which this is the beginning of each stream\n", written)
	}
	if reason, special := exitReasons[r.GetExit().GetReason()]; special && !timedOut(r) {
		fmt.Fprintf(&b, "Notice: %s\n", endText(reason.text, r.GetExit()))
	}
	for _, denial := range r.GetDenials() {
		fmt.Fprintf(&b, "Sandbox refused: %s\n", DenialText(denial))
	}
	b.WriteString("Output:\n")
	if timedOut(r) {
		fmt.Fprintf(&b, "command timed out: %s\n", Escape(r.GetExit().GetMessage()))
	}
	b.WriteString(strings.ToValidUTF8(string(r.GetAggregate()), "\uFFFD"))
	return b.String()
}

// RenderText gives the text that a model reads: a line for each thing that applies, then
// "Output:" and the output to the end. Notices, how a command ended that did not
// simply exit and what the sandbox refused it come before "Output:", because everything after it is the command's.
func RenderText(r *wire.ToolResult) string {
	var b strings.Builder
	line := func(format string, args ...any) { b.WriteString(Escape(fmt.Sprintf(format, args...)) + "\n") }
	if r.GetChunkId() != "" {
		line("Chunk ID: %s", r.GetChunkId())
	}
	line("Wall time: %.4f seconds", r.GetWallTimeSeconds())
	if r.ExitCode != nil {
		line("Process exited with code %d", r.GetExitCode())
	}
	if r.SessionId != nil {
		line("Process running with session ID %d", r.GetSessionId())
	}
	line("Original token count: %d", r.GetOriginalTokenCount())
	if reason, special := exitReasons[r.GetExit().GetReason()]; special {
		line("Notice: %s", endText(reason.text, r.GetExit()))
	}
	for _, notice := range r.GetNotices() {
		line("Notice: %s", notice)
	}
	for _, denial := range r.GetDenials() {
		line("Sandbox refused: %s", DenialText(denial))
	}
	line("Output:")
	b.WriteString(r.GetOutput())
	return b.String()
}

func endText(text string, record *wire.ExitRecord) string {
	if record.GetReason() == wire.ExitReason_EXIT_REASON_TIMED_OUT && record.GetMessage() != "" {
		// The message says which timeout it was, and so all that text does.
		text = "the command was ended"
	}
	if record.GetSignal() != "" {
		text += " (" + record.GetSignal() + ")"
	}
	if record.GetMessage() != "" {
		text += ": " + record.GetMessage()
	}
	return Escape(text)
}
