package workspacepod

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"execsession.dev/agentd/config"
	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/naming"
)

// Build makes the pod of a session. It is not yet fit to be created: see Verify.
func Build(in Input) *corev1.Pod {
	pod := asked(in)
	decide(pod, in)
	return pod
}

// asked is the part of the pod that the session decides.
func asked(in Input) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}}
	container := &pod.Spec.Containers[0]
	container.Image = in.Image()
	wish := in.Session.Spec.Pod
	if wish == nil {
		return pod
	}
	wish = wish.DeepCopy()
	pod.Labels = plain(wish.Labels)
	pod.Annotations = plain(wish.Annotations)
	pod.Spec.NodeSelector = plain(wish.NodeSelector)
	pod.Spec.Tolerations = wish.Tolerations
	pod.Spec.Affinity = wish.Affinity
	pod.Spec.TopologySpreadConstraints = wish.TopologySpreadConstraints
	pod.Spec.PriorityClassName = wish.PriorityClassName
	pod.Spec.RuntimeClassName = wish.RuntimeClassName
	for _, secret := range wish.ImagePullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret.Name})
	}
	for _, env := range wish.Env {
		// The kubelet would expand "$(NAME)"; doubled dollars keep a value as it was written.
		container.Env = append(container.Env, corev1.EnvVar{Name: env.Name, Value: strings.ReplaceAll(env.Value, "$", "$$")})
	}
	if wish.Resources != nil {
		container.Resources = corev1.ResourceRequirements{Requests: wish.Resources.Requests, Limits: wish.Resources.Limits}
	}
	return pod
}

func plain[V ~string](in map[string]V) map[string]string {
	if len(in) == 0 {
		return nil
	}
	out := make(map[string]string, len(in))
	for key, value := range in {
		out[key] = string(value)
	}
	return out
}

// decide puts the operator's part over the pod. It assigns whole fields: nothing that
// was asked for can be left beside it.
func decide(pod *corev1.Pod, in Input) {
	pod.Namespace = in.Session.Namespace
	pod.Name = naming.Pod(in.Session.Name)
	pod.GenerateName = ""
	pod.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(in.Session, v1alpha1.GroupVersion.WithKind("ExecSession")),
	}
	pod.Labels = merged(pod.Labels, Labels(in.Session))
	pod.Annotations = merged(pod.Annotations, map[string]string{
		v1alpha1.AnnotationSession:                in.SessionDocument,
		"kubectl.kubernetes.io/default-container": v1alpha1.ContainerWorkspace,
	})

	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](graceSeconds)
	pod.Spec.AutomountServiceAccountToken = new(false)
	pod.Spec.EnableServiceLinks = new(false)
	pod.Spec.SecurityContext = podSecurity()
	pod.Spec.HostUsers = nil
	if in.UserNamespace {
		pod.Spec.HostUsers = new(false)
	}
	pod.Spec.Volumes = volumes(in)

	container := &pod.Spec.Containers[0]
	container.Name = v1alpha1.ContainerWorkspace
	container.ImagePullPolicy = corev1.PullIfNotPresent
	container.Command = in.command()
	container.Args = nil
	// The image's own folder may be one that our user can not enter.
	container.WorkingDir = in.workspaceDir()
	container.SecurityContext = containerSecurity()
	container.VolumeMounts = mounts(in)
	if in.Injection == v1alpha1.InjectionInitContainer {
		pod.Spec.InitContainers = []corev1.Container{installer(in, container.Resources)}
	}
}

// Labels are the operator's labels on what belongs to a session.
func Labels(session *v1alpha1.ExecSession) map[string]string {
	return map[string]string{
		v1alpha1.LabelManaged: v1alpha1.ManagedValue,
		v1alpha1.LabelSession: string(session.UID),
	}
}

func merged(under, over map[string]string) map[string]string {
	out := make(map[string]string, len(under)+len(over))
	maps.Copy(out, under)
	maps.Copy(out, over)
	return out
}

func podSecurity() *corev1.PodSecurityContext {
	return &corev1.PodSecurityContext{
		RunAsNonRoot: new(true),
		RunAsUser:    ptr.To[int64](userID),
		RunAsGroup:   ptr.To[int64](userID),
		FSGroup:      ptr.To[int64](userID),
		// A large volume is not walked through at every start.
		FSGroupChangePolicy: ptr.To(corev1.FSGroupChangeOnRootMismatch),
		SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

func containerSecurity() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		Privileged:               new(false),
		RunAsNonRoot:             new(true),
		RunAsUser:                ptr.To[int64](userID),
		RunAsGroup:               ptr.To[int64](userID),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

func volumes(in Input) []corev1.Volume {
	workspace := emptyDir(volumeWorkspace)
	if in.Session.Spec.Workspace.Storage != nil {
		workspace.VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
			ClaimName: naming.Pod(in.Session.Name),
		}}
	}
	return append([]corev1.Volume{
		agentVolume(in),
		{Name: volumeConfig, VolumeSource: corev1.VolumeSource{Projected: configSources(in)}},
		emptyDir(volumeJournal),
		emptyDir(volumeHome),
		emptyDir(volumeTmp),
		workspace,
	}, protect(in).volumes()...)
}

func emptyDir(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

func agentVolume(in Input) corev1.Volume {
	if in.Injection == v1alpha1.InjectionInitContainer {
		return emptyDir(volumeAgent)
	}
	return corev1.Volume{Name: volumeAgent, VolumeSource: corev1.VolumeSource{
		Image: &corev1.ImageVolumeSource{Reference: in.AgentImage, PullPolicy: in.AgentPullPolicy},
	}}
}

func configSources(in Input) *corev1.ProjectedVolumeSource {
	return &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To[int32](0o444),
		Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: in.ProfileConfigMap},
				Items:                []corev1.KeyToPath{{Key: config.ProfileFile, Path: config.ProfileFile}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path:     config.SessionFile,
				FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.annotations['" + v1alpha1.AnnotationSession + "']"},
			}}}},
		},
	}
}

func mounts(in Input) []corev1.VolumeMount {
	return append([]corev1.VolumeMount{
		{Name: volumeAgent, MountPath: binDir, ReadOnly: true},
		{Name: volumeConfig, MountPath: configDir, ReadOnly: true},
		{Name: volumeJournal, MountPath: journalDir},
		{Name: volumeHome, MountPath: homeDir},
		{Name: volumeTmp, MountPath: tmpDir},
		{Name: volumeWorkspace, MountPath: in.workspaceDir()},
	}, protect(in).mounts()...)
}

// installer copies agentd where the node has no image volumes. It gets the resources
// of the workspace, which costs nothing: the two never run at once.
func installer(in Input, resources corev1.ResourceRequirements) corev1.Container {
	return corev1.Container{
		Name:            volumeAgent,
		Image:           in.AgentImage,
		ImagePullPolicy: in.AgentPullPolicy,
		Command:         []string{"/agentd", "install", binDir},
		Resources:       *resources.DeepCopy(),
		SecurityContext: containerSecurity(),
		VolumeMounts:    []corev1.VolumeMount{{Name: volumeAgent, MountPath: binDir}},
	}
}
