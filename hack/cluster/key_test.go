package main

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"
)

func TestDigestKeepsBoundaries(t *testing.T) {
	a := digest(map[string][]byte{"a": []byte("b"), "c": []byte("d")})
	for name, other := range map[string]map[string][]byte{
		"content moved to another part": {"a": []byte("bc"), "c": []byte("d")},
		"parts swapped":                 {"a": []byte("d"), "c": []byte("b")},
		"part missing":                  {"a": []byte("b")},
	} {
		if digest(other) == a {
			t.Errorf("%s: the key is the same", name)
		}
	}
	if digest(map[string][]byte{"c": []byte("d"), "a": []byte("b")}) != a {
		t.Error("the key depends on the order of a map")
	}
}

func TestCacheKey(t *testing.T) {
	module := func() fstest.MapFS {
		return fstest.MapFS{
			"go.mod": {Data: []byte("module components")},
			"go.sum": {Data: []byte("sums")},
			"notes":  {Data: []byte("notes")},
		}
	}
	etcd := []program{{name: "etcd", pkg: "example.com/etcd"}}
	key := func(programs []program, m fstest.MapFS, version string) string {
		t.Helper()
		k, err := cacheKey(m, programs, version)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	base := key(etcd, module(), "go1.26.8")

	changed := map[string]string{}
	m := module()
	m["go.sum"] = &fstest.MapFile{Data: []byte("other sums")}
	changed["another version of a dependency"] = key(etcd, m, "go1.26.8")
	m = module()
	m["extra/main.go"] = &fstest.MapFile{Data: []byte("package main")}
	changed["source of our own"] = key(etcd, m, "go1.26.8")
	changed["another compiler"] = key(etcd, module(), "go1.27.0")
	changed["other flags"] = key([]program{{name: "etcd", pkg: "example.com/etcd", cgo: true}}, module(), "go1.26.8")
	for reason, k := range changed {
		if k == base {
			t.Errorf("%s does not change the key", reason)
		}
	}

	m = module()
	m["notes"] = &fstest.MapFile{Data: []byte("other notes")}
	if key(etcd, m, "go1.26.8") != base {
		t.Error("a file that is not compiled changes the key")
	}
}

func TestPlanKey(t *testing.T) {
	l := newLayout()
	p, err := newPlan(l)
	if err != nil {
		t.Fatal(err)
	}
	again, err := newPlan(l)
	if err != nil {
		t.Fatal(err)
	}
	if p.key("v1") != again.key("v1") {
		t.Error("the key of the same plan differs")
	}
	if p.key("v1") == p.key("v2") {
		t.Error("other binaries do not change the key")
	}
	l.KubeletPort++
	other, err := newPlan(l)
	if err != nil {
		t.Fatal(err)
	}
	if other.key("v1") == p.key("v1") {
		t.Error("another port does not change the key")
	}
}

// A finished cluster must not depend on a checkout or on the cache: both may go away.
func TestPlanNamesOnlyItsOwnPlaces(t *testing.T) {
	p, err := newPlan(newLayout())
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range p.processes {
		for _, arg := range process.Argv {
			for _, place := range []string{"/root", "/home", "/tmp", "/var/cache", "/work"} {
				if strings.Contains(arg, place) {
					t.Errorf("%s is started with %s", process.Name, arg)
				}
			}
		}
	}
	for name, content := range p.files {
		if strings.Contains(string(content), "<no value>") || strings.Contains(string(content), "{{") {
			t.Errorf("%s is not rendered: %s", name, content)
		}
	}
}

func TestExecutableName(t *testing.T) {
	for pkg, want := range map[string]string{
		"go.etcd.io/etcd/server/v3":           "server",
		"helm.sh/helm/v3/cmd/helm":            "helm",
		"example.com/containerd-shim-runc-v2": "containerd-shim-runc-v2",
		"example.com/vet":                     "vet",
		"./coredns":                           "coredns",
	} {
		if got := executableName(pkg); got != want {
			t.Errorf("executableName(%s) = %s, want %s", pkg, got, want)
		}
	}
}

// requirements are the versions that a go.mod names.
func requirements(t *testing.T, modfile string) map[string]string {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json", modfile).Output()
	if err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(text, &parsed); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, r := range parsed.Require {
		versions[r.Path] = r.Version
	}
	return versions
}

func TestKubernetesVersionIsThePinnedOne(t *testing.T) {
	if pinned := requirements(t, "components/go.mod")["k8s.io/kubernetes"]; pinned != kubernetesVersion {
		t.Errorf("components/go.mod requires Kubernetes %s, and the binaries say %s", pinned, kubernetesVersion)
	}
}

// A cold build compiles each shared package once as long as every module names the same version of it.
func TestModulesShareTheirVersions(t *testing.T) {
	components := requirements(t, "components/go.mod")
	for _, modfile := range []string{"../../go.mod", "../images/go.mod", "../tools.mod"} {
		for module, version := range requirements(t, modfile) {
			// Kubernetes names its own modules v0.0.0 and replaces them.
			if pinned := components[module]; pinned != "" && pinned != "v0.0.0" && pinned != version {
				t.Errorf("%s requires %s %s, components/go.mod %s: take the newer in both, so that it is compiled once",
					modfile, module, version, pinned)
			}
		}
	}
}
