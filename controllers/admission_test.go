package controllers_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/api/v1alpha1"
)

// refused checks that the API server named the field that is wrong.
func refused(t *testing.T, reason, field string, err error) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Errorf("%s: refused: %v", reason, err)
		}
		return
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		t.Fatalf("%s: got %v, want a refusal of %s", reason, err, field)
	}
	for _, c := range status.Status().Details.Causes {
		if strings.HasPrefix(c.Field, field) {
			return
		}
	}
	t.Errorf("%s: got %v, want a refusal of %s", reason, err, field)
}

func pod(change func(*v1alpha1.SessionPod)) func(*v1alpha1.ExecSession) {
	return func(s *v1alpha1.ExecSession) {
		s.Spec.Pod = &v1alpha1.SessionPod{}
		change(s.Spec.Pod)
	}
}

func env(name string) func(*v1alpha1.ExecSession) {
	return pod(func(p *v1alpha1.SessionPod) { p.Env = []v1alpha1.EnvVar{{Name: name, Value: "x"}} })
}

func mountPath(path string) func(*v1alpha1.ExecSession) {
	return func(s *v1alpha1.ExecSession) { s.Spec.Workspace.MountPath = path }
}

func TestSessionsThatTheAPIRefuses(t *testing.T) {
	b := newBench(t)
	cases := map[string]struct {
		reason string
		change func(*v1alpha1.ExecSession)
		field  string
	}{
		"empty":          {"everything has a default", func(*v1alpha1.ExecSession) {}, ""},
		"profile kind":   {"there are two kinds of profiles", func(s *v1alpha1.ExecSession) { s.Spec.ProfileRef.Kind = "Pod" }, "spec.profileRef.kind"},
		"source":         {"only Own is built", func(s *v1alpha1.ExecSession) { s.Spec.Source.Type = "Pool" }, "spec.source.type"},
		"image":          {"an image is one word", func(s *v1alpha1.ExecSession) { s.Spec.Workspace.Image = "a b" }, "spec.workspace.image"},
		"folder":         {"a folder of its own", mountPath("/home/agent"), ""},
		"root":           {"the root is no workspace", mountPath("/"), "spec.workspace.mountPath"},
		"relative":       {"a path begins with a slash", mountPath("work"), "spec.workspace.mountPath"},
		"dots":           {"a path has no dots", mountPath("/a/../etc"), "spec.workspace.mountPath"},
		"over the agent": {"the agent's folder is its own", mountPath("/execsession/config"), "spec.workspace.mountPath"},
		"over proc":      {"the system's folders stay", mountPath("/proc/1"), "spec.workspace.mountPath"},
		"no size": {"a volume has a size", func(s *v1alpha1.ExecSession) {
			s.Spec.Workspace.Storage = &v1alpha1.WorkspaceStorage{Size: resource.MustParse("0")}
		}, "spec.workspace.storage.size"},
		"read-only volume": {"commands write", func(s *v1alpha1.ExecSession) {
			s.Spec.Workspace.Storage = &v1alpha1.WorkspaceStorage{Size: resource.MustParse("1Gi"), AccessModes: []v1alpha1.StorageAccessMode{"ReadOnlyMany"}}
		}, "spec.workspace.storage.accessModes[0]"},
		"our label": {"labels of ours are ours", pod(func(p *v1alpha1.SessionPod) { p.Labels = map[string]v1alpha1.LabelValue{v1alpha1.LabelSession: "x"} }), "spec.pod.labels"},
		"our annotation": {"annotations of ours are ours", pod(func(p *v1alpha1.SessionPod) {
			p.Annotations = map[string]v1alpha1.AnnotationValue{v1alpha1.AnnotationSession: "x"}
		}), "spec.pod.annotations"},
		"long label": {"a label has at most 63 characters", pod(func(p *v1alpha1.SessionPod) {
			p.Labels = map[string]v1alpha1.LabelValue{"a": v1alpha1.LabelValue(strings.Repeat("x", 64))}
		}), "spec.pod.labels"},
		"variable":       {"variables are fine", env("EDITOR"), ""},
		"our variable":   {"it would steer agentd", env("AGENTD_SOCKET"), "spec.pod.env[0].name"},
		"go variable":    {"it would steer agentd's runtime", env("GODEBUG"), "spec.pod.env[0].name"},
		"bad variable":   {"a variable has a name", env("A=B"), "spec.pod.env[0].name"},
		"system class":   {"sessions do not evict the system", pod(func(p *v1alpha1.SessionPod) { p.PriorityClassName = "system-node-critical" }), "spec.pod.priorityClassName"},
		"relative shell": {"a shell is a path", func(s *v1alpha1.ExecSession) { s.Spec.Execution.Shell.Path = "bash" }, "spec.execution.shell.path"},
		"login":          {"login is one of two words", func(s *v1alpha1.ExecSession) { s.Spec.Execution.Shell.Login = "true" }, "spec.execution.shell.login"},
		"long name":      {"names of ours are made of it", func(s *v1alpha1.ExecSession) { s.Name = strings.Repeat("n", 201) }, "<nil>"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := &v1alpha1.ExecSession{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "admission"}}
			tc.change(s)
			err := b.Create(t.Context(), s, client.DryRunAll)
			if tc.field == "<nil>" {
				if !apierrors.IsInvalid(err) {
					t.Errorf("%s: got %v, want a refusal", tc.reason, err)
				}
				return
			}
			refused(t, tc.reason, tc.field, err)
		})
	}
}

