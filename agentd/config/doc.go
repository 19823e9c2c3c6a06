// Package config holds the signed documents that the operator writes and agentd
// reads: a profile's document (one for a namespace and profile, in a ConfigMap) and
// a session's document (in an annotation of its pod). Both are strict: an unknown
// field, an unknown version or a bad signature makes a document worthless.
package config
