package execsession

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/follower"
	"execsession.dev/controllers/workspacepod"
)

// observe reflects the pod, and what its agent says, into the status.
func (r *Reconciler) observe(_ context.Context, t *turn) error {
	key := client.ObjectKeyFromObject(t.session)
	if t.pod == nil {
		r.Agents.Forget(key, "")
		t.observeNoPod()
		return nil
	}
	r.Agents.Forget(key, t.pod.UID)
	t.session.Status.NodeName, t.session.Status.Image = t.pod.Spec.NodeName, workspacepod.ImageOf(t.pod)
	if t.session.Status.Sandbox == nil {
		t.session.Status.Sandbox = &v1alpha1.SandboxStatus{}
	}
	t.session.Status.Sandbox.Injection = workspacepod.InjectionOf(t.pod)
	t.observeScheduling()
	since, in := running(t.pod)
	if in != nil {
		t.observeObstacle(in)
		return nil
	}
	r.Agents.Watch(follower.Target{Session: key, Pod: client.ObjectKeyFromObject(t.pod), UID: t.pod.UID})
	report, silent := r.Agents.Newest(t.pod.UID)
	switch {
	case silent:
		t.set(v1alpha1.ConditionAgentReady, metav1.ConditionUnknown, v1alpha1.ReasonAgentSilent, "the agent should have said something and did not")
		t.wait(v1alpha1.ReasonAgentSilent, "the agent should have said something and did not")
	case report != nil && !report.Status.StartTime.Before(since):
		r.observeReport(t, report)
	case t.knownSince(since):
		t.keepAgent()
	default:
		// There is no word of this run of the container yet.
		t.noAgent(v1alpha1.ReasonAgentStarting, "agentd starts")
		t.wait(v1alpha1.ReasonAgentStarting, "agentd starts")
	}
	return nil
}

func (t *turn) observeNoPod() {
	status := &t.session.Status
	status.NodeName, status.Image, status.Sandbox = "", "", nil
	if t.stalled == nil {
		t.wait(v1alpha1.ReasonPodPending, "the session has no pod yet")
	}
	why := t.stalled
	if why == nil {
		why = t.waiting
	}
	t.set(v1alpha1.ConditionScheduled, metav1.ConditionFalse, why.reason, why.message)
	t.noAgent(why.reason, why.message)
}

func (t *turn) observeScheduling() {
	for _, condition := range t.pod.Status.Conditions {
		if condition.Type != corev1.PodScheduled {
			continue
		}
		if condition.Status == corev1.ConditionTrue {
			t.set(v1alpha1.ConditionScheduled, metav1.ConditionTrue, v1alpha1.ReasonScheduled, "on node "+t.pod.Spec.NodeName)
			return
		}
		t.set(v1alpha1.ConditionScheduled, metav1.ConditionFalse, v1alpha1.ReasonUnschedulable, condition.Message)
		return
	}
	t.set(v1alpha1.ConditionScheduled, metav1.ConditionFalse, v1alpha1.ReasonPodPending, "the scheduler has not looked at the pod yet")
}

func (t *turn) observeObstacle(in *obstacle) {
	why := in.cause
	// The kubelet's words change with every attempt; those of the first are kept, so
	// that a session which can not start is not written about for ever.
	if before := t.condition(v1alpha1.ConditionAgentReady); before != nil && before.Reason == why.reason && in.stuck && t.samePod() {
		why.message = before.Message
	}
	t.noAgent(why.reason, why.message)
	if in.stuck {
		t.stall(why.reason, why.message)
		return
	}
	t.wait(why.reason, why.message)
}

func (t *turn) samePod() bool {
	before := t.base.Status.PodRef
	return before != nil && before.UID == t.pod.UID
}

// noAgent says that commands can not run, and forgets what the last agent said.
func (t *turn) noAgent(reason, message string) {
	t.session.Status.Agent, t.session.Status.Processes = nil, nil
	if sandbox := t.session.Status.Sandbox; sandbox != nil {
		*sandbox = v1alpha1.SandboxStatus{Injection: sandbox.Injection}
	}
	t.set(v1alpha1.ConditionAgentReady, metav1.ConditionFalse, reason, message)
	t.set(v1alpha1.ConditionSandboxEnforced, metav1.ConditionUnknown, v1alpha1.ReasonNotYetReported, "no agent has said what the node enforces")
	if t.document != nil {
		t.set(v1alpha1.ConditionProfileSynced, metav1.ConditionFalse, v1alpha1.ReasonProfileDelivering, "no agent has taken the profile over yet")
	}
}

// knownSince says that the status already speaks of this run of the container, from
// before this operator came to lead.
func (t *turn) knownSince(since time.Time) bool {
	agent := t.base.Status.Agent
	return agent != nil && agent.StartTime != nil && !agent.StartTime.Time.Before(since) && t.samePod()
}

// keepAgent leaves what is known of the agent and draws the same conclusion from it.
func (t *turn) keepAgent() {
	for _, kind := range []string{v1alpha1.ConditionAgentReady, v1alpha1.ConditionProfileSynced} {
		condition := t.condition(kind)
		if condition == nil || condition.Status == metav1.ConditionTrue {
			continue
		}
		if t.was(v1alpha1.ConditionStalled, condition.Reason) {
			t.stall(condition.Reason, condition.Message)
			continue
		}
		t.wait(condition.Reason, condition.Message)
	}
}

