//go:build amd64 || arm64

package sandbox

import (
	"bytes"
	"errors"
	"unsafe"
)

// limiterCode returns where the limiter's instructions begin.
func limiterCode() unsafe.Pointer

// limiterEnd stands behind the last instruction.
const limiterEnd = "end!end\n"

// limiterInstructions are the limiter as the assembler made it.
func limiterInstructions() ([]byte, error) {
	start := limiterCode()
	// One byte at a time, because what lies behind the end is not ours to read.
	for n := len(limiterEnd); n < imageTable-imageCode; n++ {
		code := unsafe.Slice((*byte)(start), n)
		if bytes.HasSuffix(code, []byte(limiterEnd)) {
			return bytes.Clone(code[:n-len(limiterEnd)]), nil
		}
	}
	return nil, errors.New("the limiter's code has no end")
}
