package agentd

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"execsession.dev/agentd/config"
)

// maxDocumentBytes is more than a ConfigMap can hold.
const maxDocumentBytes = 2 << 20

// SignedDocuments say where the operator's documents are and whose they must be.
type SignedDocuments struct {
	// Dir is the folder with config.ProfileFile and config.SessionFile.
	Dir string
	// Identity is the session that this agent serves.
	Identity config.Identity
	// Keys are the operator's public keys.
	Keys []ed25519.PublicKey
	// RevisionFile keeps the newest revision over restarts; empty keeps it in memory only.
	RevisionFile string
}

// reader reads the documents again and again and remembers the newest.
type reader struct {
	SignedDocuments
	// newest is the newest authentic session document of our session; nil before the first.
	newest *config.SessionDocument
	// floor is the newest revision that an earlier run of this container saw.
	floor int64
}

// read verifies what the folder holds now. What is wrong is part of the answer.
func (r *reader) read() documents {
	session, err := r.readSession()
	if err != nil {
		return refused(err, 0)
	}
	profile, hash, err := r.readProfile()
	if err == nil {
		err = config.CheckPair(profile, hash, session)
	}
	if err != nil {
		return refused(err, session.Revision)
	}
	return documents{
		policy: profile.Policy, shell: session.Shell, guarded: config.EgressRanges(profile.Guarded),
		hash: hash, revision: session.Revision,
	}
}

func (r *reader) readSession() (config.SessionDocument, error) {
	data, err := readDocument(filepath.Join(r.Dir, config.SessionFile))
	if err != nil {
		return config.SessionDocument{}, err
	}
	session, err := config.OpenSession(data, r.Keys)
	if err != nil {
		return config.SessionDocument{}, err
	}
	if err := session.CheckIdentity(r.Identity); err != nil {
		return config.SessionDocument{}, err
	}
	if err := r.checkRevision(session); err != nil {
		return config.SessionDocument{}, err
	}
	return session, nil
}

// checkRevision refuses going back and remembers going forward.
func (r *reader) checkRevision(session config.SessionDocument) error {
	if r.newest != nil {
		if err := r.newest.CheckSuccessor(session); err != nil {
			return err
		}
		if r.newest.Revision == session.Revision {
			return nil
		}
	} else if session.Revision < r.floor {
		return fmt.Errorf("%w: revision %d, but %d was seen before agentd restarted", config.ErrOutdated, session.Revision, r.floor)
	}
	r.newest = &session
	r.saveRevision(session.Revision)
	return nil
}

func (r *reader) readProfile() (config.ProfileDocument, string, error) {
	data, err := readDocument(filepath.Join(r.Dir, config.ProfileFile))
	if err != nil {
		return config.ProfileDocument{}, "", err
	}
	return config.OpenProfile(data, r.Keys)
}

// readDocument reads a file of the folder. An empty one is a missing one: that is how
// an annotation that is gone appears.
func readDocument(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening document: %w", err)
	}
	// It was only read; closing it cannot lose anything.
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxDocumentBytes))
	if err != nil {
		return nil, fmt.Errorf("reading document %q: %w", path, err)
	}
	if len(data) == 0 {
		return nil, fmt.Errorf("reading document %q: it is empty: %w", path, fs.ErrNotExist)
	}
	return data, nil
}

// refused says what an error means for the policy.
func refused(err error, revision int64) documents {
	return documents{reason: reasonOf(err), message: err.Error(), revision: revision}
}

func reasonOf(err error) string {
	for _, known := range []struct {
		err    error
		reason string
	}{
		{fs.ErrNotExist, ReasonDocumentMissing},
		{config.ErrForged, ReasonDocumentForged},
		{config.ErrMalformed, ReasonDocumentMalformed},
		{config.ErrForeign, ReasonDocumentForeign},
		{config.ErrOutdated, ReasonDocumentOutdated},
		{config.ErrOutOfSync, ReasonProfileOutOfSync},
	} {
		if errors.Is(err, known.err) {
			return known.reason
		}
	}
	return ReasonDocumentInvalid
}
