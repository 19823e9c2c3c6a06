package sandbox

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxPath is the kernel's bound on a path, its terminating NUL included.
const maxPath = 4096

// Default is the narrow policy that holds where nobody gave one: write in the
// workspace only, no network, and nothing runs unless all of it is enforced.
func Default() Policy {
	return Policy{
		Filesystem:  Filesystem{Mode: WorkspaceWrite},
		Network:     Network{Mode: NoNetwork},
		Enforcement: Required,
	}
}

// Validate returns a *FieldError for the first value that is not acceptable.
func (p Policy) Validate() error {
	checks := []error{
		checkOneOf("filesystem.mode", p.Filesystem.Mode, ReadOnly, WorkspaceWrite, FullAccess),
		checkOneOf("network.mode", p.Network.Mode, NoNetwork, LoopbackNetwork, ProxyNetwork, OpenNetwork),
		checkOneOf("enforcement", p.Enforcement, Required, BestEffort),
		p.Filesystem.validate(),
		p.Network.validate(),
		p.Process.validate(),
		checkABI(p.MinLandlockABI),
	}
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}

func (f Filesystem) validate() error {
	lists := []struct {
		field string
		paths []string
	}{
		{"filesystem.writableRoots", f.WritableRoots},
		{"filesystem.readOnlyPaths", f.ReadOnlyPaths},
		{deniedPaths, f.DeniedPaths},
	}
	for i, path := range f.DeniedPaths {
		if reason := checkPattern(path); isPattern(path) && reason != "" {
			return &FieldError{Field: fmt.Sprintf("%s[%d]", deniedPaths, i), Value: path, Reason: reason}
		}
	}
	for _, list := range lists {
		for i, path := range list.paths {
			field := fmt.Sprintf("%s[%d]", list.field, i)
			if err := checkPath(field, path); err != nil {
				return err
			}
			if path == "/" {
				return &FieldError{Field: field, Value: path, Reason: "the whole file system is chosen by filesystem.mode"}
			}
		}
	}
	if f.Mode == ReadOnly && len(f.WritableRoots) > 0 {
		return &FieldError{Field: "filesystem.writableRoots[0]", Value: f.WritableRoots[0], Reason: "mode ReadOnly has no writable roots"}
	}
	return nil
}

// validate refuses what would be ignored: who lists domains means that they count.
func (n Network) validate() error {
	if n.Mode == ProxyNetwork {
		return nil
	}
	for _, field := range []struct {
		name  string
		value []string
	}{{"allowedDomains", n.AllowedDomains}, {"deniedDomains", n.DeniedDomains}} {
		if len(field.value) > 0 {
			return &FieldError{Field: "network." + field.name + "[0]", Value: field.value[0], Reason: "only mode Proxy looks at domains"}
		}
	}
	if n.Methods != "" {
		return &FieldError{Field: "network.methods", Value: n.Methods, Reason: "only mode Proxy looks at methods"}
	}
	return nil
}

func (p Process) validate() error {
	if err := p.validateLimits(); err != nil {
		return err
	}
	for i, name := range p.DeniedSyscalls {
		field := fmt.Sprintf("process.deniedSyscalls[%d]", i)
		if _, known := syscalls[name]; !known {
			return &FieldError{Field: field, Value: name, Reason: "neither amd64 nor arm64 has a system call of that name"}
		}
		if slices.Contains(launchSyscalls, name) {
			return &FieldError{Field: field, Value: name, Reason: "starting a process needs this system call"}
		}
	}
	return nil
}

func (l Layout) validate() error {
	if err := checkPath("layout.workspace", l.Workspace); err != nil {
		return err
	}
	for i, path := range l.Writable {
		if err := checkPath(fmt.Sprintf("layout.writable[%d]", i), path); err != nil {
			return err
		}
	}
	for i, path := range l.Hidden {
		if err := checkPath(fmt.Sprintf("layout.hidden[%d]", i), path); err != nil {
			return err
		}
	}
	if l.Proxy.IsValid() && (!l.Proxy.Addr().Unmap().IsLoopback() || l.Proxy.Port() == 0) {
		return &FieldError{Field: "layout.proxy", Value: l.Proxy.String(), Reason: "must be a loopback address with a port"}
	}
	return nil
}

func checkOneOf[T ~string](field string, value T, allowed ...T) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	names := make([]string, len(allowed))
	for i, name := range allowed {
		names[i] = string(name)
	}
	return &FieldError{Field: field, Value: string(value), Reason: "must be one of " + strings.Join(names, ", ")}
}

func checkPath(field, path string) error {
	reason := ""
	switch {
	case path == "":
		reason = "must not be empty"
	case strings.ContainsRune(path, 0):
		reason = "must not hold a NUL byte"
	case len(path) >= maxPath:
		reason = fmt.Sprintf("must be shorter than %d bytes", maxPath)
	case !filepath.IsAbs(path):
		reason = "must be an absolute path"
	case filepath.Clean(path) != path:
		reason = fmt.Sprintf("must be a clean path, such as %q", filepath.Clean(path))
	}
	if reason == "" {
		return nil
	}
	return &FieldError{Field: field, Value: path, Reason: reason}
}

func checkABI(abi int) error {
	if abi >= 0 && abi <= newestABI {
		return nil
	}
	return &FieldError{Field: "minLandlockABI", Value: strconv.Itoa(abi), Reason: fmt.Sprintf("must be from 0 to %d", newestABI)}
}
