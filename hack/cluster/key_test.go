package main

import (
	"os"
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

func TestGroupKey(t *testing.T) {
	modules := func() fstest.MapFS {
		return fstest.MapFS{
			"etcd/go.mod":  {Data: []byte("module etcd")},
			"etcd/go.sum":  {Data: []byte("sums")},
			"etcd/notes":   {Data: []byte("notes")},
			"other/go.mod": {Data: []byte("module other")},
		}
	}
	etcd := group{name: "etcd", binaries: []program{{"etcd", "example.com/etcd"}}}
	key := func(g group, m fstest.MapFS, version string) string {
		t.Helper()
		k, err := g.key(m, version)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	base := key(etcd, modules(), "go1.26.8")

	changed := map[string]string{}
	m := modules()
	m["etcd/go.sum"] = &fstest.MapFile{Data: []byte("other sums")}
	changed["another version of a dependency"] = key(etcd, m, "go1.26.8")
	m = modules()
	m["etcd/extra/main.go"] = &fstest.MapFile{Data: []byte("package main")}
	changed["source of our own"] = key(etcd, m, "go1.26.8")
	changed["another compiler"] = key(etcd, modules(), "go1.27.0")
	flagged := etcd
	flagged.tags = "seccomp"
	changed["another flag"] = key(flagged, modules(), "go1.26.8")
	for reason, k := range changed {
		if k == base {
			t.Errorf("%s does not change the key", reason)
		}
	}

	m = modules()
	m["etcd/notes"] = &fstest.MapFile{Data: []byte("other notes")}
	m["other/go.mod"] = &fstest.MapFile{Data: []byte("module changed")}
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

func TestKubernetesVersionIsThePinnedOne(t *testing.T) {
	text, err := os.ReadFile("modules/kubernetes/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\tk8s.io/kubernetes "+kubernetesVersion+"\n") &&
		!strings.Contains(string(text), "\tk8s.io/kubernetes "+kubernetesVersion+" // indirect\n") &&
		!strings.Contains(string(text), "require k8s.io/kubernetes "+kubernetesVersion+"\n") {
		t.Errorf("modules/kubernetes/go.mod does not require %s", kubernetesVersion)
	}
}
