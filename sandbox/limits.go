package sandbox

// limits are the resource limits that a policy may name, with the kernel's numbers.
var limits = map[string]int{
	"cpu":    0,
	"fsize":  1,
	"core":   4,
	"nproc":  6,
	"nofile": 7,
	"as":     9,
}
