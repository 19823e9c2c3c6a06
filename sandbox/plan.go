package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
)

// grant gives rights to a path and, if it is a folder, to everything below it.
type grant struct {
	path   string
	rights landlock.AccessFSSet
}

// plan is a policy turned into rules, before the kernel sees them.
type plan struct {
	abi     int
	network NetworkMode
	// proxy is set with ProxyNetwork.
	proxy  netip.AddrPort
	grants []grant
	rules  []rule
	gaps   []Gap
	notes  []string
}

func (p *plan) gap(field, value, reason string) {
	p.gaps = append(p.gaps, Gap{Field: field, Value: value, Reason: reason})
}

func (p *plan) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// newPlan decides everything that Compile decides. It reads the file system, but
// changes and opens nothing.
func newPlan(policy Policy, layout Layout, caps Capabilities, inherited func(limit int) (uint64, error)) (*plan, error) {
	p := &plan{abi: effectiveABI(caps), network: policy.Network.Mode}
	p.planKernel(policy, caps)
	p.planNetwork(policy, layout, caps)
	if err := p.planLimits(policy, inherited); err != nil {
		return nil, err
	}
	if err := p.planFiles(policy, layout); err != nil {
		return nil, err
	}
	p.rules = filterRules(policy, p.network, p.abi)
	return p, nil
}

func (p *plan) planKernel(policy Policy, caps Capabilities) {
	for _, level := range missingLevels(p.abi) {
		if level.gap != "" {
			p.gap("landlockABI", strconv.Itoa(p.abi), level.gap)
		}
		if level.note != "" {
			p.notes = append(p.notes, level.note)
		}
	}
	if p.abi < policy.MinLandlockABI {
		p.gap("minLandlockABI", strconv.Itoa(policy.MinLandlockABI), fmt.Sprintf("the kernel has Landlock ABI %d", p.abi))
	}
	if !caps.NoNewPrivs {
		p.gap("noNewPrivs", "false", "the kernel cannot set no_new_privs, without which neither Landlock nor a filter can be used")
	}
	if !caps.Seccomp {
		p.gap("seccomp", "false", "the kernel or the container refuses filters, so that no rule about the network or system calls holds")
		return
	}
	switch {
	case caps.NotifyTaken:
		p.note("denials are not observed: a supervisor above this process has taken the kernel's only place for one; the filter refuses the same calls itself")
	case !caps.UserNotify:
		p.note("denials are not observed: the kernel has no supervisor for filters; the filter refuses the same calls itself")
	}
}

// planLimits accepts a limit only where the agent already lives under it: children
// inherit that, and cannot raise it. Setting one on a process that already runs is a race
// with its first fork, and setting the agent's own for a moment would hit the agent.
func (p *plan) planLimits(policy Policy, inherited func(limit int) (uint64, error)) error {
	for _, name := range slices.Sorted(maps.Keys(policy.Process.Limits)) {
		wanted := policy.Process.Limits[name]
		have, err := inherited(limits[name])
		if err != nil {
			return fmt.Errorf("reading limit %q: %w", name, err)
		}
		if have > wanted {
			p.gap("process.limits."+name, strconv.FormatUint(wanted, 10), "not enforceable by this version; it holds only if the agent itself is started under it")
		}
	}
	return nil
}

// planFiles turns the policy's paths into grants.
func (p *plan) planFiles(policy Policy, layout Layout) error {
	if err := checkFolder("layout.workspace", layout.Workspace); err != nil {
		return err
	}
	hidden, denied := realPaths(layout.Hidden), p.deniedPaths(policy)
	for i, path := range denied {
		if path != "" && within(layout.Workspace, path) {
			return &FieldError{Field: fmt.Sprintf("filesystem.deniedPaths[%d]", i), Value: policy.Filesystem.DeniedPaths[i], Reason: "holds the workspace"}
		}
	}
	for i, place := range hidden {
		if within(layout.Workspace, place) {
			return &FieldError{Field: fmt.Sprintf("layout.hidden[%d]", i), Value: layout.Hidden[i], Reason: "holds the workspace"}
		}
	}
	roots, err := p.writableRoots(policy, layout, hidden)
	if err != nil {
		return err
	}
	if policy.Filesystem.Mode == FullAccess {
		p.refuseBelow(policy, []string{"/"})
		return p.grantFullAccess(hidden)
	}
	roots = p.withoutDenied(policy, roots, denied)
	p.refuseBelow(policy, roots)
	return p.grantReadAndRoots(roots, slices.Concat(hidden, denied))
}

