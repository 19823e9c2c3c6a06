package sandbox

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/net/bpf"
)

// architecture is what a filter has to know about a processor.
type architecture struct {
	name string
	// audit is the kernel's AUDIT_ARCH number.
	audit uint32
	// foreignBit marks numbers of a second table behind the same audit number
	// (x32 on amd64); 0 if there is none.
	foreignBit uint32
	number     func(syscallNumbers) int
}

var architectures = map[string]architecture{
	"amd64": {name: "amd64", audit: 0xC000003E, foreignBit: 0x40000000, number: func(n syscallNumbers) int { return n.amd64 }},
	"arm64": {name: "arm64", audit: 0xC00000B7, number: func(n syscallNumbers) int { return n.arm64 }},
}

// verdict is what the filter returns, in the kernel's encoding.
type verdict uint32

const (
	killProcess verdict = 0x80000000
	errnoBase   verdict = 0x00050000
	askOwner    verdict = 0x7FC00000
	allow       verdict = 0x7FFF0000
)

// refuse makes the call fail with the errno.
func refuse(errno uint16) verdict { return errnoBase | verdict(errno) }

// errno is what a refused call fails with; 0 when the verdict is no refusal.
func (v verdict) errno() uint16 {
	if v&^0xFFFF != errnoBase {
		return 0
	}
	return uint16(v)
}

// Linux error numbers that the filter returns: the same on both architectures.
const (
	eperm           = 1
	eacces          = 13
	einval          = 22
	enosys          = 38
	eprotonosupport = 93
	eafnosupport    = 97
)

// rule says what happens to some system calls. The first rule that names a call
// and whose tests all hold decides; a call that no rule decides is allowed.
//
// Where refusals are observed, a supervisor answers what the rule says instead of the
// filter (see observed), with the same errno.
type rule struct {
	id    string
	calls []string
	when  []test
	then  verdict
	// unseen keeps a refusal out of the supervisor's sight: one that withholds nothing,
	// because the program takes an older call that the filter can read.
	unseen bool
}

// test looks at the low 32 bits of one argument. The kernel takes every argument
// tested here as an int, so that the high bits must not count: comparing them
// too was the hole of CVE-2019-10063 and CVE-2023-1523. Only of an address do both
// halves count, each by a test of its own.
type test struct {
	arg int
	// high looks at the high 32 bits instead.
	high bool
	// mask selects bits; 0 selects all.
	mask  uint32
	equal bool
	value uint32
}

func argIs(arg int, value uint32) test  { return test{arg: arg, equal: true, value: value} }
func argNot(arg int, value uint32) test { return test{arg: arg, value: value} }

// highNot is argNot of the high half.
func highNot(arg int, value uint32) test { return test{arg: arg, high: true, value: value} }

// bitsAre holds if the masked argument has that value.
func bitsAre(arg int, mask, value uint32) test {
	return test{arg: arg, mask: mask, equal: true, value: value}
}

// bitsNot holds if the masked argument has another value.
func bitsNot(arg int, mask, value uint32) test { return test{arg: arg, mask: mask, value: value} }

// anyBit holds if a bit of the mask is set.
func anyBit(arg int, mask uint32) test { return test{arg: arg, mask: mask} }

// holds is what the filter computes, for whoever has the arguments.
func (t test) holds(args *[6]uint64) bool {
	value := uint32(args[t.arg])
	if t.high {
		value = uint32(args[t.arg] >> 32)
	}
	if t.mask != 0 {
		value &= t.mask
	}
	return (value == t.value) == t.equal
}

// observed makes the filter hand what the rules refuse to a supervisor.
func observed(rules []rule) []rule {
	changed := slices.Clone(rules)
	for i, r := range changed {
		if r.then.errno() != 0 && !r.unseen {
			changed[i].then = askOwner
		}
	}
	return changed
}

// ruleIndex finds the rule that decided about a call.
type ruleIndex map[uint32][]rule

// indexRules panics for a name that does not exist: names in rules are ours, and
// those of a policy were validated.
func indexRules(arch architecture, rules []rule) ruleIndex {
	index := make(ruleIndex)
	for _, r := range rules {
		for _, name := range r.calls {
			numbers, known := syscalls[name]
			if !known {
				panic(fmt.Sprintf("rule %q names the unknown system call %q", r.id, name))
			}
			if number := arch.number(numbers); number != absent {
				index[uint32(number)] = append(index[uint32(number)], r)
			}
		}
	}
	return index
}

// decide returns the first rule that names the call and whose tests all hold.
func (x ruleIndex) decide(number uint32, args *[6]uint64) (rule, bool) {
	for _, r := range x[number] {
		if !slices.ContainsFunc(r.when, func(t test) bool { return !t.holds(args) }) {
			return r, true
		}
	}
	return rule{}, false
}

// Offsets into struct seccomp_data; on a little-endian machine an argument's low word comes first.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

