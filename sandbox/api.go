package sandbox

import "errors"

// Default is the narrow policy that holds where nobody gave one: write in the
// workspace only, no network, and nothing runs unless all of it is enforced.
func Default() Policy {
	return Policy{
		Filesystem:  Filesystem{Mode: WorkspaceWrite},
		Network:     Network{Mode: NoNetwork},
		Enforcement: Required,
	}
}

// ParsePolicy reads a policy from JSON strictly: unknown fields, trailing data and
// unacceptable values are errors.
func ParsePolicy(data []byte) (Policy, error) { return Policy{}, errors.ErrUnsupported }

// Validate returns a *FieldError for the first value that is not acceptable.
func (p Policy) Validate() error { return nil }

// Probe asks the kernel what it offers. It changes nothing.
func Probe() Capabilities { return Capabilities{} }

// ProtectSelf makes the calling process harder to reach for the commands it
// starts: not dumpable, no core dumps, every descriptor above 2 close-on-exec.
func ProtectSelf() error { return errors.ErrUnsupported }

// DropCapabilities gives up every capability of the whole process, all threads,
// for good. Call it before anything is started when running as root.
func DropCapabilities() error { return errors.ErrUnsupported }
