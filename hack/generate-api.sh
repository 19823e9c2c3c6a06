#!/usr/bin/env bash
# Generates the deepcopy functions and the CRDs of api/, and copies the CRDs to the chart.
set -euo pipefail
cd "$(dirname "$0")/.."

crds="$(mktemp -d)"
trap 'rm -rf "$crds"' EXIT
go tool -modfile=hack/tools.mod controller-gen object paths=./api/...
go tool -modfile=hack/tools.mod controller-gen crd paths=./api/... "output:crd:dir=$crds"
go run ./config/crd/publish -from "$crds"