func (t test) offset() uint32 {
	offset := uint32(offsetArgs + 8*t.arg)
	if t.high {
		offset += 4
	}
	return offset
}

// compiledCall is one system call with the rules about it, or several that follow
// each other in number and have one and the same verdict.
type compiledCall struct {
	first, last uint32
	rules       []rule
}

// final is the verdict of a call that does not depend on its arguments.
func (c compiledCall) final() (verdict, bool) {
	return c.rules[0].then, len(c.rules[0].when) == 0
}

// follows says that the call can be told together with the one before it.
func (c compiledCall) follows(before compiledCall) bool {
	mine, final := c.final()
	other, otherFinal := before.final()
	return final && otherFinal && mine == other && c.first == before.last+1
}

// compileCalls sorts rules by system call.
func compileCalls(arch architecture, rules []rule) []compiledCall {
	byNumber := indexRules(arch, rules)
	var calls []compiledCall
	for _, number := range slices.Sorted(maps.Keys(byNumber)) {
		call := compiledCall{first: number, last: number, rules: byNumber[number]}
		if end := len(calls) - 1; end >= 0 && call.follows(calls[end]) {
			calls[end].last = number
			continue
		}
		calls = append(calls, call)
	}
	return calls
}

// assemble makes the filter: the checks of the architecture, then a search for the
// call. Two costs decide its shape. The kernel runs it once for every number when it is
// installed, to remember which calls are allowed whatever their arguments; that is
// most of what a start pays for, and a search by halves makes it small. Afterwards only
// calls with rules run it at all.
func assemble(arch architecture, rules []rule) ([]bpf.RawInstruction, error) {
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch.audit, SkipTrue: 1},
		bpf.RetConstant{Val: uint32(killProcess)},
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
	}
	if arch.foreignBit != 0 {
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpLessThan, Val: arch.foreignBit, SkipTrue: 1},
			bpf.RetConstant{Val: uint32(refuse(enosys))})
	}
	program = append(program, searchBlock(compileCalls(arch, rules))...)
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("assembling filter: %w", err)
	}
	return raw, nil
}

// searchBlock finds the call among sorted ones; it always ends in a verdict.
func searchBlock(calls []compiledCall) []bpf.Instruction {
	const few = 3
	if len(calls) <= few {
		var block []bpf.Instruction
		for _, call := range calls {
			verdict := callBlock(call)
			if call.first == call.last {
				verdict = append(jumpOver(bpf.JumpNotEqual, call.first, len(verdict)), verdict...)
			} else {
				verdict = append(jumpOver(bpf.JumpGreaterThan, call.last, len(verdict)), verdict...)
				verdict = append(jumpOver(bpf.JumpLessThan, call.first, len(verdict)), verdict...)
			}
			block = append(block, verdict...)
		}
		return append(block, bpf.RetConstant{Val: uint32(allow)})
	}
	middle := len(calls) / 2
	lower, upper := searchBlock(calls[:middle]), searchBlock(calls[middle:])
	return slices.Concat(jumpOver(bpf.JumpGreaterOrEqual, calls[middle].first, len(lower)), lower, upper)
}

// jumpOver skips instructions if the condition holds. A conditional jump reaches
// 255 instructions; over more, it jumps around an unconditional one.
func jumpOver(cond bpf.JumpTest, value uint32, length int) []bpf.Instruction {
	if length <= 255 {
		return []bpf.Instruction{bpf.JumpIf{Cond: cond, Val: value, SkipTrue: uint8(length)}}
	}
	return []bpf.Instruction{
		bpf.JumpIf{Cond: cond, Val: value, SkipFalse: 1},
		bpf.Jump{Skip: uint32(length)},
	}
}

// callBlock tries the rules of one call in their order; it always ends in a verdict.
func callBlock(call compiledCall) []bpf.Instruction {
	var block []bpf.Instruction
	for _, r := range call.rules {
		block = append(block, ruleBlock(r)...)
		if len(r.when) == 0 {
			return block
		}
	}
	return append(block, bpf.RetConstant{Val: uint32(allow)})
}

// ruleBlock falls through behind its end when a test does not hold.
func ruleBlock(r rule) []bpf.Instruction {
	block := []bpf.Instruction{bpf.RetConstant{Val: uint32(r.then)}}
	for _, t := range slices.Backward(r.when) {
		block = append(testBlock(t, uint8(len(block))), block...)
	}
	return block
}

func testBlock(t test, skip uint8) []bpf.Instruction {
	block := []bpf.Instruction{bpf.LoadAbsolute{Off: t.offset(), Size: 4}}
	if t.mask != 0 {
		block = append(block, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: t.mask})
	}
	cond := bpf.JumpEqual
	if t.equal {
		cond = bpf.JumpNotEqual
	}
	return append(block, bpf.JumpIf{Cond: cond, Val: t.value, SkipTrue: skip})
}
