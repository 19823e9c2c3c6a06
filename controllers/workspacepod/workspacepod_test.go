package workspacepod

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"execsession.dev/api/v1alpha1"
)

func input(injection v1alpha1.Injection) Input {
	return Input{
		Settings: Settings{
			AgentImage: "agent:1", AgentPullPolicy: corev1.PullIfNotPresent, WorkspaceImage: "workspace:1", Injection: injection,
		},
		Session: &v1alpha1.ExecSession{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hello", UID: "u-1"},
		},
		ProfileConfigMap: "execsession-profile-c-default",
		SessionDocument:  `{"version":1}`,
		VerifyKeys:       "a2V5",
	}
}

func TestBuiltPodIsAllowed(t *testing.T) {
	cases := map[string]func(*Input){
		"smallest":       func(*Input) {},
		"init container": func(in *Input) { in.Injection = v1alpha1.InjectionInitContainer },
		"user namespace": func(in *Input) { in.UserNamespace = true },
		"storage": func(in *Input) {
			in.Session.Spec.Workspace.Storage = &v1alpha1.WorkspaceStorage{Size: resource.MustParse("1Gi")}
		},
		"everything": func(in *Input) {
			in.Injection = v1alpha1.InjectionInitContainer
			in.Session.Spec.Workspace.MountPath = "/home/agent"
			in.Session.Spec.Pod = &v1alpha1.SessionPod{
				Labels:           map[string]v1alpha1.LabelValue{"team": "a"},
				Annotations:      map[string]v1alpha1.AnnotationValue{"note": "b"},
				NodeSelector:     map[string]v1alpha1.LabelValue{"disk": "fast"},
				Tolerations:      []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				Resources:        &v1alpha1.ComputeResources{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
				Env:              []v1alpha1.EnvVar{{Name: "PRICE", Value: "$(HOME)$$5"}},
				ImagePullSecrets: []v1alpha1.LocalReference{{Name: "pull"}},
				RuntimeClassName: new("kata"),
			}
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			in := input(v1alpha1.InjectionImageVolume)
			change(&in)
			pod := Build(in)
			if err := Verify(pod, in); err != nil {
				t.Fatalf("Verify refused our own pod: %v", err)
			}
			if broken := outlook(pod); broken != "" {
				t.Errorf("an invariant does not hold: %s", broken)
			}
			if got, want := InjectionOf(pod), in.Injection; got != want {
				t.Errorf("InjectionOf is %q, want %q", got, want)
			}
			if got := VerifyKeysOf(pod); got != in.VerifyKeys {
				t.Errorf("VerifyKeysOf is %q, want %q", got, in.VerifyKeys)
			}
		})
	}
}

func TestValuesStayAsTheyWereWritten(t *testing.T) {
	in := input(v1alpha1.InjectionImageVolume)
	in.Session.Spec.Pod = &v1alpha1.SessionPod{Env: []v1alpha1.EnvVar{{Name: "A", Value: "$(B) $$(C) $D"}}}
	// Kubernetes turns "$$" into "$" and expands nothing then.
	if got, want := Build(in).Spec.Containers[0].Env[0].Value, "$$(B) $$$$(C) $$D"; got != want {
		t.Errorf("value is %q, want %q", got, want)
	}
}

