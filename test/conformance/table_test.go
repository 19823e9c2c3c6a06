package conformance

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"execsession.dev/test/testnames"
)

const (
	scriptFolder = "testdata/script"
	table        = "../../docs/design/conformance.md"
)

// lines is how many lines each section of the list has.
var lines = map[string]int{"12.1": 21, "12.2": 5, "12.3": 23, "12.4": 1, "12.5": 6, "12.9": 5, "12.10": 2}

// rule is a row of the table.
type rule struct {
	name, text, held string
}

var (
	row      = regexp.MustCompile(`(?m)^\| ((?:12\.\d+|E)-\d+[a-z]?) \| ([^|]+) \| ([^|]+) \|$`)
	ruleName = regexp.MustCompile(`^(12\.\d+|E)-(\d+)[a-z]?$`)
	// inScript is how a script says which rules its next lines hold.
	inScript = regexp.MustCompile(`(?m)^# ((?:(?:12\.\d+|E)-\d+[a-z]?,? ?)+):`)
	held     = regexp.MustCompile(`^(?:[a-z0-9-]+\.txtar|[a-z/]+\.(?:Test|Fuzz)[A-Za-z]+)$`)
	notHere  = regexp.MustCompile(`^(?:later|never), [A-Za-z][^:]+: .{10,}$`)
)

func rules(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	var found []rule
	for _, match := range row.FindAllStringSubmatch(string(text), -1) {
		found = append(found, rule{name: match[1], text: strings.TrimSpace(match[2]), held: strings.TrimSpace(match[3])})
	}
	if rows := strings.Count(string(text), "\n| "); rows != len(found)+2*strings.Count(string(text), "\n| --- |") {
		t.Errorf("%d rows of the table are not understood", rows-len(found)-2*strings.Count(string(text), "\n| --- |"))
	}
	return found
}

// No line of the list is left out, and none is there twice.
func TestEveryLineIsInTheTable(t *testing.T) {
	seen, of := map[string]bool{}, map[string]bool{}
	for _, r := range rules(t) {
		if seen[r.name] {
			t.Errorf("%s is there twice", r.name)
		}
		seen[r.name] = true
		match := ruleName.FindStringSubmatch(r.name)
		of[match[1]+"-"+match[2]] = true
		number, err := strconv.Atoi(match[2])
		if err != nil || match[1] != "E" && (number < 1 || number > lines[match[1]]) {
			t.Errorf("%s is no line of the list", r.name)
		}
	}
	for section, count := range lines {
		for number := 1; number <= count; number++ {
			if name := section + "-" + strconv.Itoa(number); !of[name] {
				t.Errorf("%s is missing", name)
			}
		}
	}
}

// Every row is held by tests and scripts that exist and name it, or says why it is not.
func TestEveryRowIsHeld(t *testing.T) {
	inScripts := scripts(t)
	tests := map[string]map[string]bool{}
	for _, r := range rules(t) {
		if strings.HasPrefix(r.held, "later") || strings.HasPrefix(r.held, "never") {
			if !notHere.MatchString(r.held) {
				t.Errorf("%s: %q is no kind with a reason", r.name, r.held)
			}
			continue
		}
		for by := range strings.SplitSeq(r.held, ", ") {
			switch folder, test, isTest := cutLast(by, "."); {
			case !held.MatchString(by):
				t.Errorf("%s: %q is neither a script nor a test", r.name, by)
			case strings.HasSuffix(by, ".txtar"):
				if !slices.Contains(inScripts[by], r.name) {
					t.Errorf("%s: the script %s does not name it", r.name, by)
				}
			case isTest:
				if tests[folder] == nil {
					tests[folder] = testnames.In(t, filepath.Join("..", "..", filepath.FromSlash(folder)))
				}
				if !tests[folder][test] {
					t.Errorf("%s: there is no test %s in %s", r.name, test, folder)
				}
			}
		}
	}
}

// Whatever a script says that it holds is in the table, and every script says so of something.
func TestScriptsAreInTheTable(t *testing.T) {
	holds := map[string]string{}
	for _, r := range rules(t) {
		holds[r.name] = r.held
	}
	for script, names := range scripts(t) {
		if len(names) == 0 {
			t.Errorf("%s names no rule", script)
		}
		for _, name := range names {
			if !slices.Contains(strings.Split(holds[name], ", "), script) {
				t.Errorf("%s says that it holds %s; the table says %q", script, name, holds[name])
			}
		}
	}
}

// scripts gives the rules that each script names.
func scripts(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(scriptFolder, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("finding the scripts: %v, %v", files, err)
	}
	found := map[string][]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := []string{}
		for _, match := range inScript.FindAllStringSubmatch(string(text), -1) {
			names = append(names, strings.Split(match[1], ", ")...)
		}
		found[filepath.Base(file)] = names
	}
	return found
}

func cutLast(text, separator string) (before, after string, found bool) {
	at := strings.LastIndex(text, separator)
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+len(separator):], true
}
