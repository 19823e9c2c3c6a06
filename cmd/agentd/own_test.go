package main

import (
	"io"
	"testing"
)

// A command that changes the modes of agentd's files neither stops the next agentd nor makes it forget what it saw.
func TestPodTakesItsFilesBack(t *testing.T) {
	p, c := startedPod(t, io.Discard)
	if output, code := execute(t, c, script("cd "+podRoot+"/journal && chmod 0 revision "+processJournal)); code != 0 {
		t.Fatalf("the command could not do it: %d, %s", code, output)
	}
	p.refusesOlderAfterKill(t)
}
