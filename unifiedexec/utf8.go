package unifiedexec

import "unicode/utf8"

// wholeRunes returns how many of the bytes can be shown: all but up to three at the end
// that may be the beginning of a character. Bytes that can never be UTF-8 count as whole.
func wholeRunes(b []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(b); back++ {
		i := len(b) - back
		if utf8.RuneStart(b[i]) {
			if utf8.FullRune(b[i:]) {
				return len(b)
			}
			return i
		}
	}
	return len(b)
}

// cutText drops the beginning of a character at the end of a text.
func cutText(s string) string { return s[:wholeRunes([]byte(s))] }

// leftBorder returns the last border of a character that is not after i.
func leftBorder(s string, i int) int {
	for i > 0 && i < len(s) && !utf8.RuneStart(s[i]) {
		i--
	}
	return i
}

// rightBorder returns the first border of a character that is not before i.
func rightBorder(s string, i int) int {
	for i < len(s) && !utf8.RuneStart(s[i]) {
		i++
	}
	return i
}
