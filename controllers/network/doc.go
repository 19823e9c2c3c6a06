// Package network knows which addresses are the cluster's own and makes the NetworkPolicy
// of a session's pod.
//
// [Cluster] finds the addresses: what the operator is told, and of the rest what the API
// server knows. The proxy of a session guards them (they are part of the signed profile,
// see [Ranges.Guarded]), and [Policy] leaves them out.
//
// A NetworkPolicy is the outer fence of a pod: it holds for every process in it, also for
// one that got out of its sandbox. It knows no names, so in mode Proxy it lets through
// what the proxy could be asked for at most. What it never does is to stand in the way of
// what the profile allows.
//
// The decisions and their reasons are in docs/design/network-policy.md.
package network
