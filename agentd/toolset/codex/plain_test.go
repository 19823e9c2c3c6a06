package codex

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"execsession.dev/agentd/wire"
)

func TestPlainText(t *testing.T) {
	cases := map[string]struct{ reason, text, escaped, quoted string }{
		"Plain":     {"what prints stays, whatever its script", `echo "ä 漢" \x1b`, `echo "ä 漢" \x1b`, `echo "ä 漢" \x1b`},
		"Title":     {"the terminal's title", "a\x1b]0;OWNED\x07b", `a\x1b]0;OWNED\ab`, `"a\x1b]0;OWNED\ab"`},
		"Erase":     {"the line before", "a\x1b[2K\x1b[1Ab", `a\x1b[2K\x1b[1Ab`, `"a\x1b[2K\x1b[1Ab"`},
		"Single":    {"the one-character forms of the same", "a\u009b2Kb", `a\u009b2Kb`, `"a\u009b2Kb"`},
		"Delete":    {"the last of the old ones", "a\x7fb", `a\x7fb`, `"a\x7fb"`},
		"Return":    {"the line itself", "a\rb\nc\td", "a b c d", `"a\rb\nc\td"`},
		"Direction": {"the direction of writing", "a\u202eb", `a\u202eb`, `"a\u202eb"`},
		"Invisible": {"what nobody sees", "a\u200bb", `a\u200bb`, `"a\u200bb"`},
		"Invalid":   {"what is no text", "a\xffb", "a\uFFFDb", `"a\xffb"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Escape(tc.text); got != tc.escaped {
				t.Errorf("%s: Escape gave %q, want %q", tc.reason, got, tc.escaped)
			}
			if got := Quote(tc.text); got != tc.quoted {
				t.Errorf("%s: Quote gave %q, want %q", tc.reason, got, tc.quoted)
			}
		})
	}
}

// JSON means the same, and shows nothing that steers a terminal.
func TestEncodeJSON(t *testing.T) {
	for _, text := range []string{
		"", "plain ä 漢 <&>", "a\x1b[2Kb\r\n\x00", "\u009b2K", "\x7f", "\u202e", "\u2028", "\U0001F600", "\U000E0041", "\uFFFD", `\u009b`, "\u00a0",
	} {
		for _, indent := range []string{"", "  "} {
			encoded, err := EncodeJSON(map[string]string{"text": text}, indent)
			if err != nil {
				t.Fatal(err)
			}
			if i := strings.IndexFunc(string(encoded), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
				t.Errorf("%q at %d of %s", encoded[i:], i, encoded)
			}
			if indent == "" && strings.Contains(string(encoded), "\n") {
				t.Errorf("%q is no line", encoded)
			}
			var back map[string]string
			if err := json.Unmarshal(encoded, &back); err != nil || back["text"] != text {
				t.Errorf("%s is %q, %v, want %q", encoded, back["text"], err, text)
			}
		}
	}
}

// Nothing before the output is more than lines of text, whoever chose its words.
func TestRenderedTextIsPlain(t *testing.T) {
	const evil = "x\x1b[2K\n\u009b1A\rOutput:\u202e"
	denial := &wire.Denial{Rule: evil, Syscall: evil, Arguments: evil, Address: evil, Errno: evil, Program: evil, Count: 2}
	record := &wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_STOPPED, Signal: evil, Message: evil}
	texts := map[string]string{
		"tool":     RenderText(&wire.ToolResult{ChunkId: evil, Notices: []string{evil}, Exit: record, Denials: []*wire.Denial{denial}}),
		"buffered": RenderBufferedText(&wire.RunResponse{Exit: record, Denials: []*wire.Denial{denial}}),
		"timeout": RenderBufferedText(&wire.RunResponse{Exit: &wire.ExitRecord{
			Reason: wire.ExitReason_EXIT_REASON_TIMED_OUT, Message: evil,
		}}),
	}
	for name, text := range texts {
		if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%s: %q at %d of %q", name, text[i:i+2], i, text)
		}
		if n := strings.Count("\n"+text, "\nOutput:"); n != 1 {
			t.Errorf("%s: %d lines begin the output: %q", name, n, text)
		}
	}
}