// observeReport takes over what the agent says.
func (r *Reconciler) observeReport(t *turn, report *follower.Report) {
	said, status := report.Status, &t.session.Status
	start := metav1.NewTime(said.StartTime).Rfc3339Copy()
	if before := t.base.Status.Agent; before != nil && before.BootID != report.Boot && t.samePod() {
		t.warn(t.pod, v1alpha1.ReasonAgentRestarted, "Observe", "agentd restarted in pod %s: the processes of its last run are gone", t.pod.Name)
	}
	status.Agent = &v1alpha1.AgentStatus{Version: said.AgentVersion, BootID: report.Boot, StartTime: &start}
	status.Processes = &v1alpha1.ProcessCounts{Running: int32(said.Processes.Running), Exited: int64(said.Processes.Exited)}
	if !said.LastActivity.IsZero() {
		minute := metav1.NewTime(said.LastActivity.Truncate(time.Minute)).Rfc3339Copy()
		status.LastActivityTime = &minute
	}
	status.Sandbox.LandlockABI = int32(said.Sandbox.LandlockABI)
	status.Sandbox.Seccomp = said.Sandbox.Seccomp
	status.Sandbox.Network = said.Sandbox.Network
	status.Sandbox.NotEnforced = bounded(said.Sandbox.NotEnforced)
	r.judgePolicy(t, report)
	t.judgeSandbox(report)
	t.judgeSync(report)
}

const (
	maxNotEnforced      = 32
	maxNotEnforcedBytes = 512
)

func bounded(lines []string) []string {
	if len(lines) > maxNotEnforced {
		lines = append(lines[:maxNotEnforced-1:maxNotEnforced-1], fmt.Sprintf("and %d more", len(lines)-maxNotEnforced+1))
	}
	var out []string
	for _, line := range lines {
		out = append(out, cut(line, maxNotEnforcedBytes))
	}
	return out
}

// judgePolicy says whether commands can run.
func (r *Reconciler) judgePolicy(t *turn, report *follower.Report) {
	policy := report.Status.Policy
	if report.Status.Stopping {
		t.set(v1alpha1.ConditionAgentReady, metav1.ConditionFalse, v1alpha1.ReasonAgentStopping, "agentd is ending")
		t.wait(v1alpha1.ReasonAgentStopping, "agentd is ending")
		return
	}
	if policy.Valid {
		t.agentReady(report)
		return
	}
	reason, message := v1alpha1.ReasonPolicyInvalid, fmt.Sprintf("agentd runs nothing: %s: %s", policy.Reason, policy.Message)
	if policy.Reason == v1alpha1.ReasonNotEnforceable {
		reason = v1alpha1.ReasonNotEnforceable
	}
	t.set(v1alpha1.ConditionAgentReady, metav1.ConditionFalse, reason, message)
	if curable[policy.Reason] && r.memory.of(client.ObjectKeyFromObject(t.session)).nudges.count < maxNudges {
		t.wait(reason, message)
		return
	}
	t.stall(reason, message)
}

func (t *turn) agentReady(report *follower.Report) {
	before := t.condition(v1alpha1.ConditionAgentReady)
	if before == nil || before.Status != metav1.ConditionTrue {
		t.normal(t.pod, v1alpha1.ReasonAgentReady, "Observe", "agentd %s is ready on node %s", report.Status.AgentVersion, t.pod.Spec.NodeName)
	}
	if before != nil && before.Reason == v1alpha1.ReasonAgentStarting && restarts(t.pod) == 0 {
		readySeconds.Observe(t.now.Sub(t.pod.CreationTimestamp.Time).Seconds())
	}
	t.set(v1alpha1.ConditionAgentReady, metav1.ConditionTrue, v1alpha1.ReasonAgentReady, "commands can run")
}

func restarts(pod *corev1.Pod) int32 {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == v1alpha1.ContainerWorkspace {
			return status.RestartCount
		}
	}
	return 0
}

func (t *turn) judgeSandbox(report *follower.Report) {
	sandbox, policy := report.Status.Sandbox, report.Status.Policy
	missing := strings.Join(bounded(sandbox.NotEnforced), "; ")
	switch {
	case policy.Valid && sandbox.Enforced:
		t.set(v1alpha1.ConditionSandboxEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced, "the node enforces all of the profile")
	case policy.Valid:
		t.set(v1alpha1.ConditionSandboxEnforced, metav1.ConditionFalse, v1alpha1.ReasonPartlyEnforced, "commands run without: "+missing)
	case policy.Reason == v1alpha1.ReasonNotEnforceable:
		t.set(v1alpha1.ConditionSandboxEnforced, metav1.ConditionFalse, v1alpha1.ReasonNotEnforceable, policy.Message)
	default:
		t.set(v1alpha1.ConditionSandboxEnforced, metav1.ConditionUnknown, v1alpha1.ReasonNotYetReported, "the agent has no valid policy")
	}
}

func (t *turn) judgeSync(report *follower.Report) {
	policy := report.Status.Policy
	if t.document == nil {
		return
	}
	hash := t.document.Profile.Hash
	switch {
	case policy.Valid && policy.ProfileHash == hash:
		t.set(v1alpha1.ConditionProfileSynced, metav1.ConditionTrue, v1alpha1.ReasonProfileSynced,
			fmt.Sprintf("the agent runs under generation %d of the profile", t.document.Profile.Generation))
	case !policy.Valid && !curable[policy.Reason]:
		t.set(v1alpha1.ConditionProfileSynced, metav1.ConditionFalse, v1alpha1.ReasonProfileRejected, policy.Message)
	default:
		message := fmt.Sprintf("generation %d of the profile is on its way to the agent", t.document.Profile.Generation)
		t.set(v1alpha1.ConditionProfileSynced, metav1.ConditionFalse, v1alpha1.ReasonProfileDelivering, message)
		t.wait(v1alpha1.ReasonProfileDelivering, message)
	}
}

var _ Agents = (*follower.Follower)(nil)
