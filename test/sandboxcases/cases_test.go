//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"execsession.dev/agentd/ledger"
)

// patience bounds each wait; the machine may be busy.
const patience = 2 * time.Minute

// cases is how many there are.
const cases = 40

// row is a line of the table.
type row struct {
	number                           int
	profile, attempt, outcome, event string
}

func rows(t *testing.T) []row {
	t.Helper()
	var list []row
	for line := range strings.Lines(table) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		columns := strings.Split(line, "|")
		if len(columns) != 5 {
			t.Fatalf("line %q of the table has %d columns", line, len(columns))
		}
		number, err := strconv.Atoi(columns[0])
		if err != nil || number < 1 || number > cases {
			t.Fatalf("line %q of the table has no case's number", line)
		}
		list = append(list, row{number, columns[1], columns[2], columns[3], columns[4]})
	}
	return list
}

// place is where commands run: a session's pod, or something like it on this machine.
type place interface {
	// run runs a command to its end and returns its number and output.
	run(t *testing.T, argv ...string) (id int32, output string)
	// records are the session's ledger so far.
	records(t *testing.T) []ledger.Record
}

// found is how a case ended somewhere.
type found struct {
	// lines are what its attempts met, and what was told of them: the same everywhere.
	lines    []string
	problems []string
}

// workspaceBinary is where the program lies in a session.
const workspaceBinary = "/workspace/sandboxcases"

// try makes every case of a profile.
func try(t *testing.T, p place, profile string) map[int]found {
	t.Helper()
	byCase := map[int][]row{}
	for _, r := range rows(t) {
		if only := archDiffers[r.attempt]; r.profile == profile && (only == "" || only == runtime.GOARCH) {
			if r.attempt == int80 {
				r.outcome = outcomeOfInt80(t, r.outcome)
			}
			byCase[r.number] = append(byCase[r.number], r)
		}
	}
	if len(byCase) == 0 {
		t.Fatalf("the table has nothing for profile %q", profile)
	}
	results := map[int]found{}
	for _, number := range slices.Sorted(maps.Keys(byCase)) {
		results[number] = tryCase(t, p, byCase[number])
	}
	return results
}

// outcomeOfInt80 is what the table says, unless the machine has no calls of 32-bit programs at all, as under some hypervisors:
// then the processor ends the program before any filter could, outside of a sandbox too.
func outcomeOfInt80(t *testing.T, outcome string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "int80")
	if err := os.WriteFile(path, int80Program(), 0o700); err != nil {
		t.Fatal(err)
	}
	switch bare := ended(exec.CommandContext(t.Context(), path).Run()); bare {
	case "exit 42":
		return outcome
	case "signal SIGSEGV":
		t.Logf("skipped: %q under a filter: this machine has no such calls, outside of the sandbox it meets %s", int80, bare)
		return bare
	default:
		t.Fatalf("outside of the sandbox %q met %s", int80, bare)
		return ""
	}
}

func tryCase(t *testing.T, p place, wanted []row) found {
	t.Helper()
	before := proxyRefusals(p.records(t))
	id, output := p.run(t, workspaceBinary, "run", strconv.Itoa(wanted[0].number), wanted[0].profile)
	got := map[string]result{}
	for line := range strings.Lines(output) {
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return found{problems: []string{fmt.Sprintf("it said %q", output)}}
		}
		got[r.Attempt] = r
	}
	var f found
	events, egress := map[string]bool{}, uint64(0)
	for _, want := range wanted {
		r, made := got[want.attempt]
		if !made {
			f.problems = append(f.problems, fmt.Sprintf("%q was not made", want.attempt))
			continue
		}
		f.lines = append(f.lines, fmt.Sprintf("%d|%s|%s|%s", want.number, want.profile, want.attempt, r.Outcome))
		if r.Outcome != want.outcome && r.Outcome != "absent" {
			f.problems = append(f.problems, fmt.Sprintf("%q met %s, want %s (%s)", want.attempt, r.Outcome, want.outcome, r.Detail))
		}
		switch event, told := strings.CutPrefix(want.event, "E "); {
		case told && event == "egress/":
			egress++
		case told && r.Outcome != "absent":
			events[event] = true
		}
	}
	told := awaitEvents(t, p, id, events)
	for _, event := range told {
		f.lines = append(f.lines, fmt.Sprintf("%d|%s|told|%s", wanted[0].number, wanted[0].profile, event))
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(events)), told); diff != "" {
		f.problems = append(f.problems, "what the ledger tells differs (-want +got):\n"+diff)
	}
	if n := proxyRefusals(p.records(t)) - before; n != egress {
		f.problems = append(f.problems, fmt.Sprintf("the ledger tells %d refusals of the proxy, want %d", n, egress))
	}
	return f
}

// awaitEvents waits until the ledger has the end of a command and what is wanted about it, and returns what it has.
func awaitEvents(t *testing.T, p place, id int32, wanted map[string]bool) []string {
	t.Helper()
	for deadline := time.Now().Add(patience / 4); ; time.Sleep(100 * time.Millisecond) {
		ended, told := false, map[string]bool{}
		for _, r := range p.records(t) {
			switch {
			case r.Exited != nil && r.Exited.ID == id:
				ended = true
			case r.Denied != nil && r.Denied.ID == id:
				told[r.Denied.Rule+"/"+r.Denied.Syscall] = true
			}
		}
		missing := slices.DeleteFunc(slices.Collect(maps.Keys(wanted)), func(event string) bool { return told[event] })
		if ended && len(missing) == 0 || time.Now().After(deadline) {
			return slices.Sorted(maps.Keys(told))
		}
	}
}

// proxyRefusals counts what the proxy refused. It cannot say to which command.
func proxyRefusals(records []ledger.Record) (count uint64) {
	for _, r := range records {
		if r.Denied != nil && r.Denied.Rule == "egress" {
			count += r.Denied.Count
		}
	}
	return count
}

// parseLedger reads records out of a container's log, or a file.
func parseLedger(t *testing.T, text string) []ledger.Record {
	t.Helper()
	var records []ledger.Record
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		record, err := ledger.Parse(lines.Bytes())
		if err != nil {
			t.Fatalf("the ledger has %q: %v", lines.Text(), err)
		}
		records = append(records, record)
	}
	return records
}

// report fails for each case that is not as the table says, and prints how many are.
func report(t *testing.T, where string, results ...map[int]found) {
	t.Helper()
	problems := map[int][]string{}
	for _, result := range results {
		for number, f := range result {
			problems[number] = append(problems[number], f.problems...)
		}
	}
	good := 0
	for _, number := range slices.Sorted(maps.Keys(problems)) {
		if len(problems[number]) == 0 {
			good++
		}
		for _, problem := range problems[number] {
			t.Errorf("case %d: %s", number, problem)
		}
	}
	t.Logf("%s: %d/%d cases as the table says", where, good, len(problems))
}

// lines are all lines of a result, in order.
func lines(results map[int]found) []string {
	var all []string
	for _, number := range slices.Sorted(maps.Keys(results)) {
		all = append(all, results[number].lines...)
	}
	return all
}

// build compiles one of the repository's programs.
func build(t *testing.T, pkg string) string {
	t.Helper()
	target := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", target, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", pkg, err, out)
	}
	return target
}

// output runs a program of this machine, bounded.
func output(t *testing.T, stdin, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = patience / 10 // a child may have its output still
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

func must(t *testing.T, text string, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// runQuietly runs what cleans up.
func runQuietly(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return exec.CommandContext(ctx, name, args...).Run()
}
