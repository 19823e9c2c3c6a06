package agentd

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"execsession.dev/agentd/ledger"
	"execsession.dev/agentd/wire"
	"execsession.dev/sandbox"
	"execsession.dev/unifiedexec"
)

// commandFrom checks what only the wire can get wrong; the engine checks the rest.
func commandFrom(c *wire.Command) (unifiedexec.Command, error) {
	if c == nil {
		return unifiedexec.Command{}, fieldError("command", "is missing")
	}
	command := unifiedexec.Command{
		Workdir: c.GetWorkdir(), Env: c.GetEnv(), TTY: c.GetTty(),
		StdinData: c.GetStdinData(), Shell: c.GetShell(), Login: c.Login,
	}
	switch program := c.GetProgram().(type) {
	case *wire.Command_Script:
		if program.Script == "" {
			return unifiedexec.Command{}, fieldError("command.script", "is empty")
		}
		command.Script = program.Script
	case *wire.Command_Argv:
		if len(program.Argv.GetArgs()) == 0 {
			return unifiedexec.Command{}, fieldError("command.argv", "is empty")
		}
		command.Argv = program.Argv.GetArgs()
	default:
		return unifiedexec.Command{}, fieldError("command", "has neither script nor argv")
	}
	var err error
	if command.Size, err = sizeFrom("command.size", c.GetSize()); err != nil {
		return unifiedexec.Command{}, err
	}
	if command.Stdin, err = stdinFrom(c.GetStdin()); err != nil {
		return unifiedexec.Command{}, err
	}
	if command.Timeout, err = durationFrom("command.timeout", c.GetTimeout(), 0); err != nil {
		return unifiedexec.Command{}, err
	}
	return command, nil
}

func sizeFrom(field string, size *wire.WindowSize) (unifiedexec.Size, error) {
	if size == nil {
		return unifiedexec.Size{}, nil
	}
	rows, columns := size.GetRows(), size.GetColumns()
	if rows == 0 || columns == 0 || rows > math.MaxUint16 || columns > math.MaxUint16 {
		return unifiedexec.Size{}, fieldError(field, "%d rows and %d columns, want 1 to %d of each", rows, columns, math.MaxUint16)
	}
	return unifiedexec.Size{Rows: uint16(rows), Columns: uint16(columns)}, nil
}

func stdinFrom(mode wire.StdinMode) (unifiedexec.StdinMode, error) {
	switch mode {
	case wire.StdinMode_STDIN_MODE_UNSPECIFIED:
		return unifiedexec.StdinNull, nil
	case wire.StdinMode_STDIN_MODE_OPEN:
		return unifiedexec.StdinOpen, nil
	case wire.StdinMode_STDIN_MODE_DATA:
		return unifiedexec.StdinData, nil
	}
	return 0, fieldError("command.stdin", "%d is no mode that this agent knows", mode)
}

// durationFrom returns unset for a duration that is not given.
func durationFrom(field string, d *durationpb.Duration, unset time.Duration) (time.Duration, error) {
	if d == nil {
		return unset, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, fieldError(field, "%v", err)
	}
	if d.AsDuration() < 0 {
		return 0, fieldError(field, "%s is negative", d.AsDuration())
	}
	return d.AsDuration(), nil
}

var exitReasons = map[unifiedexec.ExitReason]wire.ExitReason{
	unifiedexec.ReasonExited:        wire.ExitReason_EXIT_REASON_EXITED,
	unifiedexec.ReasonSignaled:      wire.ExitReason_EXIT_REASON_SIGNALED,
	unifiedexec.ReasonTimedOut:      wire.ExitReason_EXIT_REASON_TIMED_OUT,
	unifiedexec.ReasonStopped:       wire.ExitReason_EXIT_REASON_STOPPED,
	unifiedexec.ReasonOutOfMemory:   wire.ExitReason_EXIT_REASON_OUT_OF_MEMORY,
	unifiedexec.ReasonPolicy:        wire.ExitReason_EXIT_REASON_POLICY,
	unifiedexec.ReasonEngineStopped: wire.ExitReason_EXIT_REASON_ENGINE_STOPPED,
}

func exitTo(record *unifiedexec.ExitRecord) *wire.ExitRecord {
	if record == nil {
		return nil
	}
	return &wire.ExitRecord{
		Reason:    exitReasons[record.Reason],
		ExitCode:  int32(record.Code),
		Signal:    record.Signal,
		StartTime: timestamppb.New(record.StartTime),
		EndTime:   timestamppb.New(record.EndTime),
		Message:   valid(record.Message),
		UserTime:  durationpb.New(record.UserTime), SystemTime: durationpb.New(record.SystemTime),
		MaxRssBytes: record.MaxRSS,
	}
}

var processStates = map[unifiedexec.State]wire.ProcessState{
	unifiedexec.StateRunning: wire.ProcessState_PROCESS_STATE_RUNNING,
	unifiedexec.StateExited:  wire.ProcessState_PROCESS_STATE_EXITED,
}

