#!/usr/bin/env bash
# Runs every test, those that need a cluster against a real one, and ends with the runner's summary: what passed,
# failed, and was skipped with its reason. Arguments go to `go test`.
set -euo pipefail
cd "$(dirname "$0")/.."

# The packages of the tests' tools are fetched while the cluster's components compile.
mkdir -p bin
hack/images.sh write-tools >bin/tools.log 2>&1 &
tools=$!
make cluster-up
eval "$(go run ./hack/cluster env)"
wait "$tools" || { cat bin/tools.log >&2; exit 1; }
hack/images.sh tools
hack/images.sh
hack/deploy.sh

export EXECSESSION_E2E_KUBECONFIG="$PWD/bin/cluster/admin.conf"
export EXECSESSION_E2E_BIN="$PWD/bin"

test/dockerfile/run.sh
go test -C hack/images ./...
# As static as agentd is, and under every policy: with the race detector one policy takes as long as all do here.
CGO_ENABLED=0 go test ./sandbox
runner=bin/tools/gotestsum
go build -modfile=hack/tools.mod -o "$runner" gotest.tools/gotestsum
CGO_ENABLED=1 "$runner" --format pkgname -- -race -timeout 20m "$@" ./...
