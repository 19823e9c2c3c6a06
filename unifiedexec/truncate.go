package unifiedexec

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	bytesPerToken          = 4
	defaultMaxOutputTokens = 10_000
)

// tokens estimates how many tokens a number of bytes is.
func tokens(n uint64) int64 { return int64((n + bytesPerToken - 1) / bytesPerToken) }

// render makes the text of a result: valid UTF-8, cut in the middle to a budget, with every loss
// named. The count is the output's size before any loss.
func render(out span, maxTokens int64) (text string, originalTokens int64) {
	total := uint64(len(out.head)+len(out.tail)) + out.omitted
	originalTokens = tokens(total)
	text = lossyText(out.head)
	marker := ""
	if out.omitted > 0 {
		marker = fmt.Sprintf("... %d bytes omitted ...", out.omitted)
		if text != "" {
			text += "\n"
		}
		text += marker + "\n" + lossyText(out.tail)
	}
	budget := int64(len(text))
	if maxTokens < budget/bytesPerToken+1 {
		budget = maxTokens * bytesPerToken
	}
	if int64(len(text)) <= budget {
		return text, originalTokens
	}
	var b strings.Builder
	if out.omitted > 0 {
		fmt.Fprintf(&b, "Warning: truncated output (original token count: %d)\n\n", originalTokens)
	} else {
		fmt.Fprintf(&b, "Warning: truncated output (original token count: %d)\nTotal output lines: %d\n\n",
			tokens(uint64(len(text))), countLines(text))
	}
	cut := truncateMiddle(text, int(budget))
	if marker != "" && !strings.Contains(cut, marker) {
		b.WriteString(marker + "\n")
	}
	b.WriteString(cut)
	return b.String(), originalTokens
}

// truncateMiddle keeps the beginning and the end of a text, budget bytes together, at borders of characters.
func truncateMiddle(text string, budget int) string {
	if len(text) <= budget {
		return text
	}
	left := budget / 2
	right := budget - left
	return text[:leftBorder(text, left)] +
		fmt.Sprintf("…%d tokens truncated…", tokens(uint64(len(text)-budget))) +
		text[rightBorder(text, len(text)-right):]
}

// lossyText makes valid UTF-8: each longest beginning of a character that does not go on becomes one
// U+FFFD, and so does each byte that begins none, as decoders of the web do it.
func lossyText(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	out.Grow(len(b))
	for len(b) > 0 {
		if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
			out.Write(b[:n])
			b = b[n:]
			continue
		}
		bad := 1
		for bad < len(b) && !utf8.FullRune(b[:bad]) && !utf8.FullRune(b[:bad+1]) {
			bad++
		}
		out.WriteRune(utf8.RuneError)
		b = b[bad:]
	}
	return out.String()
}

// countLines counts lines; a last one without a newline counts too.
func countLines(s string) int {
	n := strings.Count(s, "\n")
	if s != "" && !strings.HasSuffix(s, "\n") {
		n++
	}
	return n
}
