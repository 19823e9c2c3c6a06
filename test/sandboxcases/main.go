//go:build linux

package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

//go:embed cases.txt
var table string

// attemptVariable names the one attempt that a process makes.
const attemptVariable = "SANDBOX_ATTEMPT"

// result is a line of the output.
type result struct {
	Case    int    `json:"case"`
	Attempt string `json:"attempt"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail,omitempty"`
}

func main() {
	var err error
	if name := os.Getenv(attemptVariable); name != "" {
		err = makeOne(name)
	} else {
		err = run(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandboxcases:", err)
		os.Exit(1) //nolint:forbidigo // this is a program's main
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "list":
		_, err := os.Stdout.WriteString(table)
		return err
	case len(args) == 3 && args[0] == "run":
		return runCase(args[1], args[2])
	}
	return errors.New("usage: sandboxcases list | run CASE PROFILE")
}

// runCase makes the attempts of one case that a profile has.
func runCase(number, profile string) error {
	wanted, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("case %q: %w", number, err)
	}
	made := 0
	for line := range strings.Lines(table) {
		columns := strings.Split(strings.TrimSpace(line), "|")
		if len(columns) != 5 || columns[0] != strconv.Itoa(wanted) || columns[1] != profile {
			continue
		}
		made++
		r := attemptProcess(columns[2])
		r.Case = wanted
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			return err
		}
	}
	if made == 0 {
		return fmt.Errorf("case %s has no attempts for profile %q", number, profile)
	}
	return nil
}

// attemptProcess makes an attempt in a process of its own, which it may not survive.
func attemptProcess(name string) result {
	r := result{Attempt: name}
	if argv, isProgram := programs[name]; isProgram {
		r.Outcome, r.Detail = runProgram(argv)
		return r
	}
	if attempts[name] == nil {
		r.Outcome = "there is no such attempt"
		return r
	}
	cmd := exec.Command("/proc/self/exe") //nolint:noctx // who runs the case bounds it
	cmd.Env = append(os.Environ(), attemptVariable+"="+name)
	cmd.Stdin = os.Stdin
	output, err := cmd.CombinedOutput()
	if outcome := ended(err); outcome != "ok" {
		r.Outcome, r.Detail = outcome, string(output)
		return r
	}
	if err := json.Unmarshal(output, &r); err != nil {
		r.Outcome = fmt.Sprintf("said %q", output)
	}
	r.Attempt = name // it may have been made by making another
	return r
}

// runProgram runs a program that is to fail; what it says is the detail.
func runProgram(argv []string) (outcome, detail string) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return "absent", ""
	}
	cmd := exec.Command(path, argv[1:]...) //nolint:noctx // who runs the case bounds it
	output, err := cmd.CombinedOutput()
	return ended(err), strings.TrimSpace(string(output))
}

// ended says how a process ended.
func ended(err error) string {
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return "ok"
	case !ok:
		return err.Error()
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return "signal " + unix.SignalName(status.Signal())
	}
	return "exit " + strconv.Itoa(status.ExitStatus())
}

// makeOne makes one attempt and says what it met.
func makeOne(name string) error {
	attempt := attempts[name]
	if attempt == nil {
		return fmt.Errorf("there is no attempt %q", name)
	}
	r := result{Attempt: name, Outcome: "ok"}
	if err := attempt(); err != nil {
		r.Outcome, r.Detail = err.Error(), err.Error()
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			r.Outcome = unix.ErrnoName(errno)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}
