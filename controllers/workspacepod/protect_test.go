package workspacepod

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"execsession.dev/api/v1alpha1"
	"execsession.dev/sandbox"
)

func part(volume, path, sub string) corev1.VolumeMount {
	return corev1.VolumeMount{Name: volume, MountPath: path, SubPath: sub}
}

func readOnlyPart(volume, path, sub string) corev1.VolumeMount {
	return corev1.VolumeMount{Name: volume, MountPath: path, SubPath: sub, ReadOnly: true}
}

func hidden(path string) corev1.VolumeMount {
	return corev1.VolumeMount{Name: volumeDenied, MountPath: path, ReadOnly: true}
}

func TestProtectedPathsAreMounts(t *testing.T) {
	cases := map[string]struct {
		reason string
		dir    string
		files  sandbox.Filesystem
		want   []corev1.VolumeMount
	}{
		"nothing": {reason: "a profile without such paths costs no mount"},
		"read-only in the workspace": {
			reason: "each is a part of the workspace's volume",
			files:  sandbox.Filesystem{ReadOnlyPaths: []string{"/workspace/.git", "/workspace/.claude"}},
			want:   []corev1.VolumeMount{readOnlyPart(volumeWorkspace, "/workspace/.claude", ".claude"), readOnlyPart(volumeWorkspace, "/workspace/.git", ".git")},
		},
		"elsewhere": {
			reason: "the workspace is where the session says, and home and /tmp are volumes too",
			dir:    "/home/agent",
			files:  sandbox.Filesystem{ReadOnlyPaths: []string{"/workspace/.git", "/home/agent/.git", "/tmp/x", "/execsession/home/.ssh"}},
			want: []corev1.VolumeMount{
				readOnlyPart(volumeHome, "/execsession/home/.ssh", ".ssh"), readOnlyPart(volumeWorkspace, "/home/agent/.git", ".git"), readOnlyPart(volumeTmp, "/tmp/x", "x"),
			},
		},
		"deeper": {
			reason: "the folders above are mounts too, or they could be renamed with what is in them",
			files:  sandbox.Filesystem{ReadOnlyPaths: []string{"/workspace/a/b/.git"}},
			want: []corev1.VolumeMount{
				part(volumeWorkspace, "/workspace/a", "a"), part(volumeWorkspace, "/workspace/a/b", "a/b"), readOnlyPart(volumeWorkspace, "/workspace/a/b/.git", "a/b/.git"),
			},
		},
		"one in another": {
			reason: "the outer one holds the inner one",
			files:  sandbox.Filesystem{ReadOnlyPaths: []string{"/workspace/a/b", "/workspace/a", "/workspace/a-b"}},
			want:   []corev1.VolumeMount{readOnlyPart(volumeWorkspace, "/workspace/a", "a"), readOnlyPart(volumeWorkspace, "/workspace/a-b", "a-b")},
		},
		"denied": {
			reason: "an empty volume lies over it, and what is above it stays where it is",
			files:  sandbox.Filesystem{DeniedPaths: []string{"/workspace/secret", "/workspace/a/secret"}},
			want:   []corev1.VolumeMount{part(volumeWorkspace, "/workspace/a", "a"), hidden("/workspace/a/secret"), hidden("/workspace/secret")},
		},
		"read-only in denied": {
			reason: "there is no such folder any more",
			files:  sandbox.Filesystem{ReadOnlyPaths: []string{"/workspace/a/.git", "/workspace/a"}, DeniedPaths: []string{"/workspace/a"}},
			want:   []corev1.VolumeMount{hidden("/workspace/a")},
		},
		"denied in read-only": {
			reason: "no mount point can be made there; the agent says that it is not enforced",
			files:  sandbox.Filesystem{ReadOnlyPaths: []string{"/workspace/a"}, DeniedPaths: []string{"/workspace/a/secret"}},
			want:   []corev1.VolumeMount{readOnlyPart(volumeWorkspace, "/workspace/a", "a")},
		},
		"not below a volume": {
			reason: "commands write there only by file permissions, or not at all; the agent looks",
			files: sandbox.Filesystem{
				ReadOnlyPaths: []string{"/etc", "/workspace", "/execsession", "/execsession/bin/x", "/workspaces/x"},
				DeniedPaths:   []string{"/opt/secret", "/tmp", "/execsession/config"},
			},
		},
		"patterns": {
			reason: "nobody knows yet what they match",
			files:  sandbox.Filesystem{DeniedPaths: []string{"/workspace/*.key", "/workspace/[a]"}},
		},
		"colon": {
			reason: "a mount's path has none",
			files:  sandbox.Filesystem{ReadOnlyPaths: []string{"/workspace/a:b"}, DeniedPaths: []string{"/workspace/c:d"}},
		},
		"read-only mode": {
			reason: "nothing is writable, so nothing has to be protected",
			files:  sandbox.Filesystem{Mode: sandbox.ReadOnly, ReadOnlyPaths: []string{"/workspace/.git"}, DeniedPaths: []string{"/workspace/secret"}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			in := input(v1alpha1.InjectionImageVolume)
			in.Session.Spec.Workspace.MountPath = c.dir
			plain := Build(in)
			in.Filesystem = c.files
			pod := Build(in)
			if err := Verify(pod, in); err != nil {
				t.Errorf("%s: Verify refused our own pod: %v", c.reason, err)
			}
			if broken := outlook(pod); broken != "" {
				t.Errorf("%s: an invariant does not hold: %s", c.reason, broken)
			}
			more := pod.Spec.Containers[0].VolumeMounts[len(plain.Spec.Containers[0].VolumeMounts):]
			if diff := cmp.Diff(c.want, append([]corev1.VolumeMount(nil), more...)); diff != "" {
				t.Errorf("%s: -want +got\n%s", c.reason, diff)
			}
			if len(c.want) > 0 && Verify(plain, in) == nil {
				t.Errorf("%s: a pod without these mounts passed", c.reason)
			}
		})
	}
}

