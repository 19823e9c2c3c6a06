package controllers_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/ledger"
	"execsession.dev/api/v1alpha1"
)

func TestTamperingIsUndone(t *testing.T) {
	b := newBench(t)
	b.profile()
	b.operator()
	other := b.session("other")
	otherPod, _ := b.ready(other)
	cases := map[string]struct {
		reason string
		note   string
		tamper func(pod *corev1.Pod) error
	}{
		"annotation": {
			reason: "the document on the pod is not signed by us",
			note:   v1alpha1.AnnotationSession,
			tamper: func(pod *corev1.Pod) error {
				pod.Annotations[v1alpha1.AnnotationSession] = `{"version":1,"payload":"{}","signatures":[]}`
				return b.Update(b.Context(), pod)
			},
		},
		"annotation removed": {
			reason: "the pod has no document",
			note:   v1alpha1.AnnotationSession,
			tamper: func(pod *corev1.Pod) error {
				delete(pod.Annotations, v1alpha1.AnnotationSession)
				return b.Update(b.Context(), pod)
			},
		},
		"document of another session": {
			reason: "the document is ours, but of another session",
			note:   v1alpha1.AnnotationSession,
			tamper: func(pod *corev1.Pod) error {
				pod.Annotations[v1alpha1.AnnotationSession] = otherPod.Annotations[v1alpha1.AnnotationSession]
				return b.Update(b.Context(), pod)
			},
		},
		"labels": {
			reason: "the pod left the operator's cache with its labels",
			note:   "labels",
			tamper: func(pod *corev1.Pod) error {
				pod.Labels = nil
				return b.Update(b.Context(), pod)
			},
		},
		"profile": {
			reason: "the profile's copy is not signed by us",
			note:   "execsession-profile-s-" + profileName,
			tamper: func(*corev1.Pod) error {
				copied := &corev1.ConfigMap{}
				if err := b.Get(b.Context(), b.copyKey(), copied); err != nil {
					return err
				}
				copied.Data[config.ProfileFile] = `{"version":1}`
				return b.Update(b.Context(), copied)
			},
		},
		"profile removed": {
			reason: "the profile's copy is gone",
			note:   "execsession-profile-s-" + profileName,
			tamper: func(*corev1.Pod) error {
				copied := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: b.copyKey().Name}}
				return b.Delete(b.Context(), copied)
			},
		},
	}
	n := 0
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n++
			b := b.in(t)
			s := b.session(fmt.Sprintf("tampered-%d", n))
			pod, _ := b.ready(s)
			before, _, err := b.documents(pod)
			b.must(err)
			b.must(tc.tamper(pod))
			b.eventually(tc.reason+": it should be put right", func() error {
				after, _, err := b.documents(pod)
				if err != nil {
					return err
				}
				shared := tc.note[0] == 'e' && tc.note != v1alpha1.AnnotationSession // any session of the profile may repair its copy
				if !shared && after.Revision <= before.Revision {
					return fmt.Errorf("revision went from %d to %d", before.Revision, after.Revision)
				}
				if pod.Labels[v1alpha1.LabelManaged] != v1alpha1.ManagedValue {
					return fmt.Errorf("labels are %v", pod.Labels)
				}
				return nil
			})
			b.anyEvent(v1alpha1.ReasonPolicyRestored, tc.note)
		})
	}
}

// anyEvent waits for an event about any session of the namespace.
func (b *bench) anyEvent(reason, within string) {
	b.Helper()
	sessions := &v1alpha1.ExecSessionList{}
	b.must(b.List(b.Context(), sessions, client.InNamespace(b.namespace)))
	b.eventually("there should be an event "+reason, func() error {
		for i := range sessions.Items {
			if b.hasEvent(&sessions.Items[i], reason, within) {
				return nil
			}
		}
		return fmt.Errorf("no session has one with %q", within)
	})
}

func TestRollbackIsUndone(t *testing.T) {
	b := newBench(t)
	p := b.profile()
	b.operator()
	s := b.session("rollback")
	pod, _ := b.ready(s)
	old := pod.Annotations[v1alpha1.AnnotationSession]
	first, _, err := b.documents(pod)
	b.must(err)

	// An edit of the profile is no tampering: a new document, and no warning.
	b.must(b.refresh(p))
	p.Spec.Filesystem.WritableRoots = []v1alpha1.AbsolutePath{"/data"}
	b.must(b.Update(t.Context(), p))
	var second config.SessionDocument
	b.eventually("the edit should reach the pod", func() error {
		var err error
		if second, _, err = b.documents(pod); err != nil {
			return err
		}
		if second.Profile.Hash == first.Profile.Hash {
			return fmt.Errorf("the hash is still the first")
		}
		return nil
	})
	b.event(s, v1alpha1.ReasonProfileDelivered, "generation 2")
	b.has(s, v1alpha1.ConditionProfileSynced, metav1.ConditionFalse, v1alpha1.ReasonProfileDelivering)
	if b.hasEvent(s, v1alpha1.ReasonPolicyRestored, "") {
		t.Error("an edit of the profile was taken for tampering")
	}

	b.must(b.refresh(pod))
	pod.Annotations[v1alpha1.AnnotationSession] = old
	b.must(b.Update(t.Context(), pod))
	b.eventually("an old document should be replaced", func() error {
		third, _, err := b.documents(pod)
		if err != nil {
			return err
		}
		if third.Revision <= second.Revision {
			return fmt.Errorf("revision is %d, want more than %d", third.Revision, second.Revision)
		}
		return nil
	})
	b.event(s, v1alpha1.ReasonPolicyRestored, "older")
}

func TestAgentThatReadTooEarlyIsNudged(t *testing.T) {
	b := newBench(t)
	b.profile()
	b.operator()
	s := b.session("nudged")
	pod, start := b.ready(s)
	before, _, err := b.documents(pod)
	b.must(err)
	b.say(pod, "boot-1", start, func(status *ledger.Status) {
		status.Policy.Valid, status.Policy.Reason, status.Policy.Message = false, "ProfileOutOfSync", "another one is pinned"
	})
	b.has(s, v1alpha1.ConditionAgentReady, metav1.ConditionFalse, v1alpha1.ReasonPolicyInvalid)
	b.eventually("the agent should be made to read again", func() error {
		after, _, err := b.documents(pod)
		if err != nil {
			return err
		}
		if after.Revision <= before.Revision {
			return fmt.Errorf("revision is still %d", after.Revision)
		}
		return nil
	})
	if b.hasEvent(s, v1alpha1.ReasonPolicyRestored, "") {
		t.Error("nothing was tampered with, and an event says so")
	}
}
