// Package v1alpha1 holds the objects of the API group execsession.dev: sessions and
// the profiles that say what commands of a session may do. It holds types, names
// and reasons, and no behaviour.
//
// A session's spec is immutable unless a field says otherwise: its pod can not be
// changed either, so an edit would be a promise that nobody keeps.
//
// +kubebuilder:object:generate=true
// +groupName=execsession.dev
package v1alpha1
