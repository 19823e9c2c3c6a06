package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const searchPath = "/usr/local/bin:/usr/bin:/bin"

// workspace is a small image to run sessions in: a shell, bash, and the usual tools as one static program. The uid that
// sessions run as has no entry in passwd, as with most images in the world.
func workspace(ctx context.Context) (image, error) {
	l := newLayer()
	if err := addTools(ctx, l); err != nil {
		return image{}, err
	}
	l.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n")
	l.text("etc/group", "root:x:0:\nnogroup:x:65534:\n")
	l.text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
	l.dir("etc/ssl", 0o755)
	l.dir("root", 0o700)
	l.dir("workspace", 0o777)
	return image{
		name:   workspaceName,
		config: v1.Config{Env: []string{"PATH=" + searchPath}, Cmd: []string{"/bin/sh"}, WorkingDir: "/workspace"},
		layer:  l,
	}, nil
}

// addTools adds the folders that programs expect, busybox under all its names, and bash.
func addTools(ctx context.Context, l *layer) error {
	busybox, err := packagedFile(ctx, "busybox-static", "bin/busybox")
	if err != nil {
		return err
	}
	bash, err := packagedFile(ctx, "bash-static", "bin/bash-static")
	if err != nil {
		return err
	}
	// Commands run with LC_ALL=C.UTF-8; without it bash would begin every output with a warning.
	locale, err := packagedFile(ctx, "libc-bin", "usr/lib/locale/C.utf8")
	if err != nil {
		return err
	}
	list, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("listing the tools of busybox: %w", err)
	}
	for _, name := range []string{"bin", "dev", "etc", "proc", "sys", "usr", "usr/lib", "usr/lib/locale", "usr/local", "usr/local/bin", "var"} {
		l.dir(name, 0o755)
	}
	l.dir("tmp", 0o1777)
	l.dir("var/tmp", 0o1777)
	l.link("sbin", "bin")
	l.link("usr/bin", "../bin")
	l.link("usr/sbin", "../bin")
	l.file("bin/busybox", busybox, 0o755)
	l.file("bin/bash", bash, 0o755)
	l.tree("usr/lib/locale/C.utf8", locale, func(string) bool { return false })
	tools := strings.Fields(string(list))
	slices.Sort(tools)
	for _, tool := range slices.Compact(tools) {
		if tool = filepath.Base(tool); tool != "busybox" && tool != "bash" {
			l.link("bin/"+tool, "busybox")
		}
	}
	return nil
}
