package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// toolPackages are what the tests of sessions run, Debian packages by name; apt adds what they depend on.
var toolPackages = []string{
	"base-files", "bash", "bubblewrap", "busybox-static", "coreutils", "curl", "dash", "diffutils", "findutils", "git", "grep", "gzip",
	"hostname", "libc-bin", "ncurses-bin", "netcat-openbsd", "nodejs", "npm", "openssh-client", "postgresql", "procps", "python3",
	"sed", "strace", "tar", "util-linux", "wget",
}

// leftOut are packages that others depend on and that none of these tests runs: the compiler inside PostgreSQL, headers and
// other languages' messages, half of the whole.
var leftOut = regexp.MustCompile(`^(libllvm\d+|libz3-4|locales|.+-dev)_`)

// unused are files of the others.
var unused = regexp.MustCompile(`^usr/share/(doc|man|locale|info|lintian|bash-completion|icons|applications)/|^usr/lib/postgresql/[^/]+/lib/bitcode/`)

// onlyDebian keeps apt to Debian's own packages, whatever else the machine's lists offer under the same names.
const onlyDebian = "Package: *\nPin: release o=Debian\nPin-Priority: 500\n\nPackage: *\nPin: release *\nPin-Priority: -1\n"

// recipe is this file: when it changes, the image is made anew.
//
//go:embed tools.go
var recipe []byte

// tools makes sure that the cache has the image of tools and returns its archive. What is in it is not made anew when
// Debian has a newer package: the tests want programs, not their newest versions.
func tools(ctx context.Context) (string, error) {
	root, err := cacheRoot()
	if err != nil {
		return "", err
	}
	version, err := exec.CommandContext(ctx, "go", "env", "GOVERSION").Output()
	if err != nil {
		return "", fmt.Errorf("finding Go: %w", err)
	}
	// A machine that is no Debian fails later, and says at what.
	release, _ := os.ReadFile("/etc/debian_version")
	sum := sha256.New()
	for _, part := range [][]byte{recipe, version, release, []byte(runtime.GOARCH)} {
		fmt.Fprintf(sum, "%d\n%s", len(part), part)
	}
	dir := filepath.Join(root, "images", "tools")
	archive := filepath.Join(dir, fmt.Sprintf("%x.tar", sum.Sum(nil)[:8]))
	if _, err := os.Stat(archive); err == nil {
		return archive, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// Made beside the target and renamed, so that neither an interrupted run nor one beside this leaves half of it.
	work, err := os.MkdirTemp(dir, "making")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	img, err := toolsImage(ctx, work)
	if err != nil {
		return "", fmt.Errorf("making the image of tools: %w", err)
	}
	made := filepath.Join(work, "tools.tar")
	if err := img.write(made); err != nil {
		return "", fmt.Errorf("writing the image of tools: %w", err)
	}
	return archive, os.Rename(made, archive)
}

func toolsImage(ctx context.Context, work string) (image, error) {
	packages, err := download(ctx, work, toolPackages)
	if err != nil {
		return image{}, err
	}
	l := newLayer()
	if err := addPackages(ctx, l, packages); err != nil {
		return image{}, err
	}
	goDirs := regexp.MustCompile(`^(test|doc|api|misc|src/cmd)$|^pkg/tool/[^/]+/(cover|vet|cgo|fix|preprofile|trace|pprof)$`)
	if err := addGo(ctx, l, goDirs.MatchString); err != nil {
		return image{}, err
	}
	l.text("etc/passwd", "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000:agent:/execsession/home:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n")
	l.text("etc/group", "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n")
	l.text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
	l.dir("workspace", 0o777)
	addOutside(l)
	return image{
		name: toolsName,
		config: v1.Config{
			Env: []string{"PATH=/usr/local/bin:/usr/local/go/bin:/usr/sbin:" + searchPath, "GOTOOLCHAIN=local", "GOPROXY=off", "CGO_ENABLED=0"},
			Cmd: []string{"/bin/bash"}, WorkingDir: "/workspace",
		},
		layer: l,
	}, nil
}

// becomesRoot would make its caller root, and say so.
const becomesRoot = "usr/bin/whoami"

// addOutside adds what attempts at the sandbox aim at: files of the commands' own user, which file permissions
// give to everybody and only the sandbox keeps.
func addOutside(l *layer) {
	mine := func(typeflag byte, name string, mode int64, content string) {
		l.entry(tar.Header{Typeflag: typeflag, Name: name, Mode: mode, Uid: 1000, Gid: 1000, Size: int64(len(content))}, strings.NewReader(content))
	}
	mine(tar.TypeDir, "srv/outside/", 0o777, "")
	mine(tar.TypeReg, "srv/outside/file", 0o666, "content\n")
	mine(tar.TypeDir, "srv/denied/", 0o777, "")
	mine(tar.TypeReg, "srv/denied/secret", 0o666, "secret\n")
}

// download brings the packages and all that they depend on into a folder, as apt would install them where
// nothing is.
func download(ctx context.Context, work string, names []string) ([]string, error) {
	status, preferences := filepath.Join(work, "status"), filepath.Join(work, "preferences")
	nothing := filepath.Join(work, "nothing")
	err := errors.Join(
		os.WriteFile(status, nil, 0o600), os.WriteFile(preferences, []byte(onlyDebian), 0o600), os.Mkdir(nothing, 0o700),
		os.MkdirAll(filepath.Join(work, "archives", "partial"), 0o700),
	)
	if err != nil {
		return nil, err
	}
	args := []string{
		"-q", "-y", "--no-install-recommends", "--download-only",
		"-o", "Dir::State::status=" + status, "-o", "Dir::Etc::Preferences=" + preferences, "-o", "Dir::Etc::PreferencesParts=" + nothing,
		// Its own user could not enter the folder; nor is anything here that another apt must be kept from.
		"-o", "Dir::Cache=" + work, "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1",
	}
	args = slices.Concat(args, []string{"install"}, names)
	if err := command(ctx, work, "apt-get", args...); err != nil {
		// A fresh machine has no lists yet, and old ones name files that are gone.
		if err := command(ctx, work, "apt-get", "-q", "update"); err != nil {
			return nil, err
		}
		if err := command(ctx, work, "apt-get", args...); err != nil {
			return nil, err
		}
	}
	packages, err := filepath.Glob(filepath.Join(work, "archives", "*.deb"))
	if err != nil || len(packages) == 0 {
		return nil, fmt.Errorf("apt-get left no packages in %s", work)
	}
	return slices.DeleteFunc(packages, func(path string) bool { return leftOut.MatchString(filepath.Base(path)) }), nil
}

// mergedDirs are links into usr since Debian merged them, which its packages do not know.
var mergedDirs = []string{"bin", "lib", "lib64", "sbin"}

// addPackages adds what packages hold. Their scripts are not run: that would take a root that can be run in, and
// what they leave is little and written out here.
func addPackages(ctx context.Context, l *layer, packages []string) error {
	for _, name := range mergedDirs {
		l.link(name, "usr/"+name)
	}
	seen := map[string]bool{}
	for _, pkg := range packages {
		if err := addPackage(ctx, l, pkg, seen); err != nil {
			return fmt.Errorf("unpacking %s: %w", filepath.Base(pkg), err)
		}
	}
	for _, name := range []string{"var", "srv", "usr/local", "usr/local/bin"} {
		if !seen[name] {
			l.dir(name, 0o755)
		}
	}
	l.dir("var/tmp", 0o1777)
	// Choices among packages that do the same are made by scripts.
	l.link("usr/bin/awk", "mawk")
	l.link("usr/bin/nc", "nc.openbsd")
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		// Debian's own are scripts that choose among versions of the server.
		if match := serverProgram.FindStringSubmatch(name); match != nil {
			l.link("usr/local/bin/"+match[1], "/"+name)
		}
	}
	return l.err
}

