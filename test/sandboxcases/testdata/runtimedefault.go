//go:build ignore

// Runtimedefault prints the filter that containerd gives a container without capabilities, as JSON. It is run in the module of the
// cluster's components, so that it is the filter of the very containerd that runs the cluster.
package main

import (
	"encoding/json"
	"log"
	"os"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func main() {
	spec := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}}
	if err := json.NewEncoder(os.Stdout).Encode(seccomp.DefaultProfile(spec)); err != nil {
		log.Fatal(err)
	}
}
