package codex

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escape keeps text that a command may have chosen part of from being more than one line of text: what does not print, as
// what steers a terminal or turns the direction of writing, is spelt as in Go, and white space becomes blanks.
func Escape(text string) string {
	if isPlain(text) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case unicode.IsSpace(r):
			b.WriteByte(' ')
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// Quote is for a name that a command chose: it is quoted if it is more than plain text.
func Quote(name string) string {
	if isPlain(name) {
		return name
	}
	return strconv.Quote(name)
}

// oneWord also quotes a name with blanks, so that it does not look like words of ours.
func oneWord(name string) string {
	if isPlain(name) && !strings.Contains(name, " ") {
		return name
	}
	return strconv.Quote(name)
}

func isPlain(text string) bool {
	return utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}