func TestSessionsAreImmutable(t *testing.T) {
	b := newBench(t)
	s := &v1alpha1.ExecSession{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "stone"}}
	b.must(b.Create(t.Context(), s))
	cases := map[string]struct {
		change func(*v1alpha1.ExecSession)
		field  string
	}{
		"labels":     {func(s *v1alpha1.ExecSession) { s.Labels = map[string]string{"a": "b"} }, ""},
		"profileRef": {func(s *v1alpha1.ExecSession) { s.Spec.ProfileRef.Name = "full" }, "spec"},
		"workspace":  {func(s *v1alpha1.ExecSession) { s.Spec.Workspace.Image = "other" }, "spec"},
		"storage": {func(s *v1alpha1.ExecSession) {
			s.Spec.Workspace.Storage = &v1alpha1.WorkspaceStorage{Size: resource.MustParse("1Gi")}
		}, "spec"},
		"pod":       {pod(func(p *v1alpha1.SessionPod) { p.RuntimeClassName = new("other") }), "spec"},
		"execution": {func(s *v1alpha1.ExecSession) { s.Spec.Execution.Shell.Login = v1alpha1.LoginForbidden }, "spec"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			changed := s.DeepCopy()
			tc.change(changed)
			refused(t, name+" can not be changed", tc.field, b.Update(t.Context(), changed, client.DryRunAll))
		})
	}
}

func TestProfilesThatTheAPIRefuses(t *testing.T) {
	b := newBench(t)
	root := func(path string) func(*v1alpha1.SandboxProfileSpec) {
		return func(s *v1alpha1.SandboxProfileSpec) {
			s.Filesystem.WritableRoots = []v1alpha1.AbsolutePath{v1alpha1.AbsolutePath(path)}
		}
	}
	cases := map[string]struct {
		reason string
		change func(*v1alpha1.SandboxProfileSpec)
		field  string
	}{
		"empty":     {"everything has a default", func(*v1alpha1.SandboxProfileSpec) {}, ""},
		"root":      {"the root may be writable", root("/"), ""},
		"path":      {"a path of words", root("/data/cache"), ""},
		"dots":      {"a path has no dots", root("/data/../etc"), "spec.filesystem.writableRoots"},
		"last dots": {"a path has no dots", root("/data/.."), "spec.filesystem.writableRoots"},
		"slash":     {"a path has no slash at its end", root("/data/"), "spec.filesystem.writableRoots"},
		"mode":      {"modes are words", func(s *v1alpha1.SandboxProfileSpec) { s.Filesystem.Mode = "None" }, "spec.filesystem.mode"},
		"network":   {"modes are words", func(s *v1alpha1.SandboxProfileSpec) { s.Network.Mode = "Host" }, "spec.network.mode"},
		"protected": {"some commands must be left to end", func(s *v1alpha1.SandboxProfileSpec) {
			s.Limits.MaxProcesses, s.Limits.ProtectedProcesses = 4, ptr.To[int32](4)
		}, "spec.limits"},
		"syscall": {"system calls are lower-case words", func(s *v1alpha1.SandboxProfileSpec) {
			s.Process = &v1alpha1.ProfileProcess{DeniedSyscalls: []string{"Ptrace!"}}
		}, "spec.process.deniedSyscalls"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := &v1alpha1.SandboxProfile{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "admission"}}
			tc.change(&p.Spec)
			refused(t, tc.reason, tc.field, b.Create(t.Context(), p, client.DryRunAll))
		})
	}
}

func TestProfileStatus(t *testing.T) {
	b := newBench(t)
	p := b.profile()
	b.operator()
	s := b.session("counted")
	b.ready(s)
	b.eventually("the profile should count its session", func() error {
		if err := b.refresh(p); err != nil {
			return err
		}
		if c := p.Status.Sessions; c == nil || c.Total != 1 || c.InSync != 1 || p.Status.Hash == "" {
			return errors.New("status is not yet complete")
		}
		return nil
	})
}

func TestPodThatTheServerRefuses(t *testing.T) {
	b := newBench(t)
	b.profile()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "none"}}
	quota.Spec.Hard = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
	b.must(b.Create(t.Context(), quota))
	quota.Status.Hard, quota.Status.Used = quota.Spec.Hard, corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
	b.must(b.Status().Update(t.Context(), quota))
	b.operator()
	s := b.session("poor")
	b.has(s, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonPodRefused)
}
