package main

import (
	"os"

	"execsession.dev/cmd/kubectl-execsession/app"
)

func main() {
	os.Exit(app.Main(os.Args[1:], app.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
