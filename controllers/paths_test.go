package controllers_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"execsession.dev/agentd/ledger"
	"execsession.dev/api/v1alpha1"
)

// mountAt finds a mount of the pod's container.
func mountAt(pod *corev1.Pod, path string) corev1.VolumeMount {
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		if mount.MountPath == path {
			return mount
		}
	}
	return corev1.VolumeMount{}
}

// TestProtectedPaths: the paths of a profile become mounts of the pod, which the API server takes; a path that is
// added later holds once the pod is made again.
func TestProtectedPaths(t *testing.T) {
	b := newBench(t)
	p := &v1alpha1.SandboxProfile{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: profileName}}
	p.Spec.Filesystem = v1alpha1.ProfileFilesystem{
		ReadOnlyPaths: []v1alpha1.AbsolutePath{"/workspace/.git", "/workspace/a/b", "/etc"},
		DeniedPaths:   []v1alpha1.AbsolutePath{"/workspace/secret", "/etc/**/*.key"},
	}
	b.must(b.Create(t.Context(), p))
	b.operator()
	s := b.session("guarded")
	pod, start := b.ready(s)
	if got := mountAt(pod, "/workspace/.git"); !got.ReadOnly || got.SubPath != ".git" {
		t.Errorf("/workspace/.git is the mount %+v", got)
	}
	if got := mountAt(pod, "/workspace/a"); got.ReadOnly || got.SubPath != "a" {
		t.Errorf("the folder above /workspace/a/b is the mount %+v", got)
	}
	if got := mountAt(pod, "/workspace/secret"); !got.ReadOnly || got.SubPath != "" || got.Name == mountAt(pod, "/workspace").Name {
		t.Errorf("/workspace/secret is the mount %+v", got)
	}

	b.must(b.refresh(p))
	p.Spec.Filesystem.ReadOnlyPaths = append(p.Spec.Filesystem.ReadOnlyPaths, "/workspace/late")
	b.must(b.Update(t.Context(), p))
	const gap = `filesystem.readOnlyPaths "/workspace/late": the pod has to be made again`
	b.say(pod, "boot-1", start, func(status *ledger.Status) {
		status.Sandbox.Enforced, status.Sandbox.NotEnforced = false, []string{gap}
		status.Policy.Valid, status.Policy.Reason, status.Policy.Message = false, "NotEnforceable", gap
	})
	b.has(s, v1alpha1.ConditionSandboxEnforced, metav1.ConditionFalse, v1alpha1.ReasonNotEnforceable)
	b.has(s, v1alpha1.ConditionAgentReady, metav1.ConditionFalse, v1alpha1.ReasonNotEnforceable)
	if got := messageOf(s, v1alpha1.ConditionAgentReady); !strings.Contains(got, "/workspace/late") {
		t.Errorf("the message %q does not name the path", got)
	}
	old := pod.UID
	b.kill(pod)
	b.eventually("there should be another pod", func() error {
		if err := b.refresh(s); err != nil {
			return err
		}
		if s.Status.PodRef == nil || s.Status.PodRef.UID == old {
			return fmt.Errorf("podRef is still %s", old)
		}
		return nil
	})
	pod = b.pod(s)
	if got := mountAt(pod, "/workspace/late"); !got.ReadOnly {
		t.Errorf("/workspace/late is the mount %+v", got)
	}
}
