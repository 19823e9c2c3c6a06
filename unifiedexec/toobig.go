package unifiedexec

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// The kernel's limits of what a program starts with. The stack's own limit makes the second one smaller.
const (
	leastStart = 128 << 10
	mostStart  = 6 << 20
	// pointerBytes is what an argument or a variable costs beside its text.
	pointerBytes = 8
)

// tooBig says what of a plan the kernel refused as too large: it does not say so itself.
func (p *plan) tooBig() string {
	const most = largestArgument - 1
	for i, arg := range p.argv {
		if len(arg) > most {
			return fmt.Sprintf("argument %d has %d bytes, and one may have %d; a script may be larger", i, len(arg), most)
		}
	}
	variables := 0
	for _, variable := range p.env {
		variables += len(variable) + 1 + pointerBytes
		if name, value, _ := strings.Cut(variable, "="); len(variable) > most {
			return fmt.Sprintf("the variable %s has %d bytes, and with its name and = one may have %d", shorten(name), len(value), most)
		}
	}
	arguments := 0
	for _, arg := range p.argv {
		arguments += len(arg) + 1 + pointerBytes
	}
	return fmt.Sprintf("the variables take %d bytes and the arguments %d; together they may take %d", variables, arguments, largestStart())
}

// largestStart is how much arguments and variables may take together, each with its pointer.
func largestStart() uint64 {
	var stack unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &stack); err != nil {
		return mostStart
	}
	return min(max(stack.Cur/4, leastStart), mostStart)
}