// maxShownCommand keeps a list of processes within a message; a script may have megabytes.
const maxShownCommand = 4096

func processTo(info unifiedexec.Info, refused []sandbox.Denial) *wire.Process {
	return &wire.Process{
		Id: info.ID, State: processStates[info.State],
		Command: shown(info.Command), Workdir: valid(info.Workdir), Tty: info.TTY,
		StartTime:   timestamppb.New(info.StartTime),
		Pid:         int32(info.PID),
		OutputBytes: info.OutputBytes, DroppedBytes: info.DroppedBytes,
		Exit:        exitTo(info.Exit),
		Descendants: int32(info.Descendants),
		StdinOpen:   info.StdinOpen, OutputOpen: info.OutputOpen,
		SpilledBytes: info.SpilledBytes, OutputLost: info.OutputLost,
		Denials: denialsTo(refused),
	}
}

func denialsTo(refused []sandbox.Denial) []*wire.Denial {
	if len(refused) == 0 {
		return nil
	}
	denials := make([]*wire.Denial, len(refused))
	for i, d := range refused {
		denials[i] = &wire.Denial{
			Source: ledger.SourceEnforced, Rule: d.Rule, Syscall: d.Syscall, Arguments: d.Arguments, Address: d.Address,
			Errno: unix.ErrnoName(d.Errno), Program: valid(d.Program), Pid: int32(d.PID), Count: d.Count, Mixed: d.Omitted,
			FirstTime: timestamppb.New(d.First), LastTime: timestamppb.New(d.Last),
		}
	}
	return denials
}

func narrowingFrom(n *wire.Narrowing) sandbox.Narrowing {
	return sandbox.Narrowing{Filesystem: sandbox.FilesystemMode(n.GetFilesystem()), Network: sandbox.NetworkMode(n.GetNetwork())}
}

func shown(command string) string {
	command = valid(command)
	if len(command) <= maxShownCommand {
		return command
	}
	return fmt.Sprintf("%s… (%d bytes cut)", valid(command[:maxShownCommand]), len(command)-maxShownCommand)
}

// valid is what the protocol's strings must be: UTF-8.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func resultTo(r unifiedexec.Result, refused []sandbox.Denial) *wire.ToolResult {
	result := &wire.ToolResult{
		ChunkId:            r.ChunkID,
		WallTimeSeconds:    r.WallTime.Seconds(),
		OriginalTokenCount: r.OriginalTokenCount,
		Output:             valid(r.Output),
		Notices:            r.Notices,
		Exit:               exitTo(r.Exit),
		Denials:            denialsTo(refused),
	}
	if r.Exit != nil {
		result.ExitCode = new(result.Exit.GetExitCode())
	} else {
		result.SessionId = new(r.ProcessID)
	}
	return result
}

const (
	defaultStreamBytes = 1 << 20
	// maxRunBytes keeps an answer of Run, with three pieces of so many bytes, within a message.
	maxRunBytes = 4 << 20
)

// runBytes checks how much a caller of Run wants to have.
func runBytes(field string, given *int64, unset int) (int, error) {
	if given == nil {
		return unset, nil
	}
	if *given < 1 || *given > maxRunBytes {
		return 0, fieldError(field, "%d is not from 1 to %d", *given, maxRunBytes)
	}
	return int(*given), nil
}

// runTo makes the answer, with both streams in one of at most so many bytes; 0 means without.
func runTo(r unifiedexec.RunResult, aggregate int, refused []sandbox.Denial) *wire.RunResponse {
	response := &wire.RunResponse{
		Exit: exitTo(&r.Exit), Stdout: r.Stdout, Stderr: r.Stderr, StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes,
		WallTimeSeconds: r.WallTime.Seconds(), Denials: denialsTo(refused),
	}
	if aggregate > 0 {
		response.Aggregate = r.Aggregate(aggregate)
	}
	return response
}

var streams = map[unifiedexec.Stream]wire.Stream{
	unifiedexec.StreamStdout: wire.Stream_STREAM_STDOUT,
	unifiedexec.StreamStderr: wire.Stream_STREAM_STDERR,
	unifiedexec.StreamTTY:    wire.Stream_STREAM_TTY,
}

func chunkTo(chunk unifiedexec.Chunk) *wire.AttachResponse {
	if chunk.GapTo != 0 {
		return &wire.AttachResponse{Message: &wire.AttachResponse_Gap{Gap: &wire.Gap{From: chunk.Offset, To: chunk.GapTo}}}
	}
	return &wire.AttachResponse{Message: &wire.AttachResponse_Output{Output: &wire.Output{
		Offset: chunk.Offset, Stream: streams[chunk.Stream], Data: chunk.Data,
	}}}
}

// programName is what the ledger says about a command that it does not show.
func programName(info unifiedexec.Info) string { return valid(filepath.Base(info.Program)) }
