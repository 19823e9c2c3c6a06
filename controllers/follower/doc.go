// Package follower reads what agents say about themselves: the records that agentd
// writes to its container's log, by way of the API server.
//
// It is level-based: of each pod only the newest status counts, so a reader may come
// late, lose the stream or be replaced by another operator, and is right again with the
// last lines of the log. It never attaches: a client that attached and stalled would stop
// the container's log for everybody. A node serves about a hundred followers, and a
// follow that ends at once on a running container means that there are too many; so the
// number of follows is bounded, and where one does not last the log is polled, ever
// more slowly.
package follower
