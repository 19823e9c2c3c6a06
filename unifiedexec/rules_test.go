package unifiedexec

import (
	"os"
	"regexp"
	"testing"

	"execsession.dev/test/testnames"
)

// TestRulesNameRealTests keeps docs/design/engine-rules.md true.
func TestRulesNameRealTests(t *testing.T) {
	names := testnames.In(t, ".")
	doc, err := os.ReadFile("../docs/design/engine-rules.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`\b(Test|Fuzz)[A-Z]\w+`).FindAllString(string(doc), -1)
	if len(found) < 50 {
		t.Errorf("only %d tests are named", len(found))
	}
	for _, name := range found {
		if !names[name] {
			t.Errorf("%s is named and does not exist", name)
		}
	}
}
