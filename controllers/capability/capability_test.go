package capability

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func node(name string, supports *bool) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if supports != nil {
		n.Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{
			Name: "", Features: &corev1.NodeRuntimeHandlerFeatures{UserNamespaces: supports},
		}}
	}
	return n
}

func TestUserNamespaces(t *testing.T) {
	yes, no := new(true), new(false)
	cases := map[string]struct {
		reason string
		fixed  *bool
		nodes  []client.Object
		want   bool
	}{
		"all":      {"every node says so", nil, []client.Object{node("a", yes), node("b", yes)}, true},
		"not all":  {"a pod may land where there are none", nil, []client.Object{node("a", yes), node("b", no)}, false},
		"old node": {"a kubelet that says nothing has none", nil, []client.Object{node("a", nil)}, false},
		"no nodes": {"nobody knows", nil, nil, false},
		"always":   {"somebody decided", yes, nil, true},
		"never":    {"somebody decided", no, []client.Object{node("a", yes)}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithObjects(tc.nodes...).Build()
			u := &UserNamespaces{Nodes: c, Clock: clocktesting.NewFakeClock(time.Unix(1000, 0)), Fixed: tc.fixed}
			if got := u.Supported(t.Context()); got != tc.want {
				t.Errorf("%s: Supported is %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

func TestAnswersAboutNodesAreKeptForAWhile(t *testing.T) {
	c := fake.NewClientBuilder().Build()
	now := clocktesting.NewFakeClock(time.Unix(1000, 0))
	u := &UserNamespaces{Nodes: c, Clock: now}
	if u.Supported(t.Context()) {
		t.Fatal("a cluster without nodes supports user namespaces")
	}
	if err := c.Create(t.Context(), node("a", new(true))); err != nil {
		t.Fatal(err)
	}
	if u.Supported(t.Context()) {
		t.Error("nodes were asked again at once")
	}
	now.Step(freshFor)
	if !u.Supported(t.Context()) {
		t.Error("the answer was never asked for again")
	}
}
