package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// lockFile takes the lock of a file, making it if need be, and returns what releases it. The file is never removed:
// removing it would let two processes lock two files of one name.
func lockFile(ctx context.Context, name string, waiting func()) (func(), error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock: %w", err)
	}
	for tries := 0; ; tries++ {
		locked, err := tryLock(file)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", name, err), file.Close())
		}
		if locked {
			return func() { _ = file.Close() }, nil
		}
		// Every 8 seconds, so that a long wait is not a silent one.
		if tries%40 == 0 {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), file.Close())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
