package controllers_test

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/agentd/config"
	"execsession.dev/agentd/ledger"
	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/naming"
)

// profileName is the SandboxProfile that tests' sessions name.
const profileName = "tests"

// profile makes the tests' profile in the namespace.
func (b *bench) profile() *v1alpha1.SandboxProfile {
	b.Helper()
	p := &v1alpha1.SandboxProfile{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: profileName}}
	b.must(b.Create(b.Context(), p))
	return p
}

// session makes a session that names the tests' profile.
func (b *bench) session(name string, change ...func(*v1alpha1.ExecSession)) *v1alpha1.ExecSession {
	b.Helper()
	s := &v1alpha1.ExecSession{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: name}}
	s.Spec.ProfileRef = v1alpha1.ProfileReference{Kind: v1alpha1.KindSandboxProfile, Name: profileName}
	s.Spec.Workspace.Image = "workspace:1"
	for _, c := range change {
		c(s)
	}
	b.must(b.Create(b.Context(), s))
	return s
}

// refresh reads an object again.
func (b *bench) refresh(obj client.Object) error {
	return b.Get(b.Context(), client.ObjectKeyFromObject(obj), obj)
}

// has waits until a condition has a status and a reason.
func (b *bench) has(s *v1alpha1.ExecSession, kind string, status metav1.ConditionStatus, reason string) {
	b.Helper()
	b.eventually(fmt.Sprintf("%s should become %s/%s", kind, status, reason), func() error {
		if err := b.refresh(s); err != nil {
			return err
		}
		found := meta.FindStatusCondition(s.Status.Conditions, kind)
		if found == nil || found.Status != status || found.Reason != reason {
			return fmt.Errorf("conditions are %v", conditionsOf(s.Status.Conditions))
		}
		return nil
	})
}

func conditionsOf(conditions []metav1.Condition) []string {
	var out []string
	for _, c := range conditions {
		out = append(out, fmt.Sprintf("%s=%s/%s (%s)", c.Type, c.Status, c.Reason, c.Message))
	}
	return out
}

// pod waits for the session's pod and returns it.
func (b *bench) pod(s *v1alpha1.ExecSession) *corev1.Pod {
	b.Helper()
	pod := &corev1.Pod{}
	b.eventually("the session should have the pod of its podRef", func() error {
		if err := b.refresh(s); err != nil {
			return err
		}
		if err := b.Get(b.Context(), types.NamespacedName{Namespace: s.Namespace, Name: naming.Pod(s.Name)}, pod); err != nil {
			return err
		}
		if s.Status.PodRef == nil || s.Status.PodRef.UID != pod.UID {
			return fmt.Errorf("podRef is %v, the pod's uid %s", s.Status.PodRef, pod.UID)
		}
		return nil
	})
	return pod
}

// bind does the scheduler's work.
func (b *bench) bind(pod *corev1.Pod, node string) {
	b.Helper()
	b.must(b.SubResource("binding").Create(b.Context(), pod, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}))
	b.must(b.refresh(pod))
}

// container does the kubelet's work: it says what became of the workspace's container.
func (b *bench) container(pod *corev1.Pod, state corev1.ContainerState) {
	b.Helper()
	b.must(b.refresh(pod))
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: v1alpha1.ContainerWorkspace, Image: pod.Spec.Containers[0].Image, ImageID: "id", State: state,
	}}
	if state.Running != nil {
		pod.Status.Phase = corev1.PodRunning
	}
	b.must(b.Status().Update(b.Context(), pod))
}

// run starts the pod's container, and returns when that was.
func (b *bench) run(pod *corev1.Pod) time.Time {
	b.Helper()
	if pod.Spec.NodeName == "" {
		b.bind(pod, "node-1")
	}
	start := time.Now().Truncate(time.Second)
	b.container(pod, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(start)}})
	return start
}

// documents reads what the pod's agent would read.
func (b *bench) documents(pod *corev1.Pod) (session config.SessionDocument, hash string, err error) {
	if err := b.refresh(pod); err != nil {
		return session, "", err
	}
	trusted := keys(b.T, 1).Public()
	session, err = config.OpenSession([]byte(pod.Annotations[v1alpha1.AnnotationSession]), trusted)
	if err != nil {
		return session, "", err
	}
	copied := &corev1.ConfigMap{}
	if err := b.Get(b.Context(), b.copyKey(), copied); err != nil {
		return session, "", err
	}
	profile, hash, err := config.OpenProfile([]byte(copied.Data[config.ProfileFile]), trusted)
	if err != nil {
		return session, "", err
	}
	return session, hash, config.CheckPair(profile, hash, session)
}

func (b *bench) copyKey() types.NamespacedName {
	return types.NamespacedName{Namespace: b.namespace, Name: "execsession-profile-s-" + profileName}
}

// say writes a status of the pod's agent.
func (b *bench) say(pod *corev1.Pod, boot string, start time.Time, change ...func(*ledger.Status)) {
	b.Helper()
	var status ledger.Status
	b.eventually("the documents of the pod should be right", func() error {
		session, hash, err := b.documents(pod)
		status = ledger.Status{
			AgentVersion: "v1", StartTime: start,
			Sandbox: ledger.Sandbox{LandlockABI: 7, Seccomp: true, Network: "None", Enforced: true},
			Policy:  ledger.Policy{Valid: true, ProfileHash: hash, SessionRevision: session.Revision},
		}
		return err
	})
	for _, c := range change {
		c(&status)
	}
	b.must(b.logs.write(client.ObjectKeyFromObject(pod), boot, status))
}

// ready brings a session to Ready as a cluster would, and returns its pod and when the agent started.
func (b *bench) ready(s *v1alpha1.ExecSession) (*corev1.Pod, time.Time) {
	b.Helper()
	pod := b.pod(s)
	start := b.run(pod)
	b.say(pod, "boot-1", start)
	b.has(s, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonRunning)
	return pod, start
}

// event waits for an event about a session.
func (b *bench) event(s *v1alpha1.ExecSession, reason, within string) {
	b.Helper()
	b.eventually("there should be an event "+reason, func() error {
		if b.hasEvent(s, reason, within) {
			return nil
		}
		return fmt.Errorf("there is none with %q", within)
	})
}

// hasEvent says whether there is an event about a session with this reason and text.
func (b *bench) hasEvent(s *v1alpha1.ExecSession, reason, within string) bool {
	b.Helper()
	list := &eventsv1.EventList{}
	b.must(b.List(b.Context(), list, client.InNamespace(s.Namespace)))
	for _, e := range list.Items {
		if e.Regarding.UID == s.UID && e.Reason == reason && strings.Contains(e.Note, within) {
			return true
		}
	}
	return false
}

// versions are the resource versions of all that a session costs.
func (b *bench) versions(s *v1alpha1.ExecSession, pod *corev1.Pod) string {
	b.Helper()
	copied := &corev1.ConfigMap{}
	b.must(errors.Join(b.refresh(s), b.refresh(pod), b.Get(b.Context(), b.copyKey(), copied)))
	return strings.Join([]string{s.ResourceVersion, pod.ResourceVersion, copied.ResourceVersion}, "/")
}

// kill ends a pod as a kubelet would that has nothing to end.
func (b *bench) kill(pod *corev1.Pod) {
	b.Helper()
	b.must(client.IgnoreNotFound(b.Delete(b.Context(), pod, &client.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})))
}
