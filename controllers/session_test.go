package controllers_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/agentd/ledger"
	"execsession.dev/api/v1alpha1"
)

func TestSmallestSession(t *testing.T) {
	b := newBench(t)
	b.operator()
	shared := &v1alpha1.ClusterSandboxProfile{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if err := b.Create(t.Context(), shared); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	s := &v1alpha1.ExecSession{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "smallest"}}
	b.must(b.Create(t.Context(), s))
	pod := b.pod(s)
	if got, want := pod.Spec.Containers[0].Image, "workspace:default"; got != want {
		t.Errorf("image is %q, want the operator's default %q", got, want)
	}
	if diff := cmp.Diff(v1alpha1.ProfileReference{Kind: v1alpha1.KindClusterSandboxProfile, Name: "default"}, s.Spec.ProfileRef); diff != "" {
		t.Errorf("profileRef: -want +got\n%s", diff)
	}
	copied := &corev1.ConfigMap{}
	b.must(b.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "execsession-profile-c-default"}, copied))
	b.event(s, v1alpha1.ReasonPodCreated, pod.Name)
}

func TestLifeOfASession(t *testing.T) {
	b := newBench(t)
	b.operator()
	s := b.session("life")

	b.has(s, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProfileNotFound)
	b.event(s, v1alpha1.ReasonProfileNotFound, profileName)
	b.profile()
	pod := b.pod(s)
	b.has(s, v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonPodPending)
	if !metav1.IsControlledBy(pod, s) {
		t.Errorf("the pod's owners are %v: it would outlive its session", pod.OwnerReferences)
	}

	start := b.run(pod)
	b.has(s, v1alpha1.ConditionAgentReady, metav1.ConditionFalse, v1alpha1.ReasonAgentStarting)
	b.say(pod, "boot-1", start, func(status *ledger.Status) {
		status.Processes = ledger.Processes{Running: 2, Exited: 5}
		status.LastActivity = start.Add(90 * time.Second)
	})
	b.has(s, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonRunning)
	b.has(s, v1alpha1.ConditionAgentReady, metav1.ConditionTrue, v1alpha1.ReasonAgentReady)
	b.has(s, v1alpha1.ConditionSandboxEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)
	b.has(s, v1alpha1.ConditionProfileSynced, metav1.ConditionTrue, v1alpha1.ReasonProfileSynced)
	b.event(s, v1alpha1.ReasonAgentReady, "node-1")
	for _, c := range s.Status.Conditions {
		if c.Type == v1alpha1.ConditionReconciling || c.Type == v1alpha1.ConditionStalled {
			t.Errorf("condition %s is there though the session is ready", c.Type)
		}
	}
	status := s.Status
	if diff := cmp.Diff(&v1alpha1.SandboxStatus{LandlockABI: 7, Seccomp: true, Network: "None", Injection: v1alpha1.InjectionImageVolume}, status.Sandbox); diff != "" {
		t.Errorf("status.sandbox: -want +got\n%s", diff)
	}
	if diff := cmp.Diff(&v1alpha1.ProcessCounts{Running: 2, Exited: 5}, status.Processes); diff != "" {
		t.Errorf("status.processes: -want +got\n%s", diff)
	}
	if got := status.LastActivityTime.Time; !got.Equal(got.Truncate(time.Minute)) {
		t.Errorf("status.lastActivityTime is %s, want a whole minute", got)
	}
	if status.NodeName != "node-1" || status.Agent == nil || status.Agent.BootID != "boot-1" {
		t.Errorf("status is %+v", status)
	}

	// Deleting the session: the garbage collector, which a test has not, takes the pod by
	// its owner; the copy of the profile goes by the operator.
	b.must(b.Delete(t.Context(), s))
	b.eventually("the profile's copy should go with its last session", func() error {
		err := b.Get(t.Context(), b.copyKey(), &corev1.ConfigMap{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is not gone"), err)
	})
}

func TestCopyStaysWhileUsed(t *testing.T) {
	b := newBench(t)
	b.profile()
	b.operator()
	first, second := b.session("first"), b.session("second")
	b.ready(first)
	b.ready(second)
	b.must(b.Delete(t.Context(), first))
	settle(t)
	b.must(b.Get(t.Context(), b.copyKey(), &corev1.ConfigMap{}))
}

// settle gives an operator time to do what it should not.
func settle(t *testing.T) {
	t.Helper()
	select {
	case <-time.After(2 * time.Second):
	case <-t.Context().Done():
	}
}

func TestNothingIsWrittenAtRest(t *testing.T) {
	b := newBench(t)
	b.profile()
	b.operator()
	s := b.session("rest")
	pod, start := b.ready(s)
	before := b.versions(s, pod)
	for range 3 {
		b.say(pod, "boot-1", start) // heartbeats
	}
	settle(t)
	if after := b.versions(s, pod); after != before {
		t.Errorf("versions went from %s to %s though nothing happened", before, after)
	}
}

func TestPodIsMadeAgain(t *testing.T) {
	b := newBench(t)
	b.profile()
	b.operator()
	cases := map[string]struct {
		reason string
		event  string
		end    func(b *bench, s *v1alpha1.ExecSession, pod *corev1.Pod)
	}{
		"deleted": {
			reason: "somebody deleted the pod",
			event:  v1alpha1.ReasonPodRecreated,
			end:    func(b *bench, _ *v1alpha1.ExecSession, pod *corev1.Pod) { b.kill(pod) },
		},
		"evicted": {
			reason: "a node evicted the pod",
			event:  v1alpha1.ReasonPodFailed,
			end: func(b *bench, _ *v1alpha1.ExecSession, pod *corev1.Pod) {
				b.must(b.refresh(pod))
				pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "Evicted", "no memory"
				b.must(b.Status().Update(b.Context(), pod))
				b.reap(pod)
			},
		},
		"forged": {
			reason: "somebody put a pod of the same name and owner in its place",
			event:  v1alpha1.ReasonPodDeleted,
			end:    func(b *bench, s *v1alpha1.ExecSession, pod *corev1.Pod) { b.forge(s, pod) },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := b.in(t)
			s := b.session(name)
			pod, _ := b.ready(s)
			old := pod.UID
			tc.end(b, s, pod)
			b.eventually(tc.reason+": there should be another pod", func() error {
				if err := b.refresh(s); err != nil {
					return err
				}
				if s.Status.PodRef.UID == old {
					return fmt.Errorf("podRef is still %s", old)
				}
				return nil
			})
			b.event(s, tc.event, "pod")
			b.event(s, v1alpha1.ReasonPodRecreated, string(old))
			b.ready(s)
		})
	}
}

// reap ends a pod that is being deleted, as its kubelet would.
func (b *bench) reap(pod *corev1.Pod) {
	b.Helper()
	old := pod.UID
	b.eventually("the operator should delete the pod", func() error {
		// An API server removes a failed pod at once, so there may be the next one already.
		if err := b.refresh(pod); err != nil || pod.UID != old {
			return client.IgnoreNotFound(err)
		}
		if pod.DeletionTimestamp.IsZero() {
			return fmt.Errorf("pod %s is not being deleted", pod.Name)
		}
		b.kill(pod)
		return nil
	})
}

// forge replaces a session's pod by one that only looks like it.
func (b *bench) forge(s *v1alpha1.ExecSession, pod *corev1.Pod) {
	b.Helper()
	forged := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels, Annotations: pod.Annotations, OwnerReferences: pod.OwnerReferences,
	}}
	forged.Spec.Containers = []corev1.Container{{Name: v1alpha1.ContainerWorkspace, Image: "evil:1"}}
	// Between the two the operator may be faster: then the name is taken, and there is
	// nothing to forge; try until the forgery stands.
	b.eventually("the forged pod should get its place", func() error {
		b.must(client.IgnoreNotFound(b.refresh(pod)))
		b.must(client.IgnoreNotFound(b.Delete(b.Context(), pod, &client.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})))
		forged.ResourceVersion = ""
		return b.Create(b.Context(), forged)
	})
	b.eventually("the forged pod should be removed", func() error {
		found := &corev1.Pod{}
		if err := b.Get(b.Context(), client.ObjectKeyFromObject(forged), found); err != nil {
			return client.IgnoreNotFound(err)
		}
		if found.UID == forged.UID {
			return fmt.Errorf("it is still there")
		}
		return nil
	})
}

