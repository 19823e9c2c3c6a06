#!/usr/bin/env bash
# From a Debian machine with Go to the output of a command that ran in a session's pod.
#
# It boots its own cluster and touches no other. With CLUSTER=current it uses the cluster of KUBECONFIG instead, and
# asks for a way to get images there: REGISTRY (a registry the nodes can pull from and this machine can push to) or
# LOAD (a command that gets each image archive as its last argument).
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n==> %s\n' "$*"; }
die() { echo "demo: $*" >&2; exit 1; }

command -v go >/dev/null || die "Go 1.26 or newer is the one thing that must be installed, and there is no go on the PATH"

helm_args=()
example=examples/hello.yaml
if [ "${CLUSTER:-}" = current ]; then
  if [ -z "${REGISTRY:-}" ] && [ -z "${LOAD:-}" ]; then
    die "CLUSTER=current needs a way to get images to the cluster of KUBECONFIG: set REGISTRY=registry.example/team
      (this machine pushes there, the nodes pull from there), or LOAD='kind load image-archive' or the like"
  fi
  given="${KUBECONFIG:-}"
  eval "$(go run ./hack/cluster env)"
  if [ -n "$given" ]; then export KUBECONFIG="$given"; else unset KUBECONFIG; fi
  kubectl version --request-timeout=10s >/dev/null 2>&1 || die "the cluster of KUBECONFIG=${KUBECONFIG:-~/.kube/config} does not answer"
  say "Using the cluster of context $(kubectl config current-context)"
  make build
  hack/images.sh write
  if [ -n "${REGISTRY:-}" ]; then
    say "Pushing the images to $REGISTRY"
    bin/tools/images push bin/images/execsession.tar "$REGISTRY/execsession:dev"
    bin/tools/images push bin/images/workspace.tar "$REGISTRY/workspace:dev"
    helm_args=(--set-string "image.repository=$REGISTRY/execsession" --set-string image.tag=dev --set-string "workspaceImage=$REGISTRY/workspace:dev")
    example=bin/hello.yaml
    sed "s#execsession.dev/workspace:dev#$REGISTRY/workspace:dev#" examples/hello.yaml >"$example"
  else
    say "Loading the images with: $LOAD"
    $LOAD bin/images/execsession.tar
    $LOAD bin/images/workspace.tar
  fi
else
  [ "$(uname -s)" = Linux ] || die "booting a cluster needs Linux; this is $(uname -s) (CLUSTER=current uses the cluster of KUBECONFIG)"
  [ "$(id -u)" = 0 ] || die "booting a cluster needs root (CLUSTER=current uses the cluster of KUBECONFIG)"
  say "Building and booting a one-node cluster (16 minutes the first time on two idle cores, then cached)"
  make cluster-up
  eval "$(go run ./hack/cluster env)"
  say "Building the images"
  make images
fi

say "Installing the operator"
hack/deploy.sh "${helm_args[@]}"

say "Starting the session of $example"
kubectl apply -f "$example"
kubectl wait --for=condition=AgentReady xs/hello --timeout=120s

export PATH="$PWD/bin:$PATH"
say "kubectl execsession run hello -- sh -c 'echo hello from \$(hostname); grep -E \"NoNewPrivs|Seccomp:\" /proc/self/status'"
kubectl execsession run hello -- sh -c 'echo hello from $(hostname); grep -E "NoNewPrivs|Seccomp:" /proc/self/status'

cat <<TRY

Try next:
  export KUBECONFIG=${KUBECONFIG:-~/.kube/config} PATH=$PWD/bin:\$PATH
  kubectl get xs
  kubectl execsession run -i -t hello -- bash
  kubectl execsession exec hello '{"cmd":"sleep 3; echo late","yield_time_ms":300}'
  kubectl execsession ps hello
  kubectl describe xs/hello
  kubectl delete -f $example
TRY
