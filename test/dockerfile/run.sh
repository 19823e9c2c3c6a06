#!/bin/sh
# Builds the Dockerfile with buildah and checks that the image runs as the one of hack/images does. Nothing is pulled
# and nothing downloaded inside: the builder image is made of this machine's Go, and the module and build caches are
# the machine's. Takes the checkout to build as its only argument, which defaults to this one.
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
checkout=$(cd "${1:-$here}" && pwd)

say() { echo "dockerfile: $*" >&2; }

if [ "$(id -u)" != 0 ]; then
    say "needs root, for buildah"
    exit 1
fi
if ! command -v buildah >/dev/null; then
    say "installing buildah"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -q install -y --no-install-recommends buildah >/dev/null 2>&1 ||
        { apt-get -q update >/dev/null && apt-get -q install -y --no-install-recommends buildah >/dev/null; }
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
images=$work/images
go build -C "$here/hack/images" -o "$images" .

# Its own store, so that no image of the machine is touched, and no driver that needs a mount.
buildah() { command buildah --root "$work/store" --runroot "$work/run" --storage-driver vfs "$@"; }

say "making a builder image of $(go env GOVERSION)"
"$images" builder -o "$work/builder.tar"
# Without a policy file buildah trusts no archive, not even its own.
printf '{"default": [{"type": "insecureAcceptAnything"}]}\n' >"$work/policy.json"
buildah pull --quiet --signature-policy "$work/policy.json" "docker-archive:$work/builder.tar" >/dev/null
rm "$work/builder.tar"

say "building the Dockerfile of $checkout"
(cd "$checkout" && go mod download)
buildah bud --isolation chroot --signature-policy "$work/policy.json" --pull-never \
    --build-arg GO_IMAGE=execsession.dev/go-builder:dev --build-arg GOPROXY=off \
    --volume "$(go env GOMODCACHE):/go/pkg/mod" --volume "$(go env GOCACHE):/root/.cache/go-build" \
    --tag execsession.dev/execsession:dockerfile "$checkout" >&2
buildah push --quiet --signature-policy "$work/policy.json" execsession.dev/execsession:dockerfile \
    "docker-archive:$work/dockerfile.tar:execsession.dev/execsession:dev"

say "comparing with the image of hack/images"
(cd "$checkout" && CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags grpcnotrace -ldflags="-s -w" -o "$work/" ./cmd/manager ./cmd/agentd)
"$images" product -manager "$work/manager" -agentd "$work/agentd" -o "$work/product.tar"
"$images" compare "$work/product.tar" "$work/dockerfile.tar"
