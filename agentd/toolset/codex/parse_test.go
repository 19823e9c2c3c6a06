package codex

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"execsession.dev/agentd/client"
	"execsession.dev/agentd/wire"
	"execsession.dev/sandbox"
)

func TestParseExecCommand(t *testing.T) {
	script := func(s string) *wire.Command { return &wire.Command{Program: &wire.Command_Script{Script: s}} }
	everything := script("make")
	everything.Workdir, everything.Tty, everything.Shell, everything.Login = "src", true, "bash", new(false)
	everything.Stdin, everything.StdinData = wire.StdinMode_STDIN_MODE_DATA, []byte("in\n")
	everything.Env = map[string]string{"A": "1", "B": ""}
	everything.Timeout = durationpb.New(90 * time.Second)
	cases := map[string]struct {
		reason    string
		arguments string
		want      *wire.ExecCommandRequest
	}{
		"OnlyCmd": {
			reason: "Everything else has a default, which is the agent's.", arguments: `{"cmd":"echo hi"}`,
			want: &wire.ExecCommandRequest{Command: script("echo hi")},
		},
		"Everything": {
			reason: "Each field arrives where it belongs.",
			arguments: `{"cmd":"make","workdir":"src","tty":true,"yield_time_ms":250,"max_output_tokens":0,"shell":"bash","login":false,
				"environment_id":"e","sandbox_permissions":"require_escalated","justification":"why","prefix_rule":["make","all"],
				"stdin":"in\n","env":{"A":"1","B":""},"timeout_ms":90000}`,
			want: &wire.ExecCommandRequest{
				Command: everything, YieldTimeMs: proto.Int64(250), MaxOutputTokens: proto.Int64(0), EnvironmentId: "e",
				SandboxPermissions: "require_escalated", Justification: "why", PrefixRule: []string{"make", "all"},
			},
		},
		"IntegralDecimal": {
			reason: "Some models write whole numbers with a point.", arguments: `{"cmd":"x","yield_time_ms":250.0,"max_output_tokens":1.5e3}`,
			want: &wire.ExecCommandRequest{Command: script("x"), YieldTimeMs: proto.Int64(250), MaxOutputTokens: proto.Int64(1500)},
		},
		"Null": {
			reason: "Null is how some models leave a field out.", arguments: ` {"cmd":"x","tty":null,"yield_time_ms":null,"env":null} `,
			want: &wire.ExecCommandRequest{Command: script("x")},
		},
		"Sandbox": {
			reason: "Less than the profile allows, of one kind or both.", arguments: `{"cmd":"x","sandbox":{"filesystem":"ReadOnly","network":null},"sandbox_permissions":"use_default"}`,
			want: &wire.ExecCommandRequest{SandboxPermissions: "use_default", Command: &wire.Command{
				Program: &wire.Command_Script{Script: "x"}, Sandbox: &wire.Narrowing{Filesystem: "ReadOnly"},
			}},
		},
		"StdinOpen": {
			reason: "Pipes whose input stays open for write_stdin.", arguments: `{"cmd":"cat","stdin_open":true}`,
			want: &wire.ExecCommandRequest{Command: &wire.Command{
				Program: &wire.Command_Script{Script: "cat"}, Stdin: wire.StdinMode_STDIN_MODE_OPEN,
			}},
		},
		"StdinNotOpen": {
			reason: "Spelling the default out changes nothing.", arguments: `{"cmd":"cat","stdin_open":false,"stdin":"x"}`,
			want: &wire.ExecCommandRequest{Command: &wire.Command{
				Program: &wire.Command_Script{Script: "cat"}, Stdin: wire.StdinMode_STDIN_MODE_DATA, StdinData: []byte("x"),
			}},
		},
		"EmptyStdin": {
			reason: "An empty input is an input that ends at once.", arguments: `{"cmd":"cat","stdin":""}`,
			want: &wire.ExecCommandRequest{Command: &wire.Command{
				Program: &wire.Command_Script{Script: "cat"}, Stdin: wire.StdinMode_STDIN_MODE_DATA, StdinData: []byte{},
			}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseExecCommand([]byte(tc.arguments))
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("%s: (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	exec := func(data []byte) error { _, err := ParseExecCommand(data); return err }
	stdin := func(data []byte) error { _, err := ParseWriteStdin(data); return err }
	oneShot := func(data []byte) error { _, err := ParseOneShot(data); return err }
	run := func(data []byte) error { _, err := ParseBuffered(data); return err }
	cases := map[string]struct {
		parse     func([]byte) error
		arguments string
		want      ArgumentError
	}{
		"Empty":          {exec, ``, ArgumentError{Problem: "malformed JSON: it ends too early"}},
		"Truncated":      {exec, `{"cmd":"x"`, ArgumentError{Problem: "malformed JSON: it ends too early"}},
		"NoObject":       {exec, `["cmd"]`, ArgumentError{Value: `["cmd"]`, Problem: "must be an object"}},
		"Trailing":       {exec, `{"cmd":"x"} {"cmd":"y"}`, ArgumentError{Problem: `there is something after the object: {"cmd":"y"}`}},
		"TrailingJunk":   {exec, `{"cmd":"x"}}`, ArgumentError{Problem: "there is something after the object: }"}},
		"NoUTF8":         {exec, "{\"cmd\":\"\xff\"}", ArgumentError{Field: "cmd", Value: "\"\xff\"", Problem: "byte 1, 0xff, is no valid UTF-8"}},
		"NoUTF8Name":     {exec, "{\"cmd\":\"x\",\"env\":{\"\xff\":\"1\"}}", ArgumentError{Field: "env", Problem: "malformed JSON: byte 2, 0xff, is no valid UTF-8"}},
		"NoUTF8After":    {exec, "{\"cmd\":\"x\"}\xff", ArgumentError{Problem: "malformed JSON: byte 11, 0xff, is no valid UTF-8"}},
		"HalfACharacter": {exec, `{"cmd":"\ud83d"}`, ArgumentError{Field: "cmd", Value: `"\ud83d"`, Problem: `byte 1, \ud83d, is half a character: a surrogate without its other half`}},
		"HalfInEnv":      {exec, `{"cmd":"x","env":{"A":"\ud83d"}}`, ArgumentError{Field: "env.A", Value: `"\ud83d"`, Problem: `byte 1, \ud83d, is half a character: a surrogate without its other half`}},
		"HalfInRule":     {exec, `{"cmd":"x","prefix_rule":["\ud83d"]}`, ArgumentError{Field: "prefix_rule", Value: `["\ud83d"]`, Problem: `byte 2, \ud83d, is half a character: a surrogate without its other half`}},
		"HalfInChars":    {stdin, `{"session_id":1,"chars":"\ud83d"}`, ArgumentError{Field: "chars", Value: `"\ud83d"`, Problem: `byte 1, \ud83d, is half a character: a surrogate without its other half`}},
		"HalfAName":      {exec, `{"cmd":"x","env":{"\udc00":"1"}}`, ArgumentError{Field: "env", Problem: `malformed JSON: byte 2, \udc00, is half a character: a surrogate without its other half`}},
		"NoCmd":          {exec, `{}`, ArgumentError{Field: "cmd", Problem: "must be given"}},
		"NullCmd":        {exec, `{"cmd":null}`, ArgumentError{Field: "cmd", Value: "null", Problem: "must be given"}},
		"EmptyCmd":       {exec, `{"cmd":""}`, ArgumentError{Field: "cmd", Problem: "is empty: there is nothing to run"}},
		"CmdArray":       {exec, `{"cmd":["a"]}`, ArgumentError{Field: "cmd", Value: `["a"]`, Problem: "must be a string"}},
		"Twice":          {exec, `{"cmd":"x","cmd":"y"}`, ArgumentError{Field: "cmd", Value: `"y"`, Problem: "given twice"}},
		"Case":           {exec, `{"cmd":"x","TTY":true}`, ArgumentError{Field: "TTY", Value: "true"}},
		"TTYString":      {exec, `{"cmd":"x","tty":"true"}`, ArgumentError{Field: "tty", Value: `"true"`, Problem: "must be true or false"}},
		"TTYNumber":      {exec, `{"cmd":"x","tty":1}`, ArgumentError{Field: "tty", Value: "1", Problem: "must be true or false"}},
		"Fraction":       {exec, `{"cmd":"x","yield_time_ms":250.5}`, ArgumentError{Field: "yield_time_ms", Value: "250.5", Problem: "must be a whole number"}},
		"TinyFraction":   {exec, `{"cmd":"x","yield_time_ms":1e-400}`, ArgumentError{Field: "yield_time_ms", Value: "1e-400", Problem: "must be a whole number"}},
		"NumberString":   {exec, `{"cmd":"x","yield_time_ms":"250"}`, ArgumentError{Field: "yield_time_ms", Value: `"250"`, Problem: "must be a number"}},
		"Negative":       {exec, `{"cmd":"x","max_output_tokens":-1}`, ArgumentError{Field: "max_output_tokens", Value: "-1", Problem: "must be at least 0"}},
		"TooLarge":       {exec, `{"cmd":"x","yield_time_ms":1e30}`, ArgumentError{Field: "yield_time_ms", Value: "1e30", Problem: "is too large"}},
		"HugeExponent":   {exec, `{"cmd":"x","yield_time_ms":1e99999999999}`, ArgumentError{Field: "yield_time_ms", Value: "1e99999999999", Problem: "is too large"}},
		"TimeoutZero":    {exec, `{"cmd":"x","timeout_ms":0}`, ArgumentError{Field: "timeout_ms", Value: "0", Problem: "must be at least 1"}},
		"TimeoutLarge":   {exec, `{"cmd":"x","timeout_ms":9223372036854775807}`, ArgumentError{Field: "timeout_ms", Value: "9223372036854775807", Problem: "must be at most 9223372036854"}},
		"Permissions":    {exec, `{"cmd":"x","sandbox_permissions":"root"}`, ArgumentError{Field: "sandbox_permissions", Value: `"root"`, Problem: "must be one of use_default, require_escalated, with_additional_permissions"}},
		"Justification":  {exec, `{"cmd":"x","justification":"why"}`, ArgumentError{Field: "justification", Problem: "needs sandbox_permissions: set it to require_escalated, or leave the justification out"}},
		"PrefixString":   {exec, `{"cmd":"x","prefix_rule":"make"}`, ArgumentError{Field: "prefix_rule", Value: `"make"`, Problem: "must be an array of strings"}},
		"PrefixItem":     {exec, `{"cmd":"x","prefix_rule":["make",2]}`, ArgumentError{Field: "prefix_rule[1]", Value: "2", Problem: "must be a string"}},
		"EnvItem":        {exec, `{"cmd":"x","env":{"A":1}}`, ArgumentError{Field: "env.A", Value: "1", Problem: "must be a string"}},
		"EnvNull":        {exec, `{"cmd":"x","env":{"A":null}}`, ArgumentError{Field: "env.A", Value: "null", Problem: "must be a string"}},
		"EnvTwice":       {exec, `{"cmd":"x","env":{"A":"1","A":"2"}}`, ArgumentError{Field: "env.A", Value: `"2"`, Problem: "given twice"}},
		"EnvArray":       {exec, `{"cmd":"x","env":["A=1"]}`, ArgumentError{Field: "env", Value: `["A=1"]`, Problem: "must be an object of strings"}},
		"NoSession":      {stdin, `{"chars":"x"}`, ArgumentError{Field: "session_id", Problem: "must be given"}},
		"SessionString":  {stdin, `{"session_id":"1000"}`, ArgumentError{Field: "session_id", Value: `"1000"`, Problem: "must be a number"}},
		"SessionLarge":   {stdin, `{"session_id":2147483648}`, ArgumentError{Field: "session_id", Value: "2147483648", Problem: "must be at most 2147483647"}},
		"StdinLongS":     {stdin, "{\"\u017fession_id\":1000}", ArgumentError{Field: "\u017fession_id", Value: "1000", Problem: "unknown field; the fields are chars, close_stdin, max_output_tokens, session_id, yield_time_ms"}},
		"StdinUnknown":   {stdin, `{"session_id":1000,"cmd":"x"}`, ArgumentError{Field: "cmd", Value: `"x"`, Problem: "unknown field; the fields are chars, close_stdin, max_output_tokens, session_id, yield_time_ms"}},
		"CloseString":    {stdin, `{"session_id":1000,"close_stdin":"yes"}`, ArgumentError{Field: "close_stdin", Value: `"yes"`, Problem: "must be true or false"}},
		"OpenAndGiven":   {exec, `{"cmd":"x","stdin":"","stdin_open":true}`, ArgumentError{Field: "stdin_open", Problem: "contradicts stdin, which is closed after its text: leave one of them out"}},
		"SandboxMode":    {exec, `{"cmd":"x","sandbox":{"filesystem":"readonly"}}`, ArgumentError{Field: "sandbox.filesystem", Value: `"readonly"`, Problem: "must be one of ReadOnly, WorkspaceWrite, FullAccess"}},
		"SandboxNetwork": {oneShot, `{"cmd":"x","sandbox":{"network":false}}`, ArgumentError{Field: "sandbox.network", Value: "false", Problem: "must be a string"}},
		"SandboxField":   {run, `{"cmd":"x","sandbox":{"process":"None"}}`, ArgumentError{Field: "sandbox.process", Value: `"None"`, Problem: "unknown field; the fields are filesystem, network"}},
		"SandboxTwice":   {exec, `{"cmd":"x","sandbox":{"network":"None","network":"Open"}}`, ArgumentError{Field: "sandbox.network", Value: `"Open"`, Problem: "given twice"}},
		"SandboxString":  {exec, `{"cmd":"x","sandbox":"ReadOnly"}`, ArgumentError{Field: "sandbox", Value: `"ReadOnly"`, Problem: "must be an object"}},
		"LessAndMore":    {exec, `{"cmd":"x","sandbox":{},"sandbox_permissions":"require_escalated"}`, ArgumentError{Field: "sandbox", Problem: "asks for less than the profile allows, and sandbox_permissions require_escalated for more: leave one of them out"}},
		"OneShotTTY":     {oneShot, `{"cmd":"x","tty":true}`, ArgumentError{Field: "tty", Value: "true"}},
		"OneShotYield":   {oneShot, `{"cmd":"x","yield_time_ms":250}`, ArgumentError{Field: "yield_time_ms", Value: "250"}},
		"OneShotOpen":    {oneShot, `{"cmd":"x","stdin_open":true}`, ArgumentError{Field: "stdin_open", Value: "true"}},
		"OneShotNothing": {oneShot, `{"timeout_ms":5}`, ArgumentError{Field: "cmd", Problem: "must be given"}},
		"RunTokens":      {run, `{"cmd":"x","max_output_tokens":5}`, ArgumentError{Field: "max_output_tokens", Value: "5"}},
		"RunNoBytes":     {run, `{"cmd":"x","stream_bytes":0}`, ArgumentError{Field: "stream_bytes", Value: "0", Problem: "must be at least 1"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := tc.parse([]byte(tc.arguments))
			var got *ArgumentError
			if !errors.As(err, &got) {
				t.Fatalf("%s: got %v, want an *ArgumentError", tc.arguments, err)
			}
			if tc.want.Problem == "" {
				tc.want.Problem = got.Problem
			}
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("%s: (-want +got):\n%s", tc.arguments, diff)
			}
			if got.Field != "" && !strings.Contains(err.Error(), got.Field) || !strings.Contains(err.Error(), got.Value) {
				t.Errorf("%q names neither field nor value", err)
			}
		})
	}
}

func TestParseWriteStdin(t *testing.T) {
	got, err := ParseWriteStdin([]byte(`{"session_id":1000.0,"chars":"\u0003","yield_time_ms":5000,"max_output_tokens":10,"close_stdin":true}`))
	if err != nil {
		t.Fatalf("ParseWriteStdin: %v", err)
	}
	want := &wire.WriteStdinRequest{SessionId: 1000, Chars: "\x03", YieldTimeMs: proto.Int64(5000), MaxOutputTokens: proto.Int64(10), CloseStdin: true}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseToTheEnd(t *testing.T) {
	const common = `"cmd":"make","workdir":"src","shell":"bash","login":true,"environment_id":"e","sandbox_permissions":"use_default",
		"justification":"why","prefix_rule":["make"],"stdin":"in","env":{"A":"1"},"timeout_ms":1500`
	command := &wire.Command{
		Program: &wire.Command_Script{Script: "make"}, Workdir: "src", Shell: "bash", Login: new(true),
		Stdin: wire.StdinMode_STDIN_MODE_DATA, StdinData: []byte("in"), Env: map[string]string{"A": "1"}, Timeout: durationpb.New(1500 * time.Millisecond),
	}
	oneShot, err := ParseOneShot([]byte(`{` + common + `,"max_output_tokens":7}`))
	if err != nil {
		t.Fatalf("ParseOneShot: %v", err)
	}
	if diff := cmp.Diff(&wire.ExecCommandRequest{
		Command: command, OneShot: true, MaxOutputTokens: proto.Int64(7), EnvironmentId: "e", SandboxPermissions: "use_default",
		Justification: "why", PrefixRule: []string{"make"},
	}, oneShot, protocmp.Transform()); diff != "" {
		t.Errorf("ParseOneShot (-want +got):\n%s", diff)
	}
	run, err := ParseBuffered([]byte(`{` + common + `,"stream_bytes":100,"user_shell":true}`))
	if err != nil {
		t.Fatalf("ParseBuffered: %v", err)
	}
	if diff := cmp.Diff(&wire.RunRequest{
		Command: command, StreamBytes: proto.Int64(100), AggregateBytes: proto.Int64(1 << 20), UserShell: true, EnvironmentId: "e",
		SandboxPermissions: "use_default", Justification: "why", PrefixRule: []string{"make"},
	}, run, protocmp.Transform()); diff != "" {
		t.Errorf("ParseBuffered (-want +got):\n%s", diff)
	}
}

// The agent speaks of the wire's fields, and the caller of the tool's.
func TestExplain(t *testing.T) {
	plain := errors.New("no route")
	cases := map[string]struct {
		reason string
		err    error
		want   string
	}{
		"Renamed": {"the wire has another name", &client.Error{Field: "script", Message: "script: holds a NUL byte"}, `field "cmd": holds a NUL byte`},
		"Same":    {"most names are the same", &client.Error{Field: "env.LD_PRELOAD", Message: "env.LD_PRELOAD: not allowed"}, `field "env.LD_PRELOAD": not allowed`},
		"Within":  {"a field of a field", &client.Error{Field: "command.sandbox.network", Message: "command.sandbox.network: no mode"}, `field "sandbox.network": no mode`},
		"NoField": {"it is about no field", &client.Error{Message: "refused"}, "refused"},
		"Other":   {"it is none of the agent's", plain, "no route"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Explain(fmt.Errorf("calling: %w", tc.err)); got.Error() != tc.want && got.Error() != "calling: "+tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
	if Explain(nil) != nil {
		t.Error("no error became one")
	}
}

// The modes are written down here, because clients need nothing of the sandbox: they are the profile's.
func TestModesAreTheProfiles(t *testing.T) {
	for mode := range sandboxModes(t) {
		arguments := fmt.Sprintf(`{"cmd":"x","sandbox":{%s}}`, mode)
		if _, err := ParseExecCommand([]byte(arguments)); err != nil {
			t.Errorf("%s: %v", arguments, err)
		}
	}
	if n := len(filesystemModes) + len(networkModes); n != len(sandboxModes(t)) {
		t.Errorf("%d modes are taken, the profile has %d", n, len(sandboxModes(t)))
	}
}

func sandboxModes(t *testing.T) map[string]bool {
	t.Helper()
	modes := map[string]bool{}
	for _, mode := range []sandbox.FilesystemMode{sandbox.ReadOnly, sandbox.WorkspaceWrite, sandbox.FullAccess} {
		modes[fmt.Sprintf(`"filesystem":%q`, mode)] = true
	}
	for _, mode := range []sandbox.NetworkMode{sandbox.NoNetwork, sandbox.LoopbackNetwork, sandbox.ProxyNetwork, sandbox.OpenNetwork} {
		modes[fmt.Sprintf(`"network":%q`, mode)] = true
	}
	return modes
}

func TestErrorsAreShort(t *testing.T) {
	_, err := ParseExecCommand([]byte(`{"cmd":"x","tty":"` + strings.Repeat("é", 100_000) + `"}`))
	if err == nil || len(err.Error()) > 200 {
		t.Errorf("got an error of %d bytes, want a short one", len(err.Error()))
	}
}

func FuzzParseExecCommand(f *testing.F) {
	for _, seed := range []string{
		`{"cmd":"x"}`, `{"cmd":"x","yield_time_ms":250.0,"env":{"A":"1"},"prefix_rule":["a"]}`, `{"cmd":"x","cmd":"y"}`, `{"cmd":"\ud800"}`,
		`{"cmd":"x","timeout_ms":1e3,"stdin_open":true}`, `{"cmd":`, `null`, `{"cmd":"x"}{`, `{"cmd":"x","login":null}`,
		`{"cmd":"x","sandbox":{"filesystem":"ReadOnly","network":null}}`, `{"cmd":"x","sandbox":{"network":"None","network":"Open"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		request, err := ParseExecCommand(data)
		var refused *ArgumentError
		if err != nil && (!errors.As(err, &refused) || request != nil) {
			t.Fatalf("error %T with request %v", err, request)
		}
		if err != nil {
			return
		}
		// What this package accepts, encoding/json understands the same way.
		var plain struct {
			Cmd     string
			Workdir string
			TTY     bool
			Env     map[string]string
		}
		if err := json.Unmarshal(data, &plain); err != nil {
			t.Fatalf("accepted what encoding/json refuses: %v", err)
		}
		command := request.GetCommand()
		if plain.Cmd != command.GetScript() || plain.Workdir != command.GetWorkdir() || plain.TTY != command.GetTty() || len(plain.Env) != len(command.GetEnv()) {
			t.Errorf("understood %v, encoding/json %+v", command, plain)
		}
	})
}

func FuzzWholeNumber(f *testing.F) {
	for _, seed := range []string{"0", "-0.0", "9007199254740993", "1.50e1", "-9223372036854775808", "9223372036854775808", "100e-2", "0e99999999999", "0.001e3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) || strings.Trim(text, "-0123456789.eE+") != "" || text == "" || len(text) > 40 {
			t.Skip("not a JSON number")
		}
		got, problem := wholeNumber(text)
		if at := strings.IndexAny(text, "eE"); at >= 0 && len(text)-at > 5 {
			return // math/big would write it out
		}
		want, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatalf("math/big does not read %q", text)
		}
		if exact := want.IsInt() && want.Num().IsInt64(); exact != (problem == "") {
			t.Fatalf("%q: problem %q, math/big says %v", text, problem, want)
		}
		if problem == "" && want.Num().Int64() != got {
			t.Errorf("%q: got %d, want %v", text, got, want)
		}
	})
}
