#!/usr/bin/env bash
# Writes the product's image from bin/ and the example workspace's image, and loads both into the cluster.
set -euo pipefail
cd "$(dirname "$0")/.."

# The workspace's programs come from Debian packages that only need unpacking.
go build -C hack/images -o ../../bin/tools/images .
bin/tools/images product -manager bin/manager -agentd bin/agentd -o bin/images/execsession.tar
bin/tools/images workspace -o bin/images/workspace.tar

case "${1:-load}" in
load) go run ./hack/cluster load bin/images/execsession.tar bin/images/workspace.tar ;;
write) ;;
*) echo "usage: hack/images.sh [load|write]" >&2; exit 2 ;;
esac
