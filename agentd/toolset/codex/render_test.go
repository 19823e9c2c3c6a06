package codex

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"execsession.dev/agentd/wire"
)

func TestRender(t *testing.T) {
	cases := map[string]struct {
		reason   string
		result   *wire.ToolResult
		wantJSON string
		wantText string
	}{
		"Exited": {
			reason: "A plain exit is told by its code alone.",
			result: &wire.ToolResult{
				ChunkId: "00ab12", WallTimeSeconds: 0.05, ExitCode: proto.Int32(0), OriginalTokenCount: 2, Output: "<hi>\n",
				Exit: &wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_EXITED},
			},
			wantJSON: `{"chunk_id":"00ab12","wall_time_seconds":0.05,"exit_code":0,"original_token_count":2,"output":"<hi>\n"}`,
			wantText: "Chunk ID: 00ab12\nWall time: 0.0500 seconds\nProcess exited with code 0\nOriginal token count: 2\nOutput:\n<hi>\n",
		},
		"Running": {
			reason: "A command that runs has a session id and no code; notices come before the output.",
			result: &wire.ToolResult{
				ChunkId: "00ab13", WallTimeSeconds: 0.25, SessionId: proto.Int32(1000), Notices: []string{"yield_time_ms 1 was raised to 250"},
			},
			wantJSON: `{"chunk_id":"00ab13","wall_time_seconds":0.25,"session_id":1000,"original_token_count":0,"output":"","notices":["yield_time_ms 1 was raised to 250"]}`,
			wantText: "Chunk ID: 00ab13\nWall time: 0.2500 seconds\nProcess running with session ID 1000\nOriginal token count: 0\nNotice: yield_time_ms 1 was raised to 250\nOutput:\n",
		},
		"TimedOut": {
			reason: "Why a command was ended is not in its code, and is told once.",
			result: &wire.ToolResult{
				ChunkId: "00ab14", WallTimeSeconds: 1, ExitCode: proto.Int32(124), Output: "x",
				Exit: &wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_TIMED_OUT, ExitCode: 124, Signal: "SIGKILL", Message: "its timeout of 1s was over"},
			},
			wantJSON: `{"chunk_id":"00ab14","wall_time_seconds":1,"exit_code":124,"original_token_count":0,"output":"x","exit":{"reason":"timed_out","signal":"SIGKILL","message":"its timeout of 1s was over"}}`,
			wantText: "Chunk ID: 00ab14\nWall time: 1.0000 seconds\nProcess exited with code 124\nOriginal token count: 0\nNotice: the command was ended (SIGKILL): its timeout of 1s was over\nOutput:\nx",
		},
		"Denied": {
			reason: "What was refused comes last before the output, a line for each kind; a program's name cannot add one.",
			result: &wire.ToolResult{
				ChunkId: "00ab15", WallTimeSeconds: 0.5, ExitCode: proto.Int32(1), Notices: []string{"n"}, Output: "x",
				Denials: []*wire.Denial{
					{
						Source: "Enforced", Rule: "socket", Syscall: "socket", Arguments: "family=AF_INET type=SOCK_STREAM protocol=TCP",
						Errno: "EACCES", Program: "/usr/bin/curl", Pid: 7, Count: 3,
					},
					{Source: "Enforced", Rule: "connect", Syscall: "connect", Address: "192.0.2.1:80", Errno: "EACCES", Program: "/w/a\nOutput:\nb", Pid: 8, Count: 1},
					{Source: "Enforced", Rule: "mounts", Errno: "EPERM", Count: 40, Mixed: true},
				},
			},
			wantJSON: `{"chunk_id":"00ab15","wall_time_seconds":0.5,"exit_code":1,"original_token_count":0,"output":"x","notices":["n"],"denials":[` +
				`{"source":"Enforced","rule":"socket","syscall":"socket","arguments":"family=AF_INET type=SOCK_STREAM protocol=TCP","errno":"EACCES","program":"/usr/bin/curl","pid":7,"count":3},` +
				`{"source":"Enforced","rule":"connect","syscall":"connect","address":"192.0.2.1:80","errno":"EACCES","program":"/w/a\nOutput:\nb","pid":8,"count":1},` +
				`{"source":"Enforced","rule":"mounts","errno":"EPERM","count":40,"mixed":true}]}`,
			wantText: "Chunk ID: 00ab15\nWall time: 0.5000 seconds\nProcess exited with code 1\nOriginal token count: 0\nNotice: n\n" +
				"Sandbox refused: socket family=AF_INET type=SOCK_STREAM protocol=TCP, 3 times, by /usr/bin/curl (EACCES, rule socket)\n" +
				"Sandbox refused: connect to 192.0.2.1:80, by \"/w/a\\nOutput:\\nb\" (EACCES, rule connect)\n" +
				"Sandbox refused: 40 calls of further kinds (EPERM, rule mounts)\nOutput:\nx",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := RenderJSON(tc.result)
			if err != nil {
				t.Fatalf("%s: RenderJSON: %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.wantJSON, string(got)); diff != "" {
				t.Errorf("%s: JSON (-want +got):\n%s", tc.reason, diff)
			}
			if !json.Valid(got) {
				t.Errorf("%s: not JSON", tc.reason)
			}
			if diff := cmp.Diff(tc.wantText, RenderText(tc.result)); diff != "" {
				t.Errorf("%s: text (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestRenderBuffered(t *testing.T) {
	cases := map[string]struct {
		reason   string
		result   *wire.RunResponse
		wantJSON string
		wantText string
	}{
		"Exited": {
			reason: "Streams apart, and together for whoever reads the text.",
			result: &wire.RunResponse{
				WallTimeSeconds: 0.5, Stdout: []byte("<out>\n"), Stderr: []byte("err\n"), StdoutBytes: 6, StderrBytes: 4, Aggregate: []byte("<out>\nerr\n"),
				Exit: &wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_EXITED, ExitCode: 3},
			},
			wantJSON: `{"wall_time_seconds":0.5,"exit_code":3,"timed_out":false,"stdout":"<out>\n","stderr":"err\n","stdout_bytes":6,"stderr_bytes":4,"aggregated_output":"<out>\nerr\n"}`,
			wantText: "Exit code: 3\nWall time: 0.5 seconds\nOutput:\n<out>\nerr\n",
		},
		"TimedOut": {
			reason: "What was cut and what ended it are told.",
			result: &wire.RunResponse{
				WallTimeSeconds: 1, Stdout: []byte("ab"), StdoutBytes: 9, Aggregate: []byte("ab"),
				Exit: &wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_TIMED_OUT, ExitCode: 124, Signal: "SIGTERM", Message: "its timeout of 1s was over"},
			},
			wantJSON: `{"wall_time_seconds":1,"exit_code":124,"timed_out":true,"stdout":"ab","stderr":"","stdout_bytes":9,"stderr_bytes":0,"aggregated_output":"ab","exit":{"reason":"timed_out","signal":"SIGTERM","message":"its timeout of 1s was over"}}`,
			wantText: "Exit code: 124\nWall time: 1.0 seconds\nNotice: the command wrote 9 bytes, of which this is the beginning of each stream\nOutput:\ncommand timed out: its timeout of 1s was over\nab",
		},
		"Killed": {
			reason: "An end that was not the command's own is told.",
			result: &wire.RunResponse{Exit: &wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_SIGNALED, ExitCode: 137, Signal: "SIGKILL"}},
			wantJSON: `{"wall_time_seconds":0,"exit_code":137,"timed_out":false,"stdout":"","stderr":"","stdout_bytes":0,"stderr_bytes":0,"aggregated_output":"",` +
				`"exit":{"reason":"signaled","signal":"SIGKILL"}}`,
			wantText: "Exit code: 137\nWall time: 0.0 seconds\nNotice: a signal ended the command (SIGKILL)\nOutput:\n",
		},
		"Denied": {
			reason: "What was refused is told in both forms.",
			result: &wire.RunResponse{
				Exit:    &wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_EXITED, ExitCode: 1},
				Denials: []*wire.Denial{{Source: "Enforced", Rule: "mounts", Syscall: "mount", Errno: "EPERM", Count: 1}},
			},
			wantJSON: `{"wall_time_seconds":0,"exit_code":1,"timed_out":false,"stdout":"","stderr":"","stdout_bytes":0,"stderr_bytes":0,"aggregated_output":"",` +
				`"denials":[{"source":"Enforced","rule":"mounts","syscall":"mount","errno":"EPERM","count":1}]}`,
			wantText: "Exit code: 1\nWall time: 0.0 seconds\nSandbox refused: mount (EPERM, rule mounts)\nOutput:\n",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := RenderBufferedJSON(tc.result)
			if err != nil {
				t.Fatalf("%s: RenderBufferedJSON: %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.wantJSON, string(got)); diff != "" {
				t.Errorf("%s: JSON (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.wantText, RenderBufferedText(tc.result)); diff != "" {
				t.Errorf("%s: text (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestEveryEndHasAName(t *testing.T) {
	for number, name := range wire.ExitReason_name {
		reason := wire.ExitReason(number)
		if reason == wire.ExitReason_EXIT_REASON_UNSPECIFIED || reason == wire.ExitReason_EXIT_REASON_EXITED {
			continue
		}
		if exitOf(&wire.ExitRecord{Reason: reason}) == nil {
			t.Errorf("%s would be rendered as a plain exit", name)
		}
	}
}
