package sandbox

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// taken is a place that the policy takes rights away from.
type taken struct {
	// list, index and value are where the policy says so.
	list  string
	index int
	value string
	// denied takes reading away too.
	denied bool
	// place is where the path leads, and links lie on the way there.
	place string
	links []string
}

const (
	deniedPaths   = "filesystem.deniedPaths"
	readOnlyPaths = "filesystem.readOnlyPaths"
)

func (t taken) field() string { return fmt.Sprintf("%s[%d]", t.list, t.index) }

// fileRules are what the policy's paths come to.
type fileRules struct {
	// roots can be written.
	roots []string
	// denied and readOnly are left out of what is granted, as the agent's own hidden places are.
	hidden, denied, readOnly []string
}

func (r fileRules) closed() []string { return slices.Concat(r.hidden, r.denied) }

// planFiles turns the policy's paths into grants.
func (p *plan) planFiles(policy Policy, layout Layout) error {
	if err := checkFolder("layout.workspace", layout.Workspace); err != nil {
		return err
	}
	hidden := realPaths(layout.Hidden)
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
		roots = []string{"/"}
	}
	literal := literalPlaces(policy)
	roots = p.rootsOutside(literal, roots)
	matches, err := p.matches(policy, roots)
	if err != nil {
		return err
	}
	places := slices.Concat(literal, matches)
	for _, t := range places {
		if t.denied && within(layout.Workspace, t.place) {
			return &FieldError{Field: t.field(), Value: t.value, Reason: "holds the workspace"}
		}
	}
	rules := p.takeAway(places, roots)
	rules.hidden = hidden
	if policy.Filesystem.Mode == FullAccess {
		return p.grantFullAccess(rules)
	}
	return p.grantReadAndRoots(rules)
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

// literalPlaces are where the read-only and the denied paths lead, but for patterns.
func literalPlaces(policy Policy) []taken {
	var places []taken
	for i, path := range policy.Filesystem.ReadOnlyPaths {
		t := taken{list: readOnlyPaths, index: i, value: path}
		t.place, t.links = follow(path)
		places = append(places, t)
	}
	for i, path := range policy.Filesystem.DeniedPaths {
		if isPattern(path) {
			continue
		}
		t := taken{list: deniedPaths, index: i, value: path, denied: true}
		t.place, t.links = follow(path)
		places = append(places, t)
	}
	return places
}

// matches are what the patterns among the denied paths match now. A pattern takes nothing away
// where commands, or the kernel, can make a match at any time.
func (p *plan) matches(policy Policy, roots []string) ([]taken, error) {
	var places []taken
	for i, path := range policy.Filesystem.DeniedPaths {
		if !isPattern(path) {
			continue
		}
		t := taken{list: deniedPaths, index: i, value: path, denied: true}
		found, err := expand(path, roots)
		if err != nil {
			return nil, &FieldError{Field: t.field(), Value: path, Reason: err.Error()}
		}
		if found.unsure != "" {
			p.gap(t.list, path, found.unsure)
		}
		p.note("%s %q was looked up when the policy came into force (matches: %d); what others than commands make later is not closed by it", t.list, path, len(found.places))
		for _, t.place = range found.places {
			places = append(places, t)
		}
	}
	return places, nil
}

// takeAway decides how each place is protected. Outside of the roots nothing is granted but reading,
// so that leaving a place out of the grants is enough. Below a root, Landlock has no rule that takes
// rights away again; what holds there is a mount that the kernel itself keeps.
func (p *plan) takeAway(places []taken, roots []string) fileRules {
	rules := fileRules{roots: p.rootsOutside(places, roots)}
	for _, t := range places {
		if link := movableLink(t.links, rules.roots); link != "" {
			p.gap(t.list, t.value, fmt.Sprintf("passes through the symbolic link %q, which commands can turn elsewhere", link))
			continue
		}
		if t.place != terminalFolder && within(t.place, terminalFolder) {
			p.gap(t.list, t.value, "lies in a folder where terminals come and go")
			continue
		}
		root := inOneOf(rules.roots, t.place)
		if root != "" && p.heldByMount(root, t) {
			continue
		}
		switch {
		case root != "" && !heldByPermissions(root, t.place):
			p.gap(t.list, t.value, fmt.Sprintf("lies below %q, where commands write, and %s; a mount that protects it is made with the pod, which has to be made again if the path was added later",
				root, whyNoMount(root, t)))
		case t.denied:
			rules.denied = append(rules.denied, t.place)
		default:
			rules.readOnly = append(rules.readOnly, t.place)
		}
	}
	return rules
}

