package unifiedexec

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestRender(t *testing.T) {
	cases := map[string]struct {
		reason string
		out    span
		tokens int64
		want   string
		count  int64
	}{
		"Empty":    {"nothing is nothing", span{}, 10, "", 0},
		"Fits":     {"text that fits is left alone", span{head: []byte("12345678")}, 2, "12345678", 2},
		"OneOver":  {"one byte more is cut in the middle", span{head: []byte("123456789")}, 2, "Warning: truncated output (original token count: 3)\nTotal output lines: 1\n\n1234…1 tokens truncated…6789", 3},
		"Zero":     {"no budget leaves the marker", span{head: []byte("12345678")}, 0, "Warning: truncated output (original token count: 2)\nTotal output lines: 1\n\n…2 tokens truncated…", 2},
		"Border":   {"cuts are at the borders of characters", span{head: []byte("a€€€€€€b")}, 2, "Warning: truncated output (original token count: 5)\nTotal output lines: 1\n\na€…3 tokens truncated…€b", 5},
		"Omitted":  {"a hole is named", span{head: []byte("ab"), omitted: 96, tail: []byte("yz")}, 100, "ab\n... 96 bytes omitted ...\nyz", 25},
		"HoleOnly": {"a hole at the beginning is named", span{omitted: 6, tail: []byte("yz")}, 100, "... 6 bytes omitted ...\nyz", 2},
		"HoleCut":  {"a hole that the cut took is named again", span{head: []byte(strings.Repeat("a", 40)), omitted: 1000, tail: []byte(strings.Repeat("z", 40))}, 2, "Warning: truncated output (original token count: 270)\n\n... 1000 bytes omitted ...\naaaa…25 tokens truncated…zzzz", 270},
		"Invalid":  {"bytes that are no UTF-8 are replaced", span{head: []byte("\xff\xfe\x80ok\xe2\x82")}, 100, "\uFFFD\uFFFD\uFFFDok\uFFFD", 2},
		"Huge":     {"a budget beyond every number", span{head: []byte("x")}, 1<<63 - 1, "x", 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, count := render(tc.out, tc.tokens)
			if got != tc.want || count != tc.count {
				t.Errorf("%s: %q %d, want %q %d", tc.reason, got, count, tc.want, tc.count)
			}
		})
	}
}

func TestWholeRunes(t *testing.T) {
	cases := map[string]int{
		"": 0, "a": 1, "é": 2, "a\xc3": 1, "\xe2\x82": 0, "x\xf0\x9f\x98": 1, "\xff": 1, "\x80\x80": 2, "a\xe2\x28": 3, "\xf0\x9f\x98\x80": 4, "\xed\xa0": 2,
	}
	for in, want := range cases {
		if got := wholeRunes([]byte(in)); got != want {
			t.Errorf("%q: %d, want %d", in, got, want)
		}
	}
}

func FuzzWholeRunes(f *testing.F) {
	f.Add([]byte("a\xe2\x82\xac\xf0\x9f"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := wholeRunes(b)
		if n < 0 || n > len(b) || len(b)-n >= utf8.UTFMax {
			t.Fatalf("%d of %d", n, len(b))
		}
		if utf8.Valid(b) && n != len(b) {
			t.Fatalf("valid text was cut at %d of %d", n, len(b))
		}
		if rest := b[n:]; len(rest) > 0 && (utf8.FullRune(rest) || !utf8.RuneStart(rest[0])) {
			t.Fatalf("%q could be shown", rest)
		}
	})
}

func FuzzRender(f *testing.F) {
	f.Add([]byte("head"), uint32(3), []byte("tail"), int64(1))
	f.Fuzz(func(t *testing.T, head []byte, omitted uint32, tail []byte, budget int64) {
		if budget < 0 {
			return
		}
		if omitted == 0 {
			tail = nil
		}
		text, count := render(span{head: head, tail: tail, omitted: uint64(omitted)}, budget)
		if !utf8.ValidString(text) {
			t.Fatalf("%q is not UTF-8", text)
		}
		if total := uint64(len(head)) + uint64(len(tail)) + uint64(omitted); count != tokens(total) {
			t.Fatalf("%d tokens of %d bytes", count, total)
		}
		if omitted > 0 && !strings.Contains(text, "bytes omitted") {
			t.Fatalf("%q hides %d bytes", text, omitted)
		}
		const overhead = 250
		if budget < 1<<40 && int64(len(text)) > budget*bytesPerToken+overhead {
			t.Fatalf("%d bytes for %d tokens", len(text), budget)
		}
	})
}
