// Package capability finds out what a cluster can do, by trying it or by what nodes
// say of themselves, never by version numbers.
package capability
