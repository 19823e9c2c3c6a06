#!/usr/bin/env bash
# Installs or upgrades the chart in the cluster of hack/cluster, or in the current one with CLUSTER=current.
# Further arguments go to helm.
set -euo pipefail
cd "$(dirname "$0")/.."

given="${KUBECONFIG:-}"
eval "$(go run ./hack/cluster env)"
if [ "${CLUSTER:-}" = current ]; then
  if [ -n "$given" ]; then export KUBECONFIG="$given"; else unset KUBECONFIG; fi
fi

# The image keeps its name while its content changes, so its digest makes new pods.
digest="$(sha256sum bin/images/execsession.tar | cut -c1-16)"
helm upgrade --install execsession charts/execsession \
  --namespace execsession-system --create-namespace --wait --timeout 3m \
  --set-string "podAnnotations.execsession\.dev/image-archive=$digest" "$@" >/dev/null
kubectl -n execsession-system rollout status deployment/execsession --timeout=2m
