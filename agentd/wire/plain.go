package wire

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Messages of ordinary commands and of terminals are read and written here field by field. Package proto takes
// 30 us for one when its tables are not in the processor's caches, as between two commands they are not: a tenth of what an
// agent adds to a short command. What is not ordinary, or not valid, is left to package proto.

// plainReader is a message that is read so.
type plainReader interface {
	proto.Message
	// readPlain reads a message into a new one; false leaves something half read.
	readPlain(message []byte) bool
}

// plainWriter is a message that is written so.
type plainWriter interface {
	proto.Message
	appendPlain(encoded []byte) (_ []byte, ok bool)
}

var (
	_, _ plainReader = (*ExecCommandRequest)(nil), (*ToolResult)(nil)
	_, _ plainWriter = (*ExecCommandRequest)(nil), (*ToolResult)(nil)
	_, _ plainReader = (*AttachRequest)(nil), (*Answer)(nil)
	_, _ plainWriter = (*AttachRequest)(nil), (*AttachResponse)(nil)
)

// unmarshal reads a message.
func unmarshal(message []byte, into proto.Message) error {
	if plain, ok := into.(plainReader); ok {
		if plain.readPlain(message) {
			return nil
		}
		proto.Reset(into)
	}
	return proto.Unmarshal(message, into)
}

// appendMessage writes a message; nil is empty.
func appendMessage(encoded []byte, message proto.Message) ([]byte, error) {
	if plain, ok := message.(plainWriter); ok {
		if written, ok := plain.appendPlain(encoded); ok {
			return written, nil
		}
	}
	if message == nil {
		return encoded, nil
	}
	return proto.MarshalOptions{}.MarshalAppend(encoded, message)
}

// field is one field of a message: a number, or bytes.
type field struct {
	id     protowire.Number
	number uint64
	bytes  []byte
	kind   protowire.Type
}

// fields gives take one field after the other, until it is false. It is false for a message that is malformed.
func fields(message []byte, take func(f field) bool) bool {
	for len(message) > 0 {
		var f field
		var n int
		f.id, f.kind, n = protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		switch f.kind {
		case protowire.VarintType:
			f.number, n = protowire.ConsumeVarint(message)
		case protowire.Fixed64Type:
			f.number, n = protowire.ConsumeFixed64(message)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(message)
		default:
			return false
		}
		if n < 0 || !take(f) {
			return false
		}
		message = message[n:]
	}
	return true
}

// key tells fields of the same id but of another kind apart.
func (f field) key() uint64 { return key(f.id, f.kind) }

func key(id protowire.Number, kind protowire.Type) uint64 { return protowire.EncodeTag(id, kind) }

// text is false for what is not UTF-8.
func (f field) text(into *string) bool {
	*into = string(f.bytes)
	return utf8.Valid(f.bytes)
}

func (r *ExecCommandRequest) readPlain(message []byte) bool {
	return fields(message, func(f field) bool {
		switch f.key() {
		case key(1, protowire.BytesType):
			if r.Command != nil {
				return false // They would have to be merged.
			}
			r.Command = &Command{}
			return r.Command.readPlain(f.bytes)
		case key(2, protowire.VarintType):
			r.YieldTimeMs = new(int64(f.number))
		case key(3, protowire.VarintType):
			r.MaxOutputTokens = new(int64(f.number))
		default:
			return false
		}
		return true
	})
}

func (r *ExecCommandRequest) appendPlain(encoded []byte) ([]byte, bool) {
	if len(r.unknownFields) > 0 || r.EnvironmentId != "" || r.SandboxPermissions != "" || r.Justification != "" || len(r.PrefixRule) > 0 || r.OneShot || r.Command == nil {
		return nil, false
	}
	command, ok := r.Command.appendPlain(make([]byte, 0, 64+len(r.Command.GetScript())))
	if !ok {
		return nil, false
	}
	encoded = appendBytes(encoded, 1, command)
	if r.YieldTimeMs != nil {
		encoded = appendNumber(encoded, 2, uint64(*r.YieldTimeMs))
	}
	if r.MaxOutputTokens != nil {
		encoded = appendNumber(encoded, 3, uint64(*r.MaxOutputTokens))
	}
	return encoded, true
}

