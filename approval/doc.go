// Package approval decides from a command and a policy whether it may run, with the
// reason. Decisions are pure functions of their input.
package approval
