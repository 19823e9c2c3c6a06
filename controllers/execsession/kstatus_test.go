package execsession

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"execsession.dev/api/v1alpha1"
)

// TestKstatus holds the conclusions to what Helm, Flux and Argo make of them.
func TestKstatus(t *testing.T) {
	cases := map[string]struct {
		reason string
		found  func(*turn)
		want   status.Status
	}{
		"running": {"a session that runs is done", func(*turn) {}, status.CurrentStatus},
		"waiting": {"something is still to come", func(t *turn) { t.wait(v1alpha1.ReasonPodPending, "no node yet") }, status.InProgressStatus},
		"stalled": {"somebody must act", func(t *turn) { t.stall(v1alpha1.ReasonImagePullFailed, "no such image") }, status.FailedStatus},
		"both": {"what stalls counts more than what is to come", func(t *turn) {
			t.wait(v1alpha1.ReasonPodPending, "no node yet")
			t.stall(v1alpha1.ReasonProfileNotFound, "no such profile")
		}, status.FailedStatus},
		"agent silent": {"nobody knows, so it is not done", func(t *turn) {
			t.set(v1alpha1.ConditionAgentReady, metav1.ConditionUnknown, v1alpha1.ReasonAgentSilent, "silent")
			t.wait(v1alpha1.ReasonAgentSilent, "silent")
		}, status.InProgressStatus},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			session := &v1alpha1.ExecSession{
				TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ExecSession"},
				ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns", Generation: 4},
			}
			work := &turn{session: session, base: session.DeepCopy(), now: time.Unix(1000, 0)}
			tc.found(work)
			(&Reconciler{}).summarize(work)
			if got := kstatus(t, work.session); got != tc.want {
				t.Errorf("%s: kstatus says %s, want %s: %+v", tc.reason, got, tc.want, work.session.Status.Conditions)
			}
			work.session.Generation++
			if got := kstatus(t, work.session); got == status.CurrentStatus {
				t.Errorf("a status of an older spec is taken for %s", got)
			}
		})
	}
}

func kstatus(t *testing.T, session *v1alpha1.ExecSession) status.Status {
	t.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(session)
	if err != nil {
		t.Fatal(err)
	}
	result, err := status.Compute(&unstructured.Unstructured{Object: object})
	if err != nil {
		t.Fatal(err)
	}
	return result.Status
}