func (c *Command) readPlain(message []byte) bool {
	return fields(message, func(f field) bool {
		switch f.key() {
		case key(1, protowire.BytesType):
			script := &Command_Script{}
			unset := c.Program == nil
			c.Program = script
			return unset && f.text(&script.Script)
		case key(2, protowire.BytesType):
			argv := &Argv{}
			unset := c.Program == nil
			c.Program = &Command_Argv{Argv: argv}
			return unset && argv.readPlain(f.bytes)
		case key(3, protowire.BytesType):
			return f.text(&c.Workdir)
		case key(5, protowire.VarintType):
			c.Tty = f.number != 0
		case key(10, protowire.BytesType):
			return f.text(&c.Shell)
		case key(11, protowire.VarintType):
			c.Login = new(f.number != 0)
		default:
			return false
		}
		return true
	})
}

func (c *Command) appendPlain(encoded []byte) ([]byte, bool) {
	if len(c.unknownFields) > 0 || len(c.Env) > 0 || c.Size != nil || c.Stdin != 0 || len(c.StdinData) > 0 || c.Timeout != nil || c.Sandbox != nil {
		return nil, false
	}
	ok := true
	switch program := c.Program.(type) {
	case *Command_Script:
		ok = utf8.ValidString(program.Script)
		encoded = appendBytes(encoded, 1, program.Script)
	case *Command_Argv:
		var args []byte
		ok = program.Argv == nil || len(program.Argv.unknownFields) == 0
		for _, arg := range program.Argv.GetArgs() {
			ok = ok && utf8.ValidString(arg)
			args = appendBytes(args, 1, arg)
		}
		encoded = appendBytes(encoded, 2, args)
	}
	encoded = appendText(encoded, 3, c.Workdir, &ok)
	if c.Tty {
		encoded = appendNumber(encoded, 5, 1)
	}
	encoded = appendText(encoded, 10, c.Shell, &ok)
	if c.Login != nil {
		encoded = appendNumber(encoded, 11, protowire.EncodeBool(*c.Login))
	}
	return encoded, ok
}

func (a *Argv) readPlain(message []byte) bool {
	return fields(message, func(f field) bool {
		a.Args = append(a.Args, string(f.bytes))
		return f.key() == key(1, protowire.BytesType) && utf8.Valid(f.bytes)
	})
}

func (t *ToolResult) readPlain(message []byte) bool {
	return fields(message, func(f field) bool {
		switch f.key() {
		case key(1, protowire.BytesType):
			return f.text(&t.ChunkId)
		case key(2, protowire.Fixed64Type):
			t.WallTimeSeconds = math.Float64frombits(f.number)
		case key(3, protowire.VarintType):
			t.ExitCode = new(int32(f.number))
		case key(4, protowire.VarintType):
			t.SessionId = new(int32(f.number))
		case key(5, protowire.VarintType):
			t.OriginalTokenCount = int64(f.number)
		case key(6, protowire.BytesType):
			return f.text(&t.Output)
		case key(8, protowire.BytesType):
			if t.Exit != nil {
				return false
			}
			t.Exit = &ExitRecord{}
			return t.Exit.readPlain(f.bytes)
		default:
			return false
		}
		return true
	})
}

func (t *ToolResult) appendPlain(encoded []byte) ([]byte, bool) {
	if len(t.unknownFields) > 0 || len(t.Notices) > 0 || len(t.Denials) > 0 {
		return nil, false
	}
	ok := true
	encoded = appendText(encoded, 1, t.ChunkId, &ok)
	if bits := math.Float64bits(t.WallTimeSeconds); bits != 0 {
		encoded = protowire.AppendFixed64(protowire.AppendTag(encoded, 2, protowire.Fixed64Type), bits)
	}
	if t.ExitCode != nil {
		encoded = appendNumber(encoded, 3, uint64(*t.ExitCode))
	}
	if t.SessionId != nil {
		encoded = appendNumber(encoded, 4, uint64(*t.SessionId))
	}
	encoded = appendUnlessZero(encoded, 5, uint64(t.OriginalTokenCount))
	encoded = appendText(encoded, 6, t.Output, &ok)
	if t.Exit != nil {
		exit, plain := t.Exit.appendPlain(make([]byte, 0, 128))
		encoded, ok = appendBytes(encoded, 8, exit), ok && plain
	}
	return encoded, ok
}

