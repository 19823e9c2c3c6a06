package unifiedexec

import (
	"context"
	"time"
)

// Engine runs processes and keeps their table.
type Engine struct{}

// New makes an engine. It starts no process and, unless ReapOrphans asks for it, no goroutine.
func New(cfg Config) (*Engine, error) { return &Engine{}, nil }

// Configure replaces the settings for later commands.
func (e *Engine) Configure(s Settings) error { return nil }

// Start starts a command and returns it at once. The process stays in the table until its end
// and then as long as Limits say; it is never ended to make room. ctx bounds only the start.
func (e *Engine) Start(ctx context.Context, c Command) (*Process, error) { return nil, ErrClosed }

// ExecCommand starts a command and returns when it ended or the yield time is over. When ctx
// ends first, the process keeps running and the error is ctx's.
func (e *Engine) ExecCommand(ctx context.Context, r ExecCommandRequest) (Result, error) {
	return Result{}, ErrClosed
}

// WriteStdin feeds or polls a process.
func (e *Engine) WriteStdin(ctx context.Context, r WriteStdinRequest) (Result, error) {
	return Result{}, ErrClosed
}

// Process finds a process that runs or is still kept; else the error is an *UnknownProcessError.
func (e *Engine) Process(id int32) (*Process, error) { return nil, &UnknownProcessError{ID: id} }

// List tells the processes that run or are still kept, sorted by id.
func (e *Engine) List() []Info { return nil }

// StopAll stops every process that runs, and what ended ones left behind; the engine keeps working.
func (e *Engine) StopAll(ctx context.Context) error { return nil }

// Close stops everything: SIGTERM to all, the grace time, SIGKILL. Each process that still
// runs gets the record EngineStopped. Later calls return ErrClosed; outputs and records stay readable.
func (e *Engine) Close(ctx context.Context) error { return nil }

// Process is one command, on a terminal or on pipes.
type Process struct{}

// ID is the process's number in the table, 1000 to 99999.
func (p *Process) ID() int32 { return 0 }

// Info tells what the process is now (Descendants is left 0).
func (p *Process) Info() Info { return Info{} }

// Done is closed once the exit record is there: the process ended and what it wrote is in the log.
func (p *Process) Done() <-chan struct{} { return nil }

// Exit returns the exit record; false while there is none.
func (p *Process) Exit() (ExitRecord, bool) { return ExitRecord{}, false }

// NewReader makes a cursor into the output. Close it.
func (p *Process) NewReader(o ReaderOptions) *Reader { return nil }

// Write feeds the terminal or the open stdin. It blocks while the process does not read; ctx ends that.
func (p *Process) Write(ctx context.Context, data []byte) (int, error) { return 0, ErrStdinClosed }

// CloseStdin ends the input: closes the pipe, or types the terminal's end-of-file character.
func (p *Process) CloseStdin() error { return ErrStdinClosed }

// Resize changes the terminal's size.
func (p *Process) Resize(s Size) error { return ErrNotTerminal }

// Signal sends a signal (INT, SIGTERM...) to the process group; on a terminal to the
// foreground group too.
func (p *Process) Signal(name string) error { return nil }

// Stop ends the process and every descendant: SIGTERM, grace (negative means the engine's), SIGKILL. It
// returns the record and whether the process itself was still running. ctx ends the wait, not the stopping.
func (p *Process) Stop(ctx context.Context, grace time.Duration) (rec ExitRecord, wasRunning bool, err error) {
	return ExitRecord{}, false, nil
}

// StopFor is Stop with a reason for the record: ReasonStopped, ReasonPolicy and so on.
func (p *Process) StopFor(ctx context.Context, grace time.Duration, reason ExitReason, message string) (rec ExitRecord, wasRunning bool, err error) {
	return ExitRecord{}, false, nil
}

// Stream says where a byte was written.
type Stream int

// The streams.
const (
	StreamStdout Stream = iota + 1
	StreamStderr
	// StreamTTY is a terminal's one stream.
	StreamTTY
)

// ReadWait says how long a Reader waits for more.
type ReadWait int

// The waits.
const (
	// WaitExit ends with io.EOF once the exit record is there and everything up to it was read.
	WaitExit ReadWait = iota
	// WaitNone ends with io.EOF at the newest byte.
	WaitNone
	// WaitClosed ends with io.EOF once nobody, descendants included, holds the output any more.
	WaitClosed
)

// ReaderOptions say what a Reader reads.
type ReaderOptions struct {
	// From is the first offset to read.
	From uint64
	Wait ReadWait
	// Lossless slows the process down rather than lose a byte, while the reader keeps reading.
	Lossless bool
	// Text ends every chunk at the border of a UTF-8 character where the bytes are UTF-8.
	Text bool
	// MaxBytes bounds a chunk; 0 means 32 KiB.
	MaxBytes int
}

// Chunk is a piece of output or, when GapTo is not 0, a hole in it: the bytes from Offset to
// GapTo are not kept any more.
type Chunk struct {
	Offset uint64
	Stream Stream
	// Data is valid until the next call of Next.
	Data  []byte
	GapTo uint64
}

// Reader is a cursor into a process's output. It is for one goroutine.
type Reader struct{}

// Next waits for the next chunk. io.EOF is the end as ReaderOptions.Wait says.
func (r *Reader) Next(ctx context.Context) (Chunk, error) { return Chunk{}, nil }

// Close lets the process go.
func (r *Reader) Close() {}

func cutText(s string) string { return s }
