// Package sandbox says what a process may touch, starts processes confined by
// Landlock and seccomp, and reports what was enforced and what was denied.
package sandbox
