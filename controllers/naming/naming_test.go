package naming

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestPodNamesAreValidAndDistinct(t *testing.T) {
	seen := map[string]string{}
	for _, session := range []string{
		"hello", "a.b", strings.Repeat("x", 51), strings.Repeat("x", 52), strings.Repeat("x", 200), strings.Repeat("x", 199) + "y",
		strings.Repeat("x", 39) + "." + strings.Repeat("x", 100), strings.Repeat("x", 39) + "-" + strings.Repeat("x", 100),
	} {
		name := Pod(session)
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 || len(name) > 63 {
			t.Errorf("the pod of %q is %q: %v", session, name, problems)
		}
		if other, taken := seen[name]; taken {
			t.Errorf("sessions %q and %q have the same pod %q", session, other, name)
		}
		seen[name] = session
		if Pod(session) != name {
			t.Errorf("the name of %q changes", session)
		}
	}
}
