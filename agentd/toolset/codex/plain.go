package codex

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
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

// EncodeJSON is JSON without escapes for HTML, but with those for what does not print: package json leaves some of
// what steers a terminal as it is. An indent of "" makes one line.
func EncodeJSON(form any, indent string) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(form); err != nil {
		return nil, err
	}
	encoded := bytes.TrimRight(b.Bytes(), "\n")
	// Outside of its texts JSON has nothing that does not print but line breaks.
	unprinted := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
	if bytes.IndexFunc(encoded, unprinted) < 0 {
		return encoded, nil
	}
	var plain []byte
	for _, r := range string(encoded) {
		if !unprinted(r) {
			plain = utf8.AppendRune(plain, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			plain = fmt.Appendf(plain, `\u%04x`, unit)
		}
	}
	return plain, nil
}

func isPlain(text string) bool {
	return utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}