// attacks are what a merge with somebody else's pod may leave behind.
var attacks = map[string]func(*corev1.Pod){
	"another command": func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"sh"} },
	"another key":     func(p *corev1.Pod) { p.Spec.Containers[0].Command[5] = "--verify-key=bWluZQ==" },
	"arguments":       func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"--config-dir=/workspace"} },
	"sidecar":         func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "side"}) },
	"sidecar first": func(p *corev1.Pod) {
		p.Spec.Containers = append([]corev1.Container{{Name: "side"}}, p.Spec.Containers...)
	},
	"init container": func(p *corev1.Pod) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "i"})
	},
	"ephemeral container": func(p *corev1.Pod) { p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{}} },
	"no container":        func(p *corev1.Pod) { p.Spec.Containers = nil },
	"hook":                func(p *corev1.Pod) { p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{} },
	"probe":               func(p *corev1.Pod) { p.Spec.Containers[0].LivenessProbe = &corev1.Probe{} },
	"readiness probe":     func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{} },
	"startup probe":       func(p *corev1.Pod) { p.Spec.Containers[0].StartupProbe = &corev1.Probe{} },
	"standard input":      func(p *corev1.Pod) { p.Spec.Containers[0].Stdin = true },
	"terminal":            func(p *corev1.Pod) { p.Spec.Containers[0].TTY = true },
	"port":                func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 1}} },
	"variable":            func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "AGENTD_CONFIG_DIR"}} },
	"runtime's variable":  func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "GODEBUG"}} },
	"secret in a variable": func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{}}}
	},
	"variables from": func(p *corev1.Pod) { p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{}} },
	"agent's volume": func(p *corev1.Pod) {
		p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	},
	"another agent":   func(p *corev1.Pod) { p.Spec.Volumes[0].Image = &corev1.ImageVolumeSource{Reference: "evil:1"} },
	"another profile": func(p *corev1.Pod) { p.Spec.Volumes[1].Projected.Sources[0].ConfigMap.Name = "mine" },
	"host path": func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
	},
	"secret volume": func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}})
	},
	"mount over the agent": func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: volumeWorkspace, MountPath: "/execsession/bin"})
	},
	"mount over the config": func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[1].Name = volumeWorkspace },
	"writable agent":        func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[0].ReadOnly = false },
	"part of a volume":      func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[0].SubPath = "x" },
	"device": func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "d", DevicePath: "/dev/d"}}
	},
	"host processes":   func(p *corev1.Pod) { p.Spec.HostPID = true },
	"host network":     func(p *corev1.Pod) { p.Spec.HostNetwork = true },
	"host ipc":         func(p *corev1.Pod) { p.Spec.HostIPC = true },
	"shared processes": func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) },
	"user namespace":   func(p *corev1.Pod) { p.Spec.HostUsers = new(false) },
	"node":             func(p *corev1.Pod) { p.Spec.NodeName = "n" },
	"service account":  func(p *corev1.Pod) { p.Spec.ServiceAccountName = "admin" },
	"token":            func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = nil },
	"service links":    func(p *corev1.Pod) { p.Spec.EnableServiceLinks = nil },
	"host aliases":     func(p *corev1.Pod) { p.Spec.HostAliases = []corev1.HostAlias{{IP: "1.1.1.1"}} },
	"system class":     func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" },
	"never restarted":  func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever },
	"no grace":         func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0) },
	"deadline":         func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) },
	"gate":             func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} },
	"root":             func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext.RunAsUser = ptr.To[int64](0) },
	"capability": func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_ADMIN"}
	},
	"privileged":      func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext.Privileged = new(true) },
	"escalation":      func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil },
	"bare proc":       func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext.ProcMount = ptr.To(corev1.UnmaskedProcMount) },
	"unconfined":      func(p *corev1.Pod) { p.Spec.SecurityContext.SeccompProfile.Type = corev1.SeccompProfileTypeUnconfined },
	"no pod security": func(p *corev1.Pod) { p.Spec.SecurityContext = nil },
	"sysctl":          func(p *corev1.Pod) { p.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "kernel.x", Value: "1"}} },
	"no armour": func(p *corev1.Pod) {
		p.Annotations["container.apparmor.security.beta.kubernetes.io/workspace"] = "unconfined"
	},
	"our label":              func(p *corev1.Pod) { p.Labels[v1alpha1.LabelSession] = "another" },
	"a label like ours":      func(p *corev1.Pod) { p.Labels["execsession.dev/new"] = "x" },
	"an annotation of ours":  func(p *corev1.Pod) { p.Annotations["execsession.dev/new"] = "x" },
	"another document":       func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationSession] = "{}" },
	"another namespace":      func(p *corev1.Pod) { p.Namespace = "kube-system" },
	"another name":           func(p *corev1.Pod) { p.Name = "coredns" },
	"another owner":          func(p *corev1.Pod) { p.OwnerReferences[0].UID = "u-2" },
	"finalizer":              func(p *corev1.Pod) { p.Finalizers = []string{"x/y"} },
	"resource claim":         func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} },
	"no image":               func(p *corev1.Pod) { p.Spec.Containers[0].Image = "" },
	"another container name": func(p *corev1.Pod) { p.Spec.Containers[0].Name = "main" },
}

