//go:build linux && !amd64

package main

// archAttempts is empty: the other processors have no second table that a program could reach.
var archAttempts = map[string]func() error{}

func int80Program() []byte { return nil }
