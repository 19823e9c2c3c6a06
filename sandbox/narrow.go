package sandbox

import (
	"fmt"
	"slices"
	"strings"
)

// Narrowing is what one process does without of what its policy allows. A mode that is empty stays the policy's.
type Narrowing struct {
	Filesystem FilesystemMode
	Network    NetworkMode
}

// WiderError says that a narrowing asks for what the policy does not allow.
type WiderError struct {
	// Field is filesystem or network.
	Field string
	// Wanted is the mode that was asked for, and Allowed the policy's.
	Wanted, Allowed string
	// Narrower are the modes that could have been asked for, the policy's among them.
	Narrower []string
}

func (e *WiderError) Error() string {
	said := fmt.Sprintf("%s %s is not within the profile's %s", e.Field, e.Wanted, e.Allowed)
	if len(e.Narrower) > 1 {
		said += ", which holds " + strings.Join(e.Narrower, " and ")
	}
	return said
}

// narrowerFiles and narrowerNetworks say which modes a mode may be narrowed to, itself among them.
//
// Loopback and Proxy are not comparable: one reaches the pod's other servers and the other what the proxy lets pass.
// Nor does Open hold a Proxy: it has no list of what that should let pass.
var (
	narrowerFiles = map[FilesystemMode][]FilesystemMode{
		ReadOnly:       {ReadOnly},
		WorkspaceWrite: {ReadOnly, WorkspaceWrite},
		FullAccess:     {ReadOnly, WorkspaceWrite, FullAccess},
	}
	narrowerNetworks = map[NetworkMode][]NetworkMode{
		NoNetwork:       {NoNetwork},
		LoopbackNetwork: {NoNetwork, LoopbackNetwork},
		ProxyNetwork:    {NoNetwork, ProxyNetwork},
		OpenNetwork:     {NoNetwork, LoopbackNetwork, OpenNetwork},
	}
)

// Narrow gives the policy that allows what both the policy and the narrowing do. The error is a *FieldError for a mode
// that does not exist and a *WiderError for one that is not within the policy's.
//
// Where something narrower than the policy is wanted, all of it is wanted: BestEffort says how far the policy itself
// may be weakened by what a kernel lacks, and not a narrowing. So a narrowed policy is Required.
func Narrow(policy Policy, n Narrowing) (Policy, error) {
	files, err := narrowMode("filesystem", policy.Filesystem.Mode, n.Filesystem, narrowerFiles)
	if err != nil {
		return Policy{}, err
	}
	network, err := narrowMode("network", policy.Network.Mode, n.Network, narrowerNetworks)
	if err != nil {
		return Policy{}, err
	}
	if files == policy.Filesystem.Mode && network == policy.Network.Mode {
		return policy, nil
	}
	narrowed := policy
	narrowed.Enforcement = Required
	if files != policy.Filesystem.Mode {
		narrowed.Filesystem.Mode = files
		narrowed.Filesystem.WritableRoots = narrowedRoots(policy.Filesystem, files)
	}
	if network != policy.Network.Mode {
		narrowed.Network = Network{Mode: network}
	}
	return narrowed, nil
}

// narrowMode gives the wanted mode if the allowed one holds it.
func narrowMode[T ~string](field string, allowed, wanted T, narrower map[T][]T) (T, error) {
	if wanted == "" {
		return allowed, nil
	}
	if _, known := narrower[wanted]; !known {
		return "", checkOneOf("sandbox."+field, wanted, modesOf(narrower)...)
	}
	if slices.Contains(narrower[allowed], wanted) {
		return wanted, nil
	}
	wider := &WiderError{Field: field, Wanted: string(wanted), Allowed: string(allowed)}
	for _, mode := range narrower[allowed] {
		wider.Narrower = append(wider.Narrower, string(mode))
	}
	return "", wider
}

// modesOf are the modes, the narrowest first.
func modesOf[T ~string](narrower map[T][]T) []T {
	modes := make([]T, 0, len(narrower))
	for mode := range narrower {
		modes = append(modes, mode)
	}
	slices.SortFunc(modes, func(a, b T) int {
		if d := len(narrower[a]) - len(narrower[b]); d != 0 {
			return d
		}
		if a < b {
			return -1
		}
		return 1
	})
	return modes
}

// narrowedRoots are the writable roots under a narrower mode. FullAccess takes no notice of them, and keeps the
// kernel's folders from being written, which a root there would open.
func narrowedRoots(from Filesystem, to FilesystemMode) []string {
	if to == ReadOnly {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(from.WritableRoots), func(root string) bool {
		return slices.ContainsFunc(kernelFolders, func(folder string) bool { return within(root, folder) })
	})
}
