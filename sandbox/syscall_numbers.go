package sandbox

//go:generate go run gen_syscalls.go

// absent marks a system call that an architecture lacks.
const absent = -1

// syscallNumbers are the numbers of one system call. The table holds both
// architectures whatever we were built for, so that a policy is validated alike
// everywhere and the filter of one architecture can be tested on the other.
type syscallNumbers struct {
	amd64, arm64 int
}
