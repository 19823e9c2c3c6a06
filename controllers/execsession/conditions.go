package execsession

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"execsession.dev/api/v1alpha1"
)

// cause is why a session is not what it should be.
type cause struct {
	reason  string
	message string
}

// happening is an event that is told at the end of a turn.
type happening struct {
	kind, reason, action, note string
	related                    runtime.Object
}

// maxMessage is what the API allows for a condition; notes of events have room for less.
const (
	maxMessage = 32768
	maxNote    = 1000
)

// set sets a condition.
func (t *turn) set(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&t.session.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: cut(message, maxMessage),
		ObservedGeneration: t.session.Generation, LastTransitionTime: metav1.NewTime(t.now),
	})
}

func (t *turn) condition(kind string) *metav1.Condition {
	return meta.FindStatusCondition(t.session.Status.Conditions, kind)
}

// was tells whether a condition had this reason before the turn.
func (t *turn) was(kind, reason string) bool {
	before := meta.FindStatusCondition(t.base.Status.Conditions, kind)
	return before != nil && before.Reason == reason
}

// stall notes that nothing will change until somebody acts. The first cause counts.
func (t *turn) stall(reason, message string) {
	if t.stalled == nil {
		t.stalled = &cause{reason, message}
	}
}

// wait notes that something is still to come. The first cause counts.
func (t *turn) wait(reason, message string) {
	if t.waiting == nil {
		t.waiting = &cause{reason, message}
	}
}

func (t *turn) normal(related runtime.Object, reason, action, note string, args ...any) {
	t.events = append(t.events, happening{corev1.EventTypeNormal, reason, action, fmt.Sprintf(note, args...), related})
}

func (t *turn) warn(related runtime.Object, reason, action, note string, args ...any) {
	t.events = append(t.events, happening{corev1.EventTypeWarning, reason, action, fmt.Sprintf(note, args...), related})
}

// summarize draws the conclusion from what the steps found.
func (r *Reconciler) summarize(t *turn) {
	t.session.Status.ObservedGeneration = t.session.Generation
	switch {
	case t.stalled != nil:
		t.set(v1alpha1.ConditionReady, metav1.ConditionFalse, t.stalled.reason, t.stalled.message)
		t.set(v1alpha1.ConditionStalled, metav1.ConditionTrue, t.stalled.reason, t.stalled.message)
		t.drop(v1alpha1.ConditionReconciling)
		if !t.was(v1alpha1.ConditionStalled, t.stalled.reason) {
			t.warn(nil, t.stalled.reason, "Reconcile", "%s", t.stalled.message)
		}
	case t.waiting != nil:
		t.set(v1alpha1.ConditionReady, metav1.ConditionFalse, t.waiting.reason, t.waiting.message)
		t.set(v1alpha1.ConditionReconciling, metav1.ConditionTrue, t.waiting.reason, t.waiting.message)
		t.drop(v1alpha1.ConditionStalled)
	default:
		t.set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonRunning, "commands can run")
		t.drop(v1alpha1.ConditionReconciling)
		t.drop(v1alpha1.ConditionStalled)
	}
}

func (t *turn) drop(kind string) {
	meta.RemoveStatusCondition(&t.session.Status.Conditions, kind)
}

// tell emits what happened in the turn.
func (r *Reconciler) tell(t *turn) {
	for _, e := range t.events {
		r.Recorder.Eventf(t.session, e.related, e.kind, e.reason, e.action, "%s", cut(e.note, maxNote))
	}
}

func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const mark = "..."
	end := limit - len(mark)
	for end > 0 && text[end]&0xC0 == 0x80 {
		end--
	}
	return text[:end] + mark
}
