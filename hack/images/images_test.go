package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// staticProgram builds a program without a loader, as the product's binaries are.
func staticProgram(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println(\""+text+"\") }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "program"), source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building: %v: %s", err, out)
	}
	return filepath.Join(dir, "program")
}

func TestProductIsDeterministic(t *testing.T) {
	program := staticProgram(t, "hello")
	var archives [2][]byte
	for i := range archives {
		name := filepath.Join(t.TempDir(), "product.tar")
		if err := run(t.Context(), []string{"product", "-manager", program, "-agentd", program, "-o", name}, io.Discard); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		archives[i] = content
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same programs differ")
	}
}

func TestProductRefusesDynamicProgram(t *testing.T) {
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no program here that is surely linked dynamically: bash is missing")
	}
	if _, err := product(shell, shell, ""); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("got %v", err)
	}
}

func TestCompare(t *testing.T) {
	one, other := staticProgram(t, "one"), staticProgram(t, "other")
	write := func(change func(*image)) string {
		t.Helper()
		img, err := product(one, other, "")
		if err != nil {
			t.Fatal(err)
		}
		change(&img)
		name := filepath.Join(t.TempDir(), "image.tar")
		if err := img.write(name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	same := write(func(*image) {})
	tests := map[string]struct {
		reason string
		change func(*image)
		want   string
	}{
		"same":       {reason: "nothing differs", change: func(*image) {}},
		"entrypoint": {reason: "another program is started", change: func(i *image) { i.config.Entrypoint = []string{"/agentd"} }, want: "entrypoint"},
		"user":       {reason: "it would run as root", change: func(i *image) { i.config.User = "" }, want: "user"},
		"file":       {reason: "there is more inside", change: func(i *image) { i.layer.text("extra", "x") }, want: "files"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := compare(same, write(tt.change), io.Discard)
			if tt.want == "" && err != nil {
				t.Errorf("%s: %v", tt.reason, err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%s: got %v", tt.reason, err)
			}
		})
	}
}

// Pushed to a real registry and read back, the image is the one of the archive.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	program := staticProgram(t, "hello")
	archive := filepath.Join(t.TempDir(), "product.tar")
	if err := run(t.Context(), []string{"product", "-manager", program, "-agentd", program, "-o", archive}, io.Discard); err != nil {
		t.Fatal(err)
	}
	reference := strings.TrimPrefix(server.URL, "http://") + "/team/execsession:dev"
	if err := run(t.Context(), []string{"push", archive, reference}, io.Discard); err != nil {
		t.Fatal(err)
	}
	parsed, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(parsed)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(config.Config.Entrypoint, " "); got != "/manager" {
		t.Errorf("the pushed image starts %q", got)
	}
}

// A package's files come where they are looked for, with their links, modes and content, and each once.
func TestPackagesBecomeALayer(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is not installed: this machine is no Debian")
	}
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for _, name := range []string{"DEBIAN", "bin", "usr/share/doc/x", "usr/lib/postgresql/15/bin"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"DEBIAN/control": "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.com>\nDescription: x\n",
		"bin/x":          "program", "usr/share/doc/x/README": "words", "usr/lib/postgresql/15/bin/initdb": "program",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(root, "bin/x"), filepath.Join(root, "bin/y")); err != nil {
		t.Fatal(err)
	}
	pkg := filepath.Join(dir, "x_1_all.deb")
	if err := command(t.Context(), dir, "dpkg-deb", "--build", root, pkg); err != nil {
		t.Fatal(err)
	}
	l := newLayer()
	if err := addPackages(t.Context(), l, []string{pkg, pkg}); err != nil {
		t.Fatal(err)
	}
	if err := l.tar.Close(); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for archive := tar.NewReader(&l.buffer); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := got[header.Name]; twice {
			t.Errorf("%s is there twice", header.Name)
		}
		got[header.Name] = fmt.Sprintf("%c %s %04o %d", header.Typeflag, header.Linkname, header.Mode, header.Size)
	}
	for name, want := range map[string]string{
		"bin":                              "2 usr/bin 0777 0",
		"usr/lib/postgresql/15/bin/initdb": "0  0755 7",
		"usr/local/bin/initdb":             "2 /usr/lib/postgresql/15/bin/initdb 0777 0",
		"var/tmp/":                         "5  1777 0",
		"usr/share/doc/x/README":           "",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	// Whichever comes first in the package is the file.
	const file, link = "0  0755 7", "1 usr/bin/%s 0755 0"
	x, y := got["usr/bin/x"], got["usr/bin/y"]
	if (x != file || y != fmt.Sprintf(link, "x")) && (y != file || x != fmt.Sprintf(link, "y")) {
		t.Errorf("the two names of a file are %q and %q", x, y)
	}
}
