package naming

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// MaxObjectName is the longest name of most objects.
	MaxObjectName = 253
	// maxPodName keeps a pod's name a valid host name as well; Kubernetes would cut that.
	maxPodName = 63
	hashDigits = 10
)

// Pod is the name of a session's pod and volume claim.
func Pod(session string) string {
	return Shorten("execsession-"+session, maxPodName)
}

// Shorten cuts a name that is too long and ends it in a hash of the whole.
func Shorten(name string, limit int) string {
	if len(name) <= limit {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	head := strings.TrimRight(name[:limit-hashDigits-1], "-.")
	return head + "-" + hex.EncodeToString(sum[:])[:hashDigits]
}
