package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// debianPackage is a package and what shows that it, or something as good, is there.
type debianPackage struct {
	name    string
	present func() bool
}

// buildPackages are what compiling runc takes, nodePackages what the node's components call.
var (
	buildPackages = []debianPackage{
		{"gcc", onPath("gcc")},
		{"libc6-dev", filesExist("/usr/include/stdlib.h")},
		{"pkg-config", onPath("pkg-config")},
		{"libseccomp-dev", filesExist("/usr/include/seccomp.h")},
	}
	nodePackages = []debianPackage{
		{"containernetworking-plugins", filesExist(cniPlugins+"/bridge", cniPlugins+"/host-local", cniPlugins+"/portmap", cniPlugins+"/loopback")},
		{"iptables", onPath("iptables-restore", "ip6tables-restore")},
		{"conntrack", onPath("conntrack")},
		{"iproute2", onPath("ip")},
		{"ipset", onPath("ipset")},
		{"socat", onPath("socat")},
		{"libseccomp2", sharedLibrary("libseccomp.so.2")},
	}
)

func onPath(commands ...string) func() bool {
	return func() bool {
		return !slices.ContainsFunc(commands, func(command string) bool {
			_, err := exec.LookPath(command)
			return err != nil
		})
	}
}

// filesExist says that all the named files exist.
func filesExist(names ...string) func() bool {
	return func() bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			_, err := os.Stat(name)
			return err != nil
		})
	}
}

func sharedLibrary(name string) func() bool {
	return func() bool {
		for _, pattern := range []string{"/usr/lib/*/", "/lib/*/", "/usr/lib/", "/usr/lib64/"} {
			if found, _ := filepath.Glob(pattern + name); len(found) > 0 {
				return true
			}
		}
		return false
	}
}

// ensurePackages installs what is missing. The package lists are fetched only when the first try fails, because a
// fresh machine has none and any other has them.
func ensurePackages(ctx context.Context, p *progress, packages []debianPackage) error {
	var missing []string
	for _, pkg := range packages {
		if !pkg.present() {
			missing = append(missing, pkg.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	list := strings.Join(missing, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("missing on this machine: %s (names of Debian packages; there is no apt-get to install them)", list)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("missing on this machine: %s: run as root, or apt-get install them", list)
	}
	done := p.Begin("installing %s", list)
	err := aptInstall(ctx, missing)
	if err != nil && ctx.Err() == nil {
		if err = apt(ctx, "update"); err == nil {
			err = aptInstall(ctx, missing)
		}
	}
	done(err)
	return err
}

func aptInstall(ctx context.Context, names []string) error {
	return apt(ctx, append([]string{"install", "-y", "--no-install-recommends"}, names...)...)
}

func apt(ctx context.Context, args ...string) error {
	// Another apt on the machine, an unattended upgrade say, holds a lock for a while.
	args = append([]string{"DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-o", "DPkg::Lock::Timeout=120"}, args...)
	return run(ctx, "env", args...)
}
