package config

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// maxSignatures bounds the signatures of a document; a rotation needs two.
const maxSignatures = 8

// Document is a ProfileDocument or a SessionDocument.
type Document interface {
	// Validate checks every value.
	Validate() error
	header() (version int, kind Kind)
}

// envelope is a document on disk. The payload is a string, not an object, so that
// what is signed is exactly what is read, whoever formats the JSON around it.
type envelope struct {
	Version    int         `json:"version"`
	Payload    string      `json:"payload"`
	Signatures []signature `json:"signatures"`
}

type signature struct {
	KeyID string `json:"keyID"`
	Value string `json:"value"`
}

// signedBytes is what a signature covers. The kind in front keeps a signature of
// one kind of document from being valid for another.
func signedBytes(kind Kind, payload string) []byte {
	return []byte("execsession.dev/" + string(kind) + "\n" + payload)
}

// Seal validates a document and writes it, signed with every one of the keys.
func Seal(kind Kind, doc Document, keys ...ed25519.PrivateKey) ([]byte, error) {
	if len(keys) == 0 {
		return nil, errors.New("sealing a document: no key given")
	}
	payload, err := payloadOf(kind, doc)
	if err != nil {
		return nil, fmt.Errorf("sealing a %s document: %w", kind, err)
	}
	sealed := envelope{Version: Version, Payload: string(payload)}
	for _, key := range keys {
		if len(key) != ed25519.PrivateKeySize {
			return nil, fmt.Errorf("sealing a %s document: a key has %d bytes, want %d", kind, len(key), ed25519.PrivateKeySize)
		}
		sealed.Signatures = append(sealed.Signatures, signature{
			KeyID: KeyID(ed25519.PublicKey(key[ed25519.SeedSize:])),
			Value: base64.StdEncoding.EncodeToString(ed25519.Sign(key, signedBytes(kind, sealed.Payload))),
		})
	}
	return json.Marshal(sealed)
}

// Hash is the hash that Seal's result for this document has: of its payload, whoever signs it.
func Hash(kind Kind, doc Document) (string, error) {
	payload, err := payloadOf(kind, doc)
	if err != nil {
		return "", fmt.Errorf("hashing a %s document: %w", kind, err)
	}
	return hashPayload(string(payload)), nil
}

func hashPayload(payload string) string {
	sum := sha256.Sum256([]byte(payload))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// payloadOf is deterministic: encoding/json sorts the keys of maps.
func payloadOf(kind Kind, doc Document) ([]byte, error) {
	if err := checkHeader(kind, doc); err != nil {
		return nil, err
	}
	if err := doc.Validate(); err != nil {
		return nil, err
	}
	return json.Marshal(doc)
}

func checkHeader(kind Kind, doc Document) error {
	version, found := doc.header()
	if version != Version {
		return fmt.Errorf("%w %d, want %d", ErrVersion, version, Version)
	}
	if found != kind {
		return fmt.Errorf("%w: %q, want %q", ErrKind, found, kind)
	}
	return nil
}

// OpenProfile verifies and reads a profile document. The hash is the one by which
// session documents pin it.
func OpenProfile(data []byte, keys []ed25519.PublicKey) (ProfileDocument, string, error) {
	var doc ProfileDocument
	payload, err := openPayload(KindProfile, data, keys)
	if err != nil {
		return ProfileDocument{}, "", fmt.Errorf("opening the profile document: %w", err)
	}
	if err := decodeStrict([]byte(payload), &doc); err != nil {
		return ProfileDocument{}, "", fmt.Errorf("reading the profile document: %w", err)
	}
	if err := checkDocument(KindProfile, doc, payload); err != nil {
		return ProfileDocument{}, "", fmt.Errorf("checking the profile document: %w", err)
	}
	return doc, hashPayload(payload), nil
}

// OpenSession verifies and reads a session document.
func OpenSession(data []byte, keys []ed25519.PublicKey) (SessionDocument, error) {
	var doc SessionDocument
	payload, err := openPayload(KindSession, data, keys)
	if err != nil {
		return SessionDocument{}, fmt.Errorf("opening the session document: %w", err)
	}
	if err := decodeStrict([]byte(payload), &doc); err != nil {
		return SessionDocument{}, fmt.Errorf("reading the session document: %w", err)
	}
	if err := checkDocument(KindSession, doc, payload); err != nil {
		return SessionDocument{}, fmt.Errorf("checking the session document: %w", err)
	}
	return doc, nil
}

func checkDocument(kind Kind, doc Document, payload string) error {
	if err := checkHeader(kind, doc); err != nil {
		return err
	}
	if err := doc.Validate(); err != nil {
		return err
	}
	return refuseMissing([]byte(payload), doc)
}

// openPayload returns the payload once its signatures were verified; nothing of an
// unverified payload is looked at.
func openPayload(kind Kind, data []byte, keys []ed25519.PublicKey) (string, error) {
	var sealed envelope
	if err := decodeStrict(data, &sealed); err != nil {
		return "", err
	}
	if sealed.Version != Version {
		return "", fmt.Errorf("%w %d, want %d", ErrVersion, sealed.Version, Version)
	}
	if err := verify(kind, sealed, keys); err != nil {
		return "", err
	}
	return sealed.Payload, nil
}

// verify wants one good signature of a known key and no bad one. Signatures of
// unknown keys are passed over: during a rotation the new key is unknown to old pods.
func verify(kind Kind, sealed envelope, keys []ed25519.PublicKey) error {
	if len(sealed.Signatures) > maxSignatures {
		return fmt.Errorf("%w: %d signatures, at most %d are read", ErrForged, len(sealed.Signatures), maxSignatures)
	}
	known := make(map[string]ed25519.PublicKey, len(keys))
	for _, key := range keys {
		if len(key) != ed25519.PublicKeySize {
			return fmt.Errorf("%w: a verification key has %d bytes, want %d", ErrForged, len(key), ed25519.PublicKeySize)
		}
		known[KeyID(key)] = key
	}
	good := 0
	for _, s := range sealed.Signatures {
		key, ok := known[s.KeyID]
		if !ok {
			continue
		}
		value, err := base64.StdEncoding.Strict().DecodeString(s.Value)
		if err != nil || !ed25519.Verify(key, signedBytes(kind, sealed.Payload), value) {
			return fmt.Errorf("%w: the signature of key %s does not fit", ErrForged, s.KeyID)
		}
		good++
	}
	if good == 0 {
		return fmt.Errorf("%w: none of its %d signatures is of a known key", ErrForged, len(sealed.Signatures))
	}
	return nil
}