func TestForeignPodIsLeftAlone(t *testing.T) {
	b := newBench(t)
	b.profile()
	foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "execsession-mine"}}
	foreign.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	b.must(b.Create(t.Context(), foreign))
	b.operator()
	s := b.session("mine")
	b.has(s, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonNameTaken)
	b.must(b.refresh(foreign))
	if !foreign.DeletionTimestamp.IsZero() {
		t.Error("a pod that is not ours was deleted")
	}
}

func TestContainerThatDoesNotStart(t *testing.T) {
	b := newBench(t)
	b.profile()
	b.operator()
	s := b.session("typo", func(s *v1alpha1.ExecSession) { s.Spec.Workspace.Image = "no/such:image" })
	pod := b.pod(s)
	b.bind(pod, "node-1")
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	b.container(pod, waiting("ErrImagePull", "not found at 10:00"))
	b.has(s, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonImagePullFailed)
	b.has(s, v1alpha1.ConditionAgentReady, metav1.ConditionFalse, v1alpha1.ReasonImagePullFailed)
	b.has(s, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonImagePullFailed)
	before := messageOf(s, v1alpha1.ConditionReady)
	for _, part := range []string{"no/such:image", "not found"} {
		if !strings.Contains(before, part) {
			t.Errorf("the message %q does not say %q", before, part)
		}
	}
	version := s.ResourceVersion
	b.container(pod, waiting("ImagePullBackOff", "not found at 10:01"))
	settle(t)
	b.must(b.refresh(s))
	if s.ResourceVersion != version {
		t.Errorf("another attempt of the kubelet was written into the status")
	}
	b.ready(s)
}

func messageOf(s *v1alpha1.ExecSession, kind string) string {
	for _, c := range s.Status.Conditions {
		if c.Type == kind {
			return c.Message
		}
	}
	return ""
}

