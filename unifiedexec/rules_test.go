package unifiedexec

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestRulesNameRealTests keeps docs/design/engine-rules.md true.
func TestRulesNameRealTests(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				names[fn.Name.Name] = true
			}
		}
	}
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
