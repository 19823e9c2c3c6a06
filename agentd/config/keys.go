package config

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
)

// KeyID names a public key: the first 16 hex digits of its SHA-256.
func KeyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

// FormatKeys writes public keys as ParseKeys reads them.
func FormatKeys(keys ...ed25519.PublicKey) string {
	parts := make([]string, len(keys))
	for i, key := range keys {
		parts[i] = base64.StdEncoding.EncodeToString(key)
	}
	return strings.Join(parts, ",")
}

// ParseKeys reads public keys: standard base64, separated by commas.
func ParseKeys(text string) ([]ed25519.PublicKey, error) {
	if text == "" {
		return nil, fmt.Errorf("no verification key given, want base64 of %d bytes", ed25519.PublicKeySize)
	}
	var keys []ed25519.PublicKey
	for part := range strings.SplitSeq(text, ",") {
		key, err := base64.StdEncoding.Strict().DecodeString(part)
		if err != nil {
			return nil, fmt.Errorf("reading verification key %q: %w", part, err)
		}
		if len(key) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("reading verification key %q: %d bytes, want %d", part, len(key), ed25519.PublicKeySize)
		}
		keys = append(keys, ed25519.PublicKey(key))
	}
	return keys, nil
}