func TestVerifyRefuses(t *testing.T) {
	for name, attack := range attacks {
		for _, injection := range []v1alpha1.Injection{v1alpha1.InjectionImageVolume, v1alpha1.InjectionInitContainer} {
			if name == "agent's volume" && injection == v1alpha1.InjectionInitContainer {
				continue // there it is what the volume must be
			}
			t.Run(name+"/"+string(injection), func(t *testing.T) {
				in := input(injection)
				pod := Build(in)
				attack(pod)
				if err := Verify(pod, in); !errors.Is(err, ErrForbidden) {
					t.Errorf("Verify returned %v, want a refusal", err)
				}
			})
		}
	}
}

// outlook looks at a pod without knowing how it was built or verified: what must hold
// for any pod that is created for a session.
func outlook(pod *corev1.Pod) string {
	c := pod.Spec.Containers[0]
	switch {
	case len(pod.Spec.Containers) != 1 || c.Name != "workspace":
		return "containers"
	case len(c.Command) != 7 || c.Command[0] != "/execsession/bin/agentd" || c.Command[1] != "serve" || len(c.Args) != 0:
		return "command"
	case pod.Spec.HostPID || pod.Spec.HostNetwork || pod.Spec.HostIPC || pod.Spec.ShareProcessNamespace != nil:
		return "namespaces"
	case *pod.Spec.AutomountServiceAccountToken || *pod.Spec.EnableServiceLinks || pod.Spec.ServiceAccountName != "":
		return "credentials"
	case len(c.SecurityContext.Capabilities.Add) != 0 || *c.SecurityContext.AllowPrivilegeEscalation || *c.SecurityContext.RunAsUser == 0:
		return "privileges"
	case c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil || c.Lifecycle != nil:
		return "hooks"
	}
	for _, mount := range c.VolumeMounts {
		inside := strings.HasPrefix(mount.MountPath+"/", "/execsession/")
		if inside && mount.Name == volumeWorkspace || mount.MountPath == "/" {
			return "mounts"
		}
	}
	for _, e := range c.Env {
		if strings.HasPrefix(e.Name, "AGENTD_") || e.Name == "GODEBUG" {
			return "environment"
		}
	}
	for _, arg := range c.Command {
		if strings.Contains(arg, "$(") {
			return "expansion"
		}
	}
	return ""
}

// FuzzSessionPod: whatever a session asks for, even past the API's own checks, its pod
// is refused or what must hold holds.
func FuzzSessionPod(f *testing.F) {
	f.Add("/workspace", "image:1", "A", "1", "team", "a", "hello", uint64(1))
	f.Add("/execsession/bin", "", "AGENTD_SOCKET", "$(X)", "execsession.dev/session", "x", "a.b", uint64(2))
	f.Add("/", "i", "GODEBUG", "", "container.apparmor.security.beta.kubernetes.io/workspace", "unconfined", "x", uint64(3))
	f.Add("/tmp/../execsession", "i", "A=B", "", "", "", "$(HOME)", uint64(4))
	f.Fuzz(func(t *testing.T, dir, image, variable, value, key, text, name string, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		in := input(v1alpha1.InjectionImageVolume)
		if random.IntN(2) == 0 {
			in.Injection = v1alpha1.InjectionInitContainer
		}
		in.UserNamespace = random.IntN(2) == 0
		in.Session.Name = name
		in.Session.Spec.Workspace = v1alpha1.Workspace{Image: image, MountPath: dir}
		in.Session.Spec.Pod = &v1alpha1.SessionPod{
			Labels:            map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(text)},
			Annotations:       map[string]v1alpha1.AnnotationValue{key: v1alpha1.AnnotationValue(text)},
			Env:               []v1alpha1.EnvVar{{Name: variable, Value: value}},
			PriorityClassName: text,
		}
		pod := Build(in)
		if err := Verify(pod, in); err != nil {
			return
		}
		if broken := outlook(pod); broken != "" {
			t.Errorf("a pod passed though an invariant does not hold: %s", broken)
		}
		// A pod that passed must not pass any more once it was attacked.
		for attackName, attack := range attacks {
			if attackName == "agent's volume" || attackName == "user namespace" || random.IntN(8) != 0 {
				continue
			}
			attacked := pod.DeepCopy()
			attack(attacked)
			if err := Verify(attacked, in); err == nil {
				t.Errorf("the pod passed after the attack %q", attackName)
			}
		}
	})
}
