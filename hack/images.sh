#!/usr/bin/env bash
# Writes the product's image from bin/ and the example workspace's image, and loads both into the cluster. The tests'
# tools are an image of their own, which is made once: `tools` loads it, `write-tools` only makes it.
set -euo pipefail
cd "$(dirname "$0")/.."

# The programs of the workspaces come from Debian packages that only need unpacking.
go build -C hack/images -o ../../bin/tools/images .

case "${1:-load}" in
load | write)
  bin/tools/images product -manager bin/manager -agentd bin/agentd -o bin/images/execsession.tar
  bin/tools/images workspace -o bin/images/workspace.tar
  [ "${1:-load}" = write ] || go run ./hack/cluster load bin/images/execsession.tar bin/images/workspace.tar
  ;;
write-tools) bin/tools/images tools ;;
tools) go run ./hack/cluster load "$(bin/tools/images tools)" ;;
*) echo "usage: hack/images.sh [load|write|tools|write-tools]" >&2; exit 2 ;;
esac
