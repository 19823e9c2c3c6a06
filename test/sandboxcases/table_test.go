//go:build linux

package main

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

// What the table and its page say is true of each other and of the tests that they name.

var (
	pageRow = regexp.MustCompile(`(?m)^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$`)
	heldBy  = regexp.MustCompile(`^([a-z0-9/]+)\.((?:Test|Fuzz)[A-Za-z]+)$`)
	event   = regexp.MustCompile(`^(?:-|I|R|E (?:egress/|[a-z-]+/[a-z0-9_]+))$`)
)

func TestTableNamesAttempts(t *testing.T) {
	seen, used := map[string]bool{}, map[string]bool{}
	for _, r := range rows(t) {
		if attempts[r.attempt] == nil && programs[r.attempt] == nil && archDiffers[r.attempt] == "" {
			t.Errorf("case %d: there is no attempt %q", r.number, r.attempt)
		}
		if !event.MatchString(r.event) || !slices.Contains([]string{"Default", "Loopback", "Proxy", "Guarded"}, r.profile) {
			t.Errorf("case %d: %q: event %q or profile %q is none", r.number, r.attempt, r.event, r.profile)
		}
		key := r.profile + " " + r.attempt
		if seen[key] {
			t.Errorf("case %d: %q is there twice", r.number, r.attempt)
		}
		seen[key], used[r.attempt] = true, true
	}
	for name := range attempts {
		if !used[name] {
			t.Errorf("the attempt %q is in no case", name)
		}
	}
	for name := range programs {
		if !used[name] {
			t.Errorf("the attempt %q is in no case", name)
		}
	}
}

// int80 is the attempt to make a call of 32-bit programs.
const int80 = "int 0x80"

// archDiffers are attempts that other processors than amd64 do not have.
var archDiffers = map[string]string{int80: "amd64", "x32 getpid": "amd64"}

func TestPageIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../docs/design/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	letters := map[int][]string{}
	for _, r := range rows(t) {
		letter := r.event[:1]
		if !slices.Contains(letters[r.number], letter) {
			letters[r.number] = append(letters[r.number], letter)
		}
	}
	found := pageRow.FindAllStringSubmatch(string(page), -1)
	if len(found) != cases {
		t.Fatalf("the page has %d cases", len(found))
	}
	tests := map[string]map[string]bool{}
	for i, match := range found {
		number, err := strconv.Atoi(match[1])
		if err != nil || number != i+1 {
			t.Fatalf("row %d of the page is case %s", i+1, match[1])
		}
		slices.Sort(letters[number])
		if said := strings.Split(match[4], ", "); !slices.Equal(said, letters[number]) {
			t.Errorf("case %d: the page says event %q, the table %q", number, said, letters[number])
		}
		for name := range strings.SplitSeq(match[5], ", ") {
			if name == "cases.txt" && len(letters[number]) > 0 {
				continue
			}
			by := heldBy.FindStringSubmatch(name)
			if by == nil {
				t.Errorf("case %d: %q is neither the table nor a test", number, name)
				continue
			}
			if tests[by[1]] == nil {
				tests[by[1]] = testnames.In(t, filepath.Join("..", "..", filepath.FromSlash(by[1])))
			}
			if !tests[by[1]][by[2]] {
				t.Errorf("case %d: there is no %s", number, name)
			}
		}
	}
}
