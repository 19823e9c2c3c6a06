//go:build !amd64 && !arm64

package sandbox

import "time"

// heldTasks cannot be held on this processor: there is always said to be room.
type heldTasks struct{}

const firstEnd = 20 * time.Millisecond

func (h *heldTasks) hold(int) bool { return true }

func (h *heldTasks) releaseOne() {}

func (h *heldTasks) release() {}
