package strictjson

import (
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	escapeSize = 6 // bytes of \uXXXX
	hexBase    = 16
	hexBits    = 16
)

// CheckText refuses bytes that are no UTF-8 and escapes of half a character.
func CheckText(data []byte) error {
	for at := 0; at < len(data); {
		r, size := utf8.DecodeRune(data[at:])
		switch {
		case r == utf8.RuneError && size == 1:
			return fmt.Errorf("byte %d, %#x, is no valid UTF-8", at, data[at])
		case r != '\\': // outside of a string a decoder refuses it
			at += size
			continue
		}
		first, isEscape := escaped(data[at:])
		if !isEscape {
			at += 2
			continue
		}
		if !utf16.IsSurrogate(first) {
			at += escapeSize
			continue
		}
		second, isEscape := escaped(data[at+escapeSize:])
		if !isEscape || utf16.DecodeRune(first, second) == utf8.RuneError {
			return fmt.Errorf("byte %d, %s, is half a character: a surrogate without its other half", at, data[at:at+escapeSize])
		}
		at += 2 * escapeSize
	}
	return nil
}

// escaped is the number that data begins with in the form \uXXXX.
func escaped(data []byte) (rune, bool) {
	if len(data) < escapeSize || data[0] != '\\' || data[1] != 'u' {
		return 0, false
	}
	number, err := strconv.ParseUint(string(data[2:escapeSize]), hexBase, hexBits)
	return rune(number), err == nil
}