// TestProtectionCannotBeWeakened: a mount that somebody changed in the finished pod is seen.
func TestProtectionCannotBeWeakened(t *testing.T) {
	in := input(v1alpha1.InjectionImageVolume)
	in.Filesystem = sandbox.Filesystem{ReadOnlyPaths: []string{"/workspace/a/.git"}, DeniedPaths: []string{"/workspace/secret"}}
	attacks := map[string]func(mounts []corev1.VolumeMount){
		"writable":       func(m []corev1.VolumeMount) { m[len(m)-2].ReadOnly = false },
		"another folder": func(m []corev1.VolumeMount) { m[len(m)-2].SubPath = "b" },
		"parent moved":   func(m []corev1.VolumeMount) { m[len(m)-3].MountPath = "/workspace/b" },
		"secret shown":   func(m []corev1.VolumeMount) { m[len(m)-1] = part(volumeWorkspace, "/workspace/secret", "secret") },
	}
	for name, attack := range attacks {
		pod := Build(in)
		attack(pod.Spec.Containers[0].VolumeMounts)
		if err := Verify(pod, in); err == nil {
			t.Errorf("%s: the pod passed", name)
		}
	}
}

func TestUncleanPathsMakeNoMount(t *testing.T) {
	for _, path := range []string{"/workspace/../execsession/bin", "/workspace/a/../../etc", "/workspace/./a", "/workspace/a/", "/workspace//a"} {
		in := input(v1alpha1.InjectionImageVolume)
		in.Filesystem = sandbox.Filesystem{ReadOnlyPaths: []string{path}, DeniedPaths: []string{"/tmp/../b/../" + path[1:]}}
		if got := protect(in).mounts(); len(got) > 0 {
			t.Errorf("%q became the mounts %v", path, got)
		}
	}
}
