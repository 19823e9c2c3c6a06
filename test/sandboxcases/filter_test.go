//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The filter of a container runtime, made from its profile as libseccomp would: what rules allow, and an error for the rest.

// profile is what the tests need of a runtime's profile.
type profile struct {
	DefaultAction string `json:"defaultAction"`
	Syscalls      []struct {
		Names    []string `json:"names"`
		Action   string   `json:"action"`
		ErrnoRet *uint32  `json:"errnoRet"`
		Args     []struct {
			Index    uint32 `json:"index"`
			Value    uint64 `json:"value"`
			ValueTwo uint64 `json:"valueTwo"`
			Op       string `json:"op"`
		} `json:"args"`
	} `json:"syscalls"`
}

const (
	retAllow = 0x7FFF0000
	retErrno = 0x00050000

	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// runtimeDefault is the profile of the containerd that the cluster is made of.
func runtimeDefault(t *testing.T) profile {
	t.Helper()
	source, err := filepath.Abs("testdata/runtimedefault.go")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "-trimpath", source)
	cmd.Dir = filepath.Join("..", "..", "hack", "cluster", "components")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("asking containerd for its filter: %v\n%s", err, stderr.String())
	}
	var p profile
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatalf("reading the filter: %v", err)
	}
	if p.DefaultAction != "SCMP_ACT_ERRNO" || len(p.Syscalls) == 0 {
		t.Fatalf("the filter's default is %q, with %d rules", p.DefaultAction, len(p.Syscalls))
	}
	return p
}

// numbers are the system calls' of this processor, by name.
func numbers(t *testing.T) map[string]uint32 {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatalf("finding the numbers of system calls: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+runtime.GOARCH+".go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]uint32{}
	for _, match := range regexp.MustCompile(`(?m)^\tSYS_([A-Z0-9_]+)\s+= (\d+)$`).FindAllSubmatch(text, -1) {
		number, err := strconv.ParseUint(string(match[2]), 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		found[strings.ToLower(string(match[1]))] = uint32(number)
	}
	return found
}

// compile turns the profile into a program of the kernel. Calls of a foreign architecture and of x32 pass: the runtime
// has tables of their own for them, which allow nearly the same.
func compile(t *testing.T, p profile) []byte {
	t.Helper()
	known := numbers(t)
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch[runtime.GOARCH], SkipTrue: 1},
		bpf.RetConstant{Val: retAllow},
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: 0x40000000, SkipTrue: 1},
		bpf.RetConstant{Val: retAllow},
	}
	newest := uint32(0)
	for _, rule := range p.Syscalls {
		verdict := uint32(retAllow)
		if rule.Action != "SCMP_ACT_ALLOW" {
			verdict = retErrno | uint32(unix.EPERM)
			if rule.ErrnoRet != nil {
				verdict = retErrno | *rule.ErrnoRet
			}
		}
		for _, name := range rule.Names {
			number, exists := known[name]
			if !exists {
				continue // of another processor, or newer than what the attempts use
			}
			newest = max(newest, number)
			var test []bpf.Instruction
			for _, arg := range rule.Args {
				mask, value := ^uint64(0), arg.Value
				switch arg.Op {
				case "SCMP_CMP_EQ":
				case "SCMP_CMP_LT":
					test = append(test, below(offsetArgs+8*arg.Index, uint32(value))...)
					continue
				case "SCMP_CMP_MASKED_EQ":
					mask, value = arg.Value, arg.ValueTwo
				default:
					t.Fatalf("rule about %s: the test does not know the comparison %s", name, arg.Op)
				}
				at := offsetArgs + 8*arg.Index
				test = append(test, compareWord(at, uint32(mask), uint32(value))...)
				test = append(test, compareWord(at+4, uint32(mask>>32), uint32(value>>32))...)
			}
			program = append(program, guarded(number, test, verdict)...)
		}
	}
	// runc has newer calls than the profile knows answered as a kernel without them would.
	program = append(program,
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: newest, SkipTrue: 1},
		bpf.RetConstant{Val: retErrno | uint32(unix.ENOSYS)},
		bpf.RetConstant{Val: retErrno | uint32(unix.EPERM)})
	raw, err := bpf.Assemble(program)
	if err != nil {
		t.Fatalf("assembling the filter: %v", err)
	}
	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, raw); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// compareWord ends with a jump that guarded completes: to the next comparison, or past the rule.
func compareWord(at, mask, value uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: at, Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: value},
	}
}

// below compares the low word, which is all that a family of sockets has.
func below(at, limit uint32) []bpf.Instruction {
	return []bpf.Instruction{bpf.LoadAbsolute{Off: at, Size: 4}, bpf.JumpIf{Cond: bpf.JumpLessThan, Val: limit}}
}

// guarded is a rule: it returns its verdict if the number and all words compare.
func guarded(number uint32, test []bpf.Instruction, verdict uint32) []bpf.Instruction {
	rule := append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: number},
	}, test...)
	rule = append(rule, bpf.RetConstant{Val: verdict})
	for i, instruction := range rule {
		if jump, ok := instruction.(bpf.JumpIf); ok {
			jump.SkipFalse = uint8(len(rule) - i - 1)
			rule[i] = jump
		}
	}
	return rule
}
