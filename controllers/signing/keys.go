package signing

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/agentd/config"
)

// The keys of the Secret's data: ed25519 seeds, 32 bytes each.
const (
	CurrentKey  = "current"
	PreviousKey = "previous"
)

// Keys sign documents and tell pods whom to trust.
type Keys struct {
	private []ed25519.PrivateKey
}

// New makes Keys of ed25519 seeds, the current one first.
func New(seeds ...[]byte) (Keys, error) {
	if len(seeds) == 0 {
		return Keys{}, fmt.Errorf("making signing keys: no seed given")
	}
	var keys Keys
	for _, seed := range seeds {
		if len(seed) != ed25519.SeedSize {
			return Keys{}, fmt.Errorf("making a signing key: the seed has %d bytes, want %d", len(seed), ed25519.SeedSize)
		}
		keys.private = append(keys.private, ed25519.NewKeyFromSeed(seed))
	}
	return keys, nil
}

// Ensure reads the Secret and makes it if there is none. Two operators that start at
// once agree: the one that comes second reads what the first one made.
func Ensure(ctx context.Context, c client.Client, secret types.NamespacedName) (Keys, error) {
	keys, err := load(ctx, c, secret)
	if !apierrors.IsNotFound(err) {
		return keys, err
	}
	seed := make([]byte, ed25519.SeedSize)
	if _, err := rand.Read(seed); err != nil {
		return Keys{}, fmt.Errorf("making a signing key: %w", err)
	}
	err = c.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name},
		Data:       map[string][]byte{CurrentKey: seed},
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return Keys{}, fmt.Errorf("creating Secret %q for the signing key: %w", secret, err)
	}
	return load(ctx, c, secret)
}

func load(ctx context.Context, c client.Reader, name types.NamespacedName) (Keys, error) {
	secret := &corev1.Secret{}
	if err := c.Get(ctx, name, secret); err != nil {
		return Keys{}, fmt.Errorf("reading the signing key: %w", err)
	}
	seeds := [][]byte{secret.Data[CurrentKey]}
	if previous, ok := secret.Data[PreviousKey]; ok {
		seeds = append(seeds, previous)
	}
	keys, err := New(seeds...)
	if err != nil {
		return Keys{}, fmt.Errorf("reading Secret %q: %w", name, err)
	}
	return keys, nil
}

// Private are the keys to sign with.
func (k Keys) Private() []ed25519.PrivateKey { return k.private }

// Public are the keys that pods trust.
func (k Keys) Public() []ed25519.PublicKey {
	public := make([]ed25519.PublicKey, len(k.private))
	for i, key := range k.private {
		public[i] = key.Public().(ed25519.PublicKey)
	}
	return public
}

// Flag is the value of agentd's --verify-key.
func (k Keys) Flag() string { return config.FormatKeys(k.Public()...) }

// TrustedBy says whether a pod with this --verify-key believes what these keys sign.
func (k Keys) TrustedBy(flag string) bool {
	trusted, err := config.ParseKeys(flag)
	if err != nil {
		return false
	}
	for _, theirs := range trusted {
		for _, ours := range k.Public() {
			if theirs.Equal(ours) {
				return true
			}
		}
	}
	return false
}
