package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "execsession.dev"

// pkg is what `go list -json` says of a package, as far as these tests ask.
type pkg struct {
	ImportPath string
	Dir        string
	Name       string
	Doc        string
	GoFiles    []string
	Imports    []string
	Deps       []string
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Dir,Name,Doc,GoFiles,Imports,Deps"}, args...)...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("listing packages %q: %v\n%s", args, err, stderr.String())
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("reading what go list wrote: %v", err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) == 0 {
		t.Fatalf("go list %q found no package", args)
	}
	return pkgs
}

func TestEveryPackageHasADoc(t *testing.T) {
	for _, p := range list(t, "./...") {
		if len(p.GoFiles) == 0 {
			continue // Only tests: nothing to document for a user.
		}
		if !slices.Contains(p.GoFiles, "doc.go") {
			t.Errorf("package %s has no doc.go", p.ImportPath)
		}
		if want := "Package " + p.Name; p.Name != "main" && !strings.HasPrefix(p.Doc, want) {
			t.Errorf("the doc of package %s begins with %q; it should begin with %q", p.ImportPath, p.Doc, want)
		}
		if p.Doc == "" {
			t.Errorf("package %s has no package comment", p.ImportPath)
		}
	}
}

// TestAgentLinksNoKubernetes holds agentd to being a small binary that could not talk to an API server.
func TestAgentLinksNoKubernetes(t *testing.T) {
	for _, p := range list(t, "./cmd/agentd") {
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, "k8s.io/") || strings.HasPrefix(dep, "sigs.k8s.io/") {
				t.Errorf("%s links %s", p.ImportPath, dep)
			}
		}
	}
}

// TestImportsPointDown is the architecture's picture: for each package, what of ours it may import.
// A package that is not listed may import anything that is listed.
func TestImportsPointDown(t *testing.T) {
	allowed := map[string][]string{
		"unifiedexec":       {},
		"sandbox":           {},
		"sandbox/egress":    {},
		"approval":          {},
		"agentd/wire":       {},
		"agentd/ledger":     {},
		"agentd/strictjson": {},
		"agentd/config":     {"agentd/strictjson", "sandbox", "sandbox/egress", "approval"},
		"agentd/client":     {"agentd/wire"},
		"api/v1alpha1":      {},
		"agentd/podstream":  {},
		"agentd":            {"agentd/wire", "agentd/config", "agentd/ledger", "unifiedexec", "sandbox", "sandbox/egress", "approval"},
	}
	seen := map[string]bool{}
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		may, ok := allowed[name]
		if !ok {
			continue
		}
		seen[name] = true
		for _, imp := range p.Imports {
			ours, isOurs := strings.CutPrefix(imp, module+"/")
			// A package's own subfolders are its own business.
			if isOurs && !slices.Contains(may, ours) && (!strings.HasPrefix(ours, name+"/") || allowed[ours] != nil) {
				t.Errorf("%s imports %s; it may import only %q", name, ours, may)
			}
		}
	}
	for name := range allowed {
		if !seen[name] {
			t.Errorf("package %s does not exist; the picture is out of date", name)
		}
	}
}

// TestOnlyTheClusterSideLinksClientGo keeps client-go out of everything but the operator, the
// pod stream and the cluster-side programs.
func TestOnlyTheClusterSideLinksClientGo(t *testing.T) {
	may := []string{"controllers", "agentd/podstream", "cmd/manager", "cmd/kubectl-execsession", "test", "hack"}
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if slices.ContainsFunc(may, func(m string) bool { return name == m || strings.HasPrefix(name, m+"/") }) {
			continue
		}
		if slices.ContainsFunc(p.Deps, func(dep string) bool { return strings.HasPrefix(dep, "k8s.io/client-go/") }) {
			t.Errorf("%s links client-go", name)
		}
	}
}
