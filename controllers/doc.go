// Package controllers is the one list of what the operator runs.
//
//	session  ->  profile   (which one, compiled and signed: profile, signing)
//	         ->  fence     (the pod's NetworkPolicy, without the cluster's own addresses: network)
//	         ->  pod       (built and verified: workspacepod)
//	         <-  agent     (its records, by way of the container's log: follower)
//
// The folders execsession and sandboxprofile hold a reconciler for each kind; the
// others hold what they do it with. capability finds out what the cluster can do, naming
// makes names.
package controllers
