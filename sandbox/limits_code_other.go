//go:build !amd64 && !arm64

package sandbox

import (
	"errors"
	"runtime"
)

func limiterInstructions() ([]byte, error) {
	return nil, errors.New("there is no limiter for " + runtime.GOARCH)
}
