package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// builder is an image that the Dockerfile can build in where none can be pulled: this machine's Go, and a shell.
func builder(ctx context.Context) (image, error) {
	l := newLayer()
	if err := addTools(ctx, l); err != nil {
		return image{}, err
	}
	l.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
	l.dir("root", 0o700)
	l.dir("go", 0o777)
	if _, err := os.Stat("/" + certsPath); err == nil {
		l.dir("etc/ssl", 0o755)
		l.dir("etc/ssl/certs", 0o755)
		l.file(certsPath, "/"+certsPath, 0o644)
	}
	if err := addGo(ctx, l, func(string) bool { return false }); err != nil {
		return image{}, err
	}
	return image{
		name: builderName,
		config: v1.Config{
			Env:        []string{"PATH=/usr/local/go/bin:" + searchPath, "GOPATH=/go", "GOTOOLCHAIN=local", "HOME=/root"},
			WorkingDir: "/go", Cmd: []string{"/bin/sh"},
		},
		layer: l,
	}, nil
}

// addGo adds this machine's Go, without what skip names. Tests and documentation are most of its files and no part of a build.
func addGo(ctx context.Context, l *layer, skip func(relative string) bool) error {
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("finding Go: %w", err)
	}
	l.tree("usr/local/go", strings.TrimSpace(string(goroot)), func(name string) bool {
		return name == "test" || name == "doc" || name == "api" || strings.HasSuffix(name, "_test.go") || strings.Contains(name+"/", "/testdata/") ||
			skip(name)
	})
	return nil
}
