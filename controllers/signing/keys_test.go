package signing

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"execsession.dev/agentd/config"
)

var secret = types.NamespacedName{Namespace: "system", Name: "key"}

func seed(fill byte) []byte { return bytes.Repeat([]byte{fill}, 32) }

func TestEnsureMakesOneKeyForAll(t *testing.T) {
	c := fake.NewClientBuilder().Build()
	first, err := Ensure(t.Context(), c, secret)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Ensure(t.Context(), c, secret)
	if err != nil {
		t.Fatal(err)
	}
	if first.Flag() != second.Flag() || first.Flag() == "" {
		t.Errorf("two operators have keys %q and %q, want the same", first.Flag(), second.Flag())
	}
}

func TestRotation(t *testing.T) {
	cases := map[string]struct {
		reason  string
		data    map[string][]byte
		trusted int
		bad     bool
	}{
		"one":     {"the usual case", map[string][]byte{CurrentKey: seed(1)}, 1, false},
		"two":     {"a rotation", map[string][]byte{CurrentKey: seed(2), PreviousKey: seed(1)}, 2, false},
		"none":    {"a Secret without a key is a mistake, and no reason to make one", nil, 0, true},
		"short":   {"half a key is a mistake", map[string][]byte{CurrentKey: seed(1)[:16]}, 0, true},
		"too bad": {"so is half a previous one", map[string][]byte{CurrentKey: seed(1), PreviousKey: {1}}, 0, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithObjects(&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name}, Data: tc.data,
			}).Build()
			keys, err := Ensure(t.Context(), c, secret)
			if (err != nil) != tc.bad {
				t.Fatalf("%s: Ensure returned %v", tc.reason, err)
			}
			if tc.bad {
				return
			}
			trusted, err := config.ParseKeys(keys.Flag())
			if err != nil || len(trusted) != tc.trusted || len(keys.Private()) != tc.trusted {
				t.Errorf("%s: %d keys are trusted (%v), want %d", tc.reason, len(trusted), err, tc.trusted)
			}
		})
	}
}

func TestTrustedBy(t *testing.T) {
	old, err := New(seed(1))
	if err != nil {
		t.Fatal(err)
	}
	rotated, err := New(seed(2), seed(1))
	if err != nil {
		t.Fatal(err)
	}
	other, err := New(seed(3))
	if err != nil {
		t.Fatal(err)
	}
	if !rotated.TrustedBy(old.Flag()) {
		t.Error("a pod from before the rotation is not served any more")
	}
	if other.TrustedBy(old.Flag()) || other.TrustedBy("") || other.TrustedBy("rubbish") {
		t.Error("a pod that trusts another key is taken for one of ours")
	}
}