func TestAgentRestartAndWhatItCanNotEnforce(t *testing.T) {
	b := newBench(t)
	b.profile()
	b.operator()
	s := b.session("restart")
	pod, _ := b.ready(s)

	// The container starts again: what the old agent said no longer counts.
	later := time.Now().Add(3 * time.Second).Truncate(time.Second)
	b.container(pod, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(later)}})
	b.has(s, v1alpha1.ConditionAgentReady, metav1.ConditionFalse, v1alpha1.ReasonAgentStarting)
	b.say(pod, "boot-2", later, func(status *ledger.Status) {
		status.Sandbox.Enforced, status.Sandbox.NotEnforced = false, []string{"filesystem: no Landlock"}
		status.Policy.Valid, status.Policy.Reason, status.Policy.Message = false, "NotEnforceable", "the kernel has no Landlock"
	})
	b.has(s, v1alpha1.ConditionSandboxEnforced, metav1.ConditionFalse, v1alpha1.ReasonNotEnforceable)
	b.has(s, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonNotEnforceable)
	b.has(s, v1alpha1.ConditionAgentReady, metav1.ConditionFalse, v1alpha1.ReasonNotEnforceable)

	// The profile lets it run with less.
	b.say(pod, "boot-2", later, func(status *ledger.Status) {
		status.Sandbox.Enforced, status.Sandbox.NotEnforced = false, []string{"filesystem: no Landlock"}
	})
	b.has(s, v1alpha1.ConditionSandboxEnforced, metav1.ConditionFalse, v1alpha1.ReasonPartlyEnforced)
	b.has(s, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonRunning)
}

func TestStorage(t *testing.T) {
	b := newBench(t)
	b.profile()
	b.operator()
	s := b.session("disk", func(s *v1alpha1.ExecSession) {
		s.Spec.Workspace.Storage = &v1alpha1.WorkspaceStorage{Size: resource.MustParse("1Gi"), StorageClassName: new("fast")}
	})
	pod := b.pod(s)
	claim := &corev1.PersistentVolumeClaim{}
	b.must(b.Get(t.Context(), client.ObjectKeyFromObject(pod), claim))
	if !metav1.IsControlledBy(claim, s) {
		t.Errorf("the claim's owners are %v: it would outlive its session", claim.OwnerReferences)
	}
	if size := claim.Spec.Resources.Requests[corev1.ResourceStorage]; size.String() != "1Gi" || *claim.Spec.StorageClassName != "fast" {
		t.Errorf("the claim is %+v", claim.Spec)
	}
	b.has(s, v1alpha1.ConditionStorageReady, metav1.ConditionFalse, v1alpha1.ReasonStoragePending)
	b.event(s, v1alpha1.ReasonVolumeClaimMade, claim.Name)
	claim.Status.Phase = corev1.ClaimBound
	b.must(b.Status().Update(t.Context(), claim))
	b.has(s, v1alpha1.ConditionStorageReady, metav1.ConditionTrue, v1alpha1.ReasonStorageBound)
	var mounted bool
	for _, volume := range pod.Spec.Volumes {
		mounted = mounted || volume.PersistentVolumeClaim != nil && volume.PersistentVolumeClaim.ClaimName == claim.Name
	}
	if !mounted {
		t.Errorf("the pod does not use the claim: %+v", pod.Spec.Volumes)
	}
}

func TestAnotherLeaderKnowsAtOnce(t *testing.T) {
	b := newBench(t)
	b.profile()
	stop := b.operator()
	s := b.session("handover")
	pod, start := b.ready(s)
	stop()

	// While nobody leads a command starts, and the pod stays what it is.
	b.say(pod, "boot-1", start, func(status *ledger.Status) { status.Processes.Running = 1 })
	b.must(b.refresh(s))
	before := s.DeepCopy()
	b.operator()
	b.eventually("the next leader should count the command", func() error {
		if err := b.refresh(s); err != nil {
			return err
		}
		if s.Status.Processes == nil || s.Status.Processes.Running != 1 {
			return fmt.Errorf("processes are %+v", s.Status.Processes)
		}
		return nil
	})
	if diff := cmp.Diff(before.Status.Conditions, s.Status.Conditions); diff != "" {
		t.Errorf("the change of leader changed conditions: -before +after\n%s", diff)
	}
	if s.Status.PodRef.UID != before.Status.PodRef.UID {
		t.Error("the change of leader cost the pod")
	}
}

func TestNamespaceThatEnds(t *testing.T) {
	b := newBench(t)
	b.profile()
	b.operator()
	s := b.session("last")
	pod, _ := b.ready(s)
	// A test's namespace never ends, as nobody empties it: it stays as one that is being emptied.
	b.must(b.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.namespace}}))
	b.eventually("nothing more can be made in the namespace", func() error {
		err := b.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "probe"}}, client.DryRunAll)
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		return errors.Join(errors.New("creating something was not refused for that"), err)
	})
	b.kill(pod)
	settle(t)
	b.must(b.refresh(s))
	if got := messageOf(s, v1alpha1.ConditionStalled); got != "" {
		t.Errorf("the session stalls as its namespace ends: %s", got)
	}
}