// deniedPaths are the real places of the policy's denied paths, "" for one that is not understood.
func (p *plan) deniedPaths(policy Policy) []string {
	places := realPaths(policy.Filesystem.DeniedPaths)
	for i, path := range policy.Filesystem.DeniedPaths {
		if strings.ContainsAny(path, "*?[") {
			p.gap("filesystem.deniedPaths", path, "patterns are not enforceable by this version")
			places[i] = ""
		}
	}
	return places
}

// writableRoots are the folders that may be written, each checked against what protects the agent.
func (p *plan) writableRoots(policy Policy, layout Layout, hidden []string) ([]string, error) {
	if policy.Filesystem.Mode == ReadOnly {
		return nil, nil
	}
	candidates := []struct{ field, path string }{{"layout.workspace", layout.Workspace}}
	for i, path := range layout.Writable {
		candidates = append(candidates, struct{ field, path string }{fmt.Sprintf("layout.writable[%d]", i), path})
	}
	for i, path := range policy.Filesystem.WritableRoots {
		candidates = append(candidates, struct{ field, path string }{fmt.Sprintf("filesystem.writableRoots[%d]", i), path})
	}
	var roots []string
	for _, c := range candidates {
		for _, place := range hidden {
			if within(c.path, place) || within(place, c.path) {
				return nil, &FieldError{Field: c.field, Value: c.path, Reason: fmt.Sprintf("overlaps %q, which protects the agent", place)}
			}
		}
		if err := checkLinkFree(c.path); err != nil {
			p.note("%s %q grants nothing: %v", c.field, c.path, err)
			continue
		}
		if !slices.Contains(roots, c.path) {
			roots = append(roots, c.path)
		}
	}
	return roots, nil
}

// withoutDenied drops the roots that lie in a denied or a read-only path: what takes away wins.
func (p *plan) withoutDenied(policy Policy, roots, denied []string) []string {
	takers := slices.Concat(denied, realPaths(policy.Filesystem.ReadOnlyPaths))
	return slices.DeleteFunc(roots, func(root string) bool {
		for _, taker := range takers {
			if taker != "" && within(root, taker) {
				p.note("the folder %q is not writable, because %q takes that away", root, taker)
				return true
			}
		}
		return false
	})
}

// refuseBelow reports what the policy takes away below a writable root. Landlock
// has no rule that takes away; granting the neighbours one by one would, but then nothing
// could be created beside them, which breaks every build.
func (p *plan) refuseBelow(policy Policy, roots []string) {
	lists := []struct {
		field string
		paths []string
	}{
		{"filesystem.readOnlyPaths", policy.Filesystem.ReadOnlyPaths},
		{"filesystem.deniedPaths", policy.Filesystem.DeniedPaths},
	}
	for _, list := range lists {
		for i, place := range realPaths(list.paths) {
			for _, root := range roots {
				if within(place, root) {
					p.gap(list.field, list.paths[i], fmt.Sprintf("lies below %q, which is writable; this version cannot take rights away below a writable folder", root))
					break
				}
			}
		}
	}
}

// checkFolder checks what must exist.
func checkFolder(field, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &FieldError{Field: field, Value: path, Reason: "does not exist"}
	case err != nil:
		return fmt.Errorf("looking at %s: %w", field, err)
	}
	if err := checkLinkFree(path); err != nil {
		return &FieldError{Field: field, Value: path, Reason: err.Error()}
	}
	if !info.IsDir() {
		return &FieldError{Field: field, Value: path, Reason: "is not a folder"}
	}
	return nil
}

var errLink = errors.New("passes through a symbolic link")

// checkLinkFree says why a path would grant nothing. The rule itself is opened
// without following links again, so that a swap in between grants nothing either.
func checkLinkFree(path string) error {
	resolved, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("does not exist")
	}
	if err != nil {
		return err
	}
	if resolved != path {
		return errLink
	}
	return nil
}

// realPaths resolves links as far as the paths exist.
func realPaths(paths []string) []string {
	places := make([]string, len(paths))
	for i, path := range paths {
		places[i] = realPath(path)
	}
	return places
}

func realPath(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(realPath(parent), filepath.Base(path))
}

// within says that path is dir or lies below it.
func within(path, dir string) bool {
	if path == dir || dir == "/" {
		return true
	}
	return strings.HasPrefix(path, dir+"/")
}
