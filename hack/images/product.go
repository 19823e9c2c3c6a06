package main

import (
	"debug/elf"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// productConfig is how the product's image runs. The Dockerfile says the same, and compare holds it to that.
var productConfig = v1.Config{
	Entrypoint: []string{"/manager"},
	User:       "65532:65532",
	WorkingDir: "/",
	Env:        []string{"PATH=/"},
}

// certsPath is one of the places where Go programs look for certificate authorities.
const certsPath = "etc/ssl/certs/ca-certificates.crt"

// product is the image of the operator. It is also mounted into workspaces as a volume, which is why the agent is at
// its root, and run by init containers under any uid.
func product(manager, agentd, certs string) (image, error) {
	for flag, name := range map[string]string{"-manager": manager, "-agentd": agentd} {
		if name == "" {
			return image{}, fmt.Errorf("the product's image needs %s", flag)
		}
		if err := checkStatic(name); err != nil {
			return image{}, err
		}
	}
	l := newLayer()
	l.file("manager", manager, 0o755)
	l.file("agentd", agentd, 0o755)
	if certs != "" {
		l.dir("etc", 0o755)
		l.dir("etc/ssl", 0o755)
		l.dir("etc/ssl/certs", 0o755)
		l.file(certsPath, certs, 0o644)
	}
	return image{name: productName, config: productConfig, layer: l}, nil
}

// checkStatic refuses a program that wants a loader, which an image from nothing has not; run there it fails with "no
// such file or directory" about a file that plainly exists.
func checkStatic(name string) error {
	file, err := elf.Open(name)
	if err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}
	defer func() { _ = file.Close() }()
	for _, program := range file.Progs {
		if program.Type == elf.PT_INTERP {
			return fmt.Errorf("reading %s: %w", name, errors.New("it is linked dynamically: build with CGO_ENABLED=0"))
		}
	}
	return nil
}