func (e *ExitRecord) readPlain(message []byte) bool {
	return fields(message, func(f field) bool {
		switch f.key() {
		case key(1, protowire.VarintType):
			e.Reason = ExitReason(f.number)
		case key(2, protowire.VarintType):
			e.ExitCode = int32(f.number)
		case key(3, protowire.BytesType):
			return f.text(&e.Signal)
		case key(4, protowire.BytesType):
			return e.StartTime == nil && readTime(f.bytes, func(s int64, n int32) { e.StartTime = &timestamppb.Timestamp{Seconds: s, Nanos: n} })
		case key(5, protowire.BytesType):
			return e.EndTime == nil && readTime(f.bytes, func(s int64, n int32) { e.EndTime = &timestamppb.Timestamp{Seconds: s, Nanos: n} })
		case key(6, protowire.BytesType):
			return f.text(&e.Message)
		case key(7, protowire.BytesType):
			return e.UserTime == nil && readTime(f.bytes, func(s int64, n int32) { e.UserTime = &durationpb.Duration{Seconds: s, Nanos: n} })
		case key(8, protowire.BytesType):
			return e.SystemTime == nil && readTime(f.bytes, func(s int64, n int32) { e.SystemTime = &durationpb.Duration{Seconds: s, Nanos: n} })
		case key(9, protowire.VarintType):
			e.MaxRssBytes = int64(f.number)
		default:
			return false
		}
		return true
	})
}

func (e *ExitRecord) appendPlain(encoded []byte) ([]byte, bool) {
	ok := len(e.unknownFields) == 0
	encoded = appendUnlessZero(encoded, 1, uint64(e.Reason))
	encoded = appendUnlessZero(encoded, 2, uint64(e.ExitCode))
	encoded = appendText(encoded, 3, e.Signal, &ok)
	if e.StartTime != nil {
		encoded = appendTime(encoded, 4, e.StartTime)
	}
	if e.EndTime != nil {
		encoded = appendTime(encoded, 5, e.EndTime)
	}
	encoded = appendText(encoded, 6, e.Message, &ok)
	if e.UserTime != nil {
		encoded = appendTime(encoded, 7, e.UserTime)
	}
	if e.SystemTime != nil {
		encoded = appendTime(encoded, 8, e.SystemTime)
	}
	return appendUnlessZero(encoded, 9, uint64(e.MaxRssBytes)), ok
}

// readTime reads a Timestamp or a Duration: they have the same fields.
func readTime(message []byte, set func(seconds int64, nanos int32)) bool {
	var seconds int64
	var nanos int32
	ok := fields(message, func(f field) bool {
		switch f.key() {
		case key(1, protowire.VarintType):
			seconds = int64(f.number)
		case key(2, protowire.VarintType):
			nanos = int32(f.number)
		default:
			return false
		}
		return true
	})
	set(seconds, nanos)
	return ok
}

func appendTime(encoded []byte, id protowire.Number, t interface {
	GetSeconds() int64
	GetNanos() int32
}) []byte {
	inner := appendUnlessZero(make([]byte, 0, 24), 1, uint64(t.GetSeconds()))
	return appendBytes(encoded, id, appendUnlessZero(inner, 2, uint64(t.GetNanos())))
}

func appendNumber(encoded []byte, id protowire.Number, number uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(encoded, id, protowire.VarintType), number)
}

func appendUnlessZero(encoded []byte, id protowire.Number, number uint64) []byte {
	if number == 0 {
		return encoded
	}
	return appendNumber(encoded, id, number)
}

func appendBytes[Text string | []byte](encoded []byte, id protowire.Number, value Text) []byte {
	encoded = protowire.AppendVarint(protowire.AppendTag(encoded, id, protowire.BytesType), uint64(len(value)))
	return append(encoded, value...)
}

// appendText clears ok for what is not UTF-8.
func appendText(encoded []byte, id protowire.Number, text string, ok *bool) []byte {
	if text == "" {
		return encoded
	}
	*ok = *ok && utf8.ValidString(text)
	return appendBytes(encoded, id, text)
}