// rootsOutside drops the roots that lie in a denied or a read-only path: what takes away wins.
func (p *plan) rootsOutside(places []taken, roots []string) []string {
	return slices.DeleteFunc(roots, func(root string) bool {
		for _, t := range places {
			if within(root, t.place) {
				p.note("the folder %q is not writable, because %q takes that away", root, t.value)
				return true
			}
		}
		return false
	})
}

// movableLink returns the first of the links that lies where commands can put another.
func movableLink(links, roots []string) string {
	for _, link := range links {
		if root := inOneOf(roots, link); root != "" && !heldByPermissions(root, link) {
			return link
		}
	}
	return ""
}

// heldByMount says, and notes, that a mount protects a place below a root.
func (p *plan) heldByMount(root string, t taken) bool {
	if whyNoMount(root, t) != "" {
		return false
	}
	if t.denied {
		p.note("%s %q is hidden behind an empty read-only mount", t.list, t.value)
		return true
	}
	p.note("%s %q is a read-only mount: changing it fails with EROFS, renaming or removing it with EBUSY", t.list, t.value)
	return true
}

// whyNoMount says why commands could change a place below a root, or put another thing
// there, "" if mounts prevent it. A mount point can neither be renamed nor removed; a folder on the
// way to one can, unless it is one too.
func whyNoMount(root string, t taken) string {
	held := false // by a read-only mount further up
	for dir := range foldersTo(root, t.place) {
		at, err := lookAt(dir)
		switch {
		case err != nil:
			return fmt.Sprintf("%q cannot be looked at: %v", dir, err)
		case !at.exists && held:
			return ""
		case !at.exists:
			return fmt.Sprintf("%q does not exist, so that commands can make it", dir)
		case dir != root && !held && !at.mountPoint:
			return fmt.Sprintf("%q is not a mount that would keep commands from replacing it", dir)
		}
		held = at.readOnly
	}
	if !held {
		return "is not a read-only mount"
	}
	return whyNotSealed(t)
}

// whyNotSealed looks at what lies below a place on a read-only mount.
func whyNotSealed(t taken) string {
	below, err := mountsBelow(t.place)
	if err != nil {
		return fmt.Sprintf("its mounts cannot be read: %v", err)
	}
	for _, dir := range below {
		if at, err := lookAt(dir); err != nil || at.exists && !at.readOnly {
			return fmt.Sprintf("holds the mount %q, which is not read-only", dir)
		}
	}
	if t.denied && !isEmptyFolder(t.place) {
		return "is not an empty folder, which is all that a mount can hide something behind"
	}
	return ""
}

// heldByPermissions says that nobody without other rights than ours can make or rename anything
// in a folder from root down to the one that holds path. Then those folders may be granted
// entry by entry, and commands lose nothing that they could do.
func heldByPermissions(root, path string) bool {
	for dir := range foldersTo(root, filepath.Dir(path)) {
		if mayChange(dir) {
			return false
		}
	}
	return true
}

// foldersTo yields root, the folders below it on the way to path, and path.
func foldersTo(root, path string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		if !within(path, root) || !yield(root) {
			return
		}
		dir := root
		for name := range strings.SplitSeq(strings.TrimPrefix(path, root), "/") {
			if name == "" {
				continue
			}
			if dir = filepath.Join(dir, name); !yield(dir) {
				return
			}
		}
	}
}