var serverProgram = regexp.MustCompile(`^usr/lib/postgresql/[^/]+/bin/([^/]+)$`)

func addPackage(ctx context.Context, l *layer, pkg string, seen map[string]bool) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", pkg)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	content, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = copyFiles(l, tar.NewReader(content), seen)
	if err == nil {
		_, err = io.Copy(io.Discard, content) // the end of the archive is padded
	} else {
		_ = cmd.Process.Kill() // it waits for a reader
	}
	if waitErr := cmd.Wait(); err == nil && waitErr != nil {
		err = fmt.Errorf("%w: %s", waitErr, strings.TrimSpace(stderr.String()))
	}
	return err
}

// copyFiles adds the files of a package to the layer; seen are the names that the layer has.
func copyFiles(l *layer, archive *tar.Reader, seen map[string]bool) error {
	for l.err == nil {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := merged(header.Name)
		if name == "" || seen[name] || unused.MatchString(name+"/") {
			continue
		}
		seen[name] = true
		entry := tar.Header{Typeflag: header.Typeflag, Name: name, Mode: header.Mode & 0o7777, Linkname: header.Linkname}
		if name == becomesRoot {
			entry.Mode |= 0o4000
		}
		switch header.Typeflag {
		case tar.TypeDir:
			entry.Name += "/"
			l.entry(entry, nil)
		case tar.TypeLink:
			entry.Linkname = merged(header.Linkname)
			l.entry(entry, nil)
		case tar.TypeReg:
			entry.Size = header.Size
			l.entry(entry, archive)
		default:
			l.entry(entry, nil)
		}
	}
	return l.err
}

// merged is the name in the image of a package's file, "" for the root itself.
func merged(name string) string {
	name = strings.Trim(strings.TrimPrefix(name, "."), "/")
	first, _, _ := strings.Cut(name, "/")
	if slices.Contains(mergedDirs, first) {
		return "usr/" + name
	}
	return name
}
