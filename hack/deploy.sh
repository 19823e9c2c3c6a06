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

# The cluster of hack/cluster has an agent that enforces network policies, and its DNS server runs on the node.
network=()
if [ "${CLUSTER:-}" != current ]; then
  node="$(kubectl get nodes -o 'jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}')"
  network=(--set networkPolicyEnforced=true --set "dnsCIDRs={$node/32}")
fi

# An upgrade that was killed half-way leaves a lock that helm never takes back. With the machine's own lock held, a
# pending operation in the machine's own cluster is such a one.
exec 9>"${TMPDIR:-/tmp}/execsession-deploy.lock"
flock 9
if [ "${CLUSTER:-}" != current ]; then
  case "$(helm status execsession -n execsession-system -o json 2>/dev/null | grep -o '"status":"[a-z-]*"' | head -1)" in
  *pending-install*) helm uninstall execsession -n execsession-system --wait >/dev/null ;;
  *pending-*) helm rollback execsession -n execsession-system --wait >/dev/null ;;
  esac
fi

# The image keeps its name while its content changes, so its digest makes new pods.
digest="$(sha256sum bin/images/execsession.tar | cut -c1-16)"
helm upgrade --install execsession charts/execsession \
  --namespace execsession-system --create-namespace --wait --timeout 3m \
  --set-string "podAnnotations.execsession\.dev/image-archive=$digest" "${network[@]}" "$@" >/dev/null
kubectl -n execsession-system rollout status deployment/execsession --timeout=2m
