// Package layout holds the tests that keep the repository in the shape that its
// architecture promises: who may import whom, and that every package says what it is.
package layout
