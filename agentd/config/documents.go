package config

import (
	"net/netip"

	"execsession.dev/approval"
	"execsession.dev/sandbox"
)

// Version is the version of the documents that this package reads and writes.
const Version = 1

// File names in agentd's configuration folder.
const (
	ProfileFile = "profile.json"
	SessionFile = "session.json"
)

// Kind tells the documents apart; it is part of what is signed.
type Kind string

// The kinds of documents.
const (
	KindProfile Kind = "Profile"
	KindSession Kind = "Session"
)

// ProfileDocument is a profile, compiled for one namespace.
type ProfileDocument struct {
	Version   int        `json:"version"`
	Kind      Kind       `json:"kind"`
	Namespace string     `json:"namespace"`
	Profile   ProfileRef `json:"profile"`
	Policy    Policy     `json:"policy"`
	// Guarded are addresses of the cluster that the proxy of network mode Proxy refuses unless an entry of the profile
	// lies in them. Other modes have none, so that their documents do not change with the cluster.
	Guarded []Range `json:"guarded,omitempty"`
}

// Range is a part of the cluster's addresses.
type Range struct {
	// Prefix has no bits behind its length.
	Prefix netip.Prefix `json:"prefix"`
	// Name continues the sentence "it is ...", for whoever is refused.
	Name string `json:"name"`
}

// ProfileRef names the object that a ProfileDocument was compiled from.
type ProfileRef struct {
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Generation int64  `json:"generation"`
}

// Policy is everything that a profile says to agentd.
type Policy struct {
	Sandbox     sandbox.Policy  `json:"sandbox"`
	Approval    approval.Policy `json:"approval"`
	Environment Environment     `json:"environment"`
	Limits      Limits          `json:"limits"`
	Output      Output          `json:"output"`
}

// Environment says which variables a command inherits from the container.
type Environment struct {
	// Inherit is All, Core or None.
	Inherit string `json:"inherit"`
	// SecretExcludes drops names that look like secrets.
	SecretExcludes bool              `json:"secretExcludes"`
	Exclude        []string          `json:"exclude,omitempty"`
	IncludeOnly    []string          `json:"includeOnly,omitempty"`
	Set            map[string]string `json:"set,omitempty"`
}

// Limits bound the process table.
type Limits struct {
	MaxProcesses             int `json:"maxProcesses"`
	ProtectedProcesses       int `json:"protectedProcesses"`
	BackgroundPollMaxSeconds int `json:"backgroundPollMaxSeconds"`
}

// Output says what the ledger tells about commands.
type Output struct {
	// Ledger is Digest (the program's name and a digest of the command) or Full.
	Ledger string `json:"ledger"`
}

// SessionDocument is a session's own part: who it is and which profile it runs under.
type SessionDocument struct {
	Version   int    `json:"version"`
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Revision grows with every new document of a session; agentd refuses an older one.
	Revision int64          `json:"revision"`
	Profile  SessionProfile `json:"profile"`
	Shell    Shell          `json:"shell"`
}

// SessionProfile pins the profile document that a session runs under.
type SessionProfile struct {
	UID string `json:"uid"`
	// Hash is "sha256:" and the hex digest of the profile document's payload.
	Hash string `json:"hash"`
}

// Shell says which shell runs scripts.
type Shell struct {
	// Path is the shell's program; empty lets agentd detect one.
	Path string `json:"path,omitempty"`
	// Login is Allowed or Forbidden.
	Login string `json:"login"`
	// Persistence is None or Environment.
	Persistence string `json:"persistence"`
}
