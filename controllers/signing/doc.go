// Package signing keeps the keys with which the operator signs what agentd reads.
//
// They live in one Secret of the operator's namespace, which the first operator
// makes. Everybody who may edit a tenant's namespace can rewrite the documents there,
// and nobody without this Secret can make agentd believe them.
//
// The Secret holds "current" and, during a rotation, "previous": both sign, and pods
// are told to trust both. To rotate, move current to previous, delete current, restart
// the operator, and drop previous once no pod is older than that.
package signing
