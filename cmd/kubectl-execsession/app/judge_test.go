package app

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"execsession.dev/agentd/wire"
	"execsession.dev/api/v1alpha1"
)

func TestJudge(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	condition := func(kind string, status metav1.ConditionStatus, reason, message string, age time.Duration) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now.Add(-age))}
	}
	pod := &v1alpha1.PodReference{Name: "execsession-hello", UID: "1"}
	cases := map[string]struct {
		reason  string
		session v1alpha1.ExecSession
		want    sessionState
		text    string
	}{
		"New": {
			reason:  "Nobody has looked at it, which may be because no operator runs.",
			session: v1alpha1.ExecSession{ObjectMeta: metav1.ObjectMeta{Generation: 1}},
			want:    sessionComing, text: "operator",
		},
		"Ready": {
			reason: "Commands can run.",
			session: v1alpha1.ExecSession{Status: v1alpha1.ExecSessionStatus{PodRef: pod, Conditions: []metav1.Condition{
				condition(v1alpha1.ConditionAgentReady, metav1.ConditionTrue, v1alpha1.ReasonAgentReady, "", 0),
			}}},
			want: sessionReady,
		},
		"Stalled": {
			reason: "Somebody must act, so waiting is no use.",
			session: v1alpha1.ExecSession{Status: v1alpha1.ExecSessionStatus{Conditions: []metav1.Condition{
				condition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProfileNotFound, `SandboxProfile "p" does not exist`, 0),
			}}},
			want: sessionHopeless, text: `SandboxProfile "p" does not exist (ProfileNotFound)`,
		},
		"Stale": {
			reason: "What was said of an earlier spec does not count.",
			session: v1alpha1.ExecSession{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Status: v1alpha1.ExecSessionStatus{
				ObservedGeneration: 1, Conditions: []metav1.Condition{condition(v1alpha1.ConditionStalled, metav1.ConditionTrue, "X", "x", 0)},
			}},
			want: sessionComing,
		},
		"Suspended": {
			reason: "Ready, as it was told to be, but without an agent.",
			session: v1alpha1.ExecSession{Status: v1alpha1.ExecSessionStatus{Conditions: []metav1.Condition{
				condition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Suspended", "the session is suspended", 0),
			}}},
			want: sessionHopeless, text: "the session is suspended (Suspended)",
		},
		"PullJustFailed": {
			reason: "The next try may succeed.",
			session: v1alpha1.ExecSession{Status: v1alpha1.ExecSessionStatus{Conditions: []metav1.Condition{
				condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonImagePullFailed, `image "nope:1"`, time.Second),
			}}},
			want: sessionComing, text: "nope:1",
		},
		"PullFails": {
			reason: "The image is wrong.",
			session: v1alpha1.ExecSession{Status: v1alpha1.ExecSessionStatus{Conditions: []metav1.Condition{
				condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonImagePullFailed, `image "nope:1"`, time.Minute),
			}}},
			want: sessionHopeless, text: "nope:1",
		},
		"Deleted": {
			reason:  "It ends.",
			session: v1alpha1.ExecSession{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: now}}},
			want:    sessionHopeless, text: "being deleted",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, text := judge(&tc.session, now)
			if got != tc.want || !strings.Contains(text, tc.text) {
				t.Errorf("%s: got %d, %q; want %d with %q", tc.reason, got, text, tc.want, tc.text)
			}
		})
	}
}

func TestEnding(t *testing.T) {
	cases := map[string]struct {
		reason  string
		record  *wire.ExitRecord
		want    int
		message string
	}{
		"Success":       {"Only a plain exit with 0 is success.", &wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_EXITED}, 0, ""},
		"Failure":       {"The command's code, and not a word.", &wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_EXITED, ExitCode: 255}, 255, ""},
		"Signal":        {"128 and the number, as in a shell.", &wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_SIGNALED, ExitCode: 139, Signal: "SIGSEGV"}, 139, ""},
		"EngineStopped": {"The record's code with the reason.", &wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_ENGINE_STOPPED, ExitCode: 143, Signal: "SIGTERM"}, 143, "engine stopped"},
		"StoppedWithZero": {
			"A command that was stopped may still exit with 0, which is no success.",
			&wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_STOPPED}, exitNoRecord, "stopped on request",
		},
		"Lost": {
			"After a kill of agentd nobody knows the code.",
			&wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_ENGINE_STOPPED, ExitCode: -1, Message: "agentd was killed while the command ran"}, exitNoRecord, "agentd was killed",
		},
		"CodeNotKnown": {"Nor is this one.", &wire.ExitRecord{Reason: wire.ExitReason_EXIT_REASON_EXITED, ExitCode: -1, Message: "no such child"}, exitNoRecord, "no such child"},
		"Unknown":      {"A newer agent's reason is no success.", &wire.ExitRecord{Reason: 99}, exitNoRecord, "99"},
		"Missing":      {"An empty record is no success.", nil, exitNoRecord, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := ending(tc.record)
			var got *codeError
			if tc.want == 0 && err == nil {
				return
			}
			if !errors.As(err, &got) || got.code != tc.want {
				t.Fatalf("%s: got %v, want code %d", tc.reason, err, tc.want)
			}
			if tc.message != "" && (got.err == nil || !strings.Contains(got.err.Error(), tc.message)) || tc.message == "" && got.err != nil && name != "Missing" {
				t.Errorf("%s: says %v, want %q", tc.reason, got.err, tc.message)
			}
		})
	}
}
