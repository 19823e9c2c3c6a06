//go:build race

package main

// raceDetector makes programs many times slower, and lets them map more memory than any limit allows.
const raceDetector = true
