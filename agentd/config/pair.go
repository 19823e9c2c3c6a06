package config

import "fmt"

// Identity says which session a document must belong to.
type Identity struct {
	Namespace string
	Name      string
	UID       string
}

// CheckIdentity refuses the document of another session (ErrForeign).
func (d SessionDocument) CheckIdentity(id Identity) error {
	found := Identity{Namespace: d.Namespace, Name: d.Name, UID: d.UID}
	if found != id {
		return fmt.Errorf("%w: of %s/%s (uid %s), want %s/%s (uid %s)", ErrForeign,
			found.Namespace, found.Name, found.UID, id.Namespace, id.Name, id.UID)
	}
	return nil
}

// CheckSuccessor says whether next may replace the document that is held: a copy of
// it or one of a later revision (else ErrOutdated).
func (d SessionDocument) CheckSuccessor(next SessionDocument) error {
	switch {
	case next.Revision < d.Revision:
		return fmt.Errorf("%w: revision %d, but %d was seen already", ErrOutdated, next.Revision, d.Revision)
	case next.Revision == d.Revision && next != d:
		return fmt.Errorf("%w: revision %d was seen already with other contents", ErrOutdated, next.Revision)
	}
	return nil
}

// CheckPair says whether a session runs under this profile document, whose hash is
// given: the namespace must be the same (else ErrForeign), and the session document
// must pin exactly this profile document (else ErrOutOfSync).
func CheckPair(profile ProfileDocument, hash string, session SessionDocument) error {
	if profile.Namespace != session.Namespace {
		return fmt.Errorf("%w: the profile document is of namespace %q, the session of %q",
			ErrForeign, profile.Namespace, session.Namespace)
	}
	if session.Profile.Hash != hash {
		return fmt.Errorf("%w: %s is here, %s is pinned by revision %d",
			ErrOutOfSync, hash, session.Profile.Hash, session.Revision)
	}
	if session.Profile.UID != profile.Profile.UID {
		return fmt.Errorf("%w: the profile document is of profile uid %q, the session pins %q",
			ErrForeign, profile.Profile.UID, session.Profile.UID)
	}
	return nil
}
