//go:build race

package sandbox

// raceDetector makes a program start a hundred times slower.
const raceDetector = true
