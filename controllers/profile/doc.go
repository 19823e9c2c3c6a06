// Package profile turns a profile object into what agentd enforces and puts it,
// signed, into the ConfigMap that the pods of a namespace read. It also says which
// profile a session names.
package profile
