// Images writes the repository's container images as archives, without a daemon, a registry or root, and with the same
// bytes for the same input: every timestamp is fixed.
//
//	images product -manager FILE -agentd FILE -o ARCHIVE   the operator and the agent
//	images workspace -o ARCHIVE                            a small workspace for examples and tests
//	images builder -o ARCHIVE                              a Go image for the Dockerfile, out of this machine's Go
//	images tools                                           git, Python, Node, Go, PostgreSQL and more for tests, in the cache
//	images compare ARCHIVE OTHER                           whether two archives hold images that run alike
//	images push ARCHIVE NAME                               uploads an image to a registry, for clusters that have one
//
// The archives have the format of docker save, which containerd, docker and buildah all read. The images' own
// names look like a registry's because tools insist; nothing is ever pulled from there.
//
// It is a module of its own so that what it needs stays out of the product's go.mod.
package main
