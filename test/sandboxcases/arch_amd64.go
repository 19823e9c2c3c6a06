//go:build linux

package main

import (
	"encoding/binary"
	"os"
	"syscall"
)

// x32 is the bit that chooses the second table of system calls behind the same architecture.
const x32 = 0x40000000

// archAttempts are those of this processor.
var archAttempts = map[string]func() error{
	"x32 getpid": calling(x32 + 39),
	"int 0x80": inWorkFolder(func(path string) error {
		if err := os.WriteFile(path, int80Program(), 0o700); err != nil {
			return err
		}
		return syscall.Exec(path, []string{path}, nil)
	}),
}

// int80Program is the smallest program that ends itself with code 42 through the table of 32-bit programs.
func int80Program() []byte {
	code := []byte{
		0xB8, 1, 0, 0, 0, // mov eax, 1: exit
		0xBB, 42, 0, 0, 0, // mov ebx, 42
		0xCD, 0x80, // int 0x80
	}
	const base, headers = 0x400000, 64 + 56
	le := binary.LittleEndian
	file := []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	file = le.AppendUint16(file, 2)  // executable
	file = le.AppendUint16(file, 62) // x86-64
	file = le.AppendUint32(file, 1)
	file = le.AppendUint64(file, base+headers) // entry
	file = le.AppendUint64(file, 64)           // program headers
	file = le.AppendUint64(file, 0)
	file = le.AppendUint32(file, 0)
	for _, half := range []uint16{64, 56, 1, 0, 0, 0} {
		file = le.AppendUint16(file, half)
	}
	file = le.AppendUint32(file, 1) // load
	file = le.AppendUint32(file, 5) // read, execute
	size := uint64(headers + len(code))
	for _, word := range []uint64{0, base, base, size, size, 0x1000} {
		file = le.AppendUint64(file, word)
	}
	return append(file, code...)
}
