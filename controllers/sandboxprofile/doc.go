// Package sandboxprofile looks after profiles of both kinds: whether they are valid,
// who uses them, and when the copy in a namespace is no longer needed.
//
// The copy of a profile, a ConfigMap that all sessions of a namespace share, is counted
// by this package and not by owner references: with those, every new session would
// write to one object that every kubelet of the namespace watches, and a thousand
// sessions would carry a thousand owners in it. A copy goes when the last session that
// names its profile has gone.
package sandboxprofile
