// Package execsession keeps sessions: for each ExecSession a signed profile, a volume
// if one is asked for, a NetworkPolicy, and a verified pod whose agent is listened to.
//
// A turn of the reconciler is a row of steps over one session in memory: profile,
// document, storage, fence, pod, delivery, observation, summary. A step looks at what is there,
// does at most the next thing, and notes what it found in a condition; the conditions
// are the only memory of progress. At the end one patch writes the status if it changed,
// and events tell what happened. Nothing polls: watches and the agents' own records
// start turns, and a session at rest costs nothing.
//
// A pod is trusted only if its uid is the one in status.podRef. Caches may lag behind,
// so before the reconciler calls a pod foreign or a document forged it asks the API
// server itself.
package execsession
