package main

import (
	"os"

	"execsession.dev/cmd/kubectl-execsession/app"
)

// version is the version of this build; the linker sets it.
var version string

func main() {
	os.Exit(app.Main(os.Args[1:], version, app.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
