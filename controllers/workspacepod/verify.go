package workspacepod

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"execsession.dev/api/v1alpha1"
)

// ErrForbidden is the class of every error of Verify: the pod must not be created.
var ErrForbidden = errors.New("the pod is not allowed")

// invariant looks at one property of a finished pod and returns what is wrong with it,
// or nothing.
type invariant func(pod *corev1.Pod, in Input) string

// Verify says whether a pod may be created for a session. It trusts nothing about how
// the pod came to be.
func Verify(pod *corev1.Pod, in Input) error {
	for _, check := range []invariant{
		identity, reservedKeys, onlyOurContainers, agentIsFirst, nothingStartsInIt, environment,
		ourVolumes, ourMounts, installerIsOurs, hostIsApart, podIsKept, security, standard,
	} {
		if wrong := check(pod, in); wrong != "" {
			return fmt.Errorf("%w: %s", ErrForbidden, wrong)
		}
	}
	return nil
}

func identity(pod *corev1.Pod, in Input) string {
	if pod.Namespace != in.Session.Namespace || pod.GenerateName != "" || !strings.HasPrefix(pod.Name, reservedPrefix+"-") {
		return fmt.Sprintf("it is %s/%s, which is not a name for this session", pod.Namespace, pod.Name)
	}
	if len(pod.OwnerReferences) != 1 || pod.OwnerReferences[0].UID != in.Session.UID {
		return "it does not belong to the session alone"
	}
	if len(pod.Finalizers) > 0 {
		return fmt.Sprintf("it has the finalizer %q", pod.Finalizers[0])
	}
	return ""
}

func reservedKeys(pod *corev1.Pod, in Input) string {
	ours := Labels(in.Session)
	for key, value := range pod.Labels {
		if strings.HasPrefix(key, reservedPrefix) && ours[key] != value {
			return fmt.Sprintf("label %q is the operator's", key)
		}
	}
	for key := range pod.Annotations {
		if strings.HasPrefix(key, reservedPrefix) && key != v1alpha1.AnnotationSession {
			return fmt.Sprintf("annotation %q is the operator's", key)
		}
	}
	for key, value := range ours {
		if pod.Labels[key] != value {
			return fmt.Sprintf("label %q is missing", key)
		}
	}
	if in.SessionDocument == "" || pod.Annotations[v1alpha1.AnnotationSession] != in.SessionDocument {
		return "it does not carry the signed session document"
	}
	return ""
}

func onlyOurContainers(pod *corev1.Pod, _ Input) string {
	if len(pod.Spec.Containers) != 1 || pod.Spec.Containers[0].Name != v1alpha1.ContainerWorkspace {
		return fmt.Sprintf("it must have exactly the container %q", v1alpha1.ContainerWorkspace)
	}
	if len(pod.Spec.EphemeralContainers) > 0 {
		return "it has ephemeral containers"
	}
	return ""
}

func agentIsFirst(pod *corev1.Pod, in Input) string {
	container := pod.Spec.Containers[0]
	if !slices.Equal(container.Command, in.command()) || len(container.Args) > 0 {
		return "the workspace container does not start agentd with its own arguments"
	}
	if slices.ContainsFunc(container.Command, func(arg string) bool { return strings.Contains(arg, "$(") }) {
		return "an argument of agentd contains \"$(\", which the kubelet would expand"
	}
	if in.VerifyKeys == "" {
		return "agentd is given no key to verify documents with"
	}
	if container.Image == "" {
		return "it has no image: name one in spec.workspace.image"
	}
	return ""
}

// nothingStartsInIt: what the kubelet starts in the container looks to agentd like a
// client that was let in by the API server.
func nothingStartsInIt(pod *corev1.Pod, _ Input) string {
	container := pod.Spec.Containers[0]
	switch {
	case container.Lifecycle != nil:
		return "the workspace container has lifecycle hooks"
	case container.LivenessProbe != nil, container.ReadinessProbe != nil, container.StartupProbe != nil:
		return "the workspace container has probes"
	case container.Stdin, container.StdinOnce, container.TTY:
		return "the workspace container has a standard input or a terminal"
	case container.RestartPolicy != nil, len(container.RestartPolicyRules) > 0:
		return "the workspace container has a restart policy of its own"
	case len(container.Ports) > 0:
		return "the workspace container has ports"
	}
	return ""
}

// reservedVariable tells the variables that steer agentd itself, which is a Go program that speaks gRPC.
func reservedVariable(name string) bool {
	for _, prefix := range []string{"AGENTD_", "EXECSESSION_", "GRPC_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.Contains([]string{"GODEBUG", "GOTRACEBACK", "GOMEMLIMIT", "GOGC", "GOMAXPROCS"}, name)
}

func environment(pod *corev1.Pod, _ Input) string {
	container := pod.Spec.Containers[0]
	if len(container.EnvFrom) > 0 {
		return "the workspace container takes variables from other objects"
	}
	for _, env := range container.Env {
		if reservedVariable(env.Name) {
			return fmt.Sprintf("variable %q steers the agent itself; to give it to commands use the profile's environment.set", env.Name)
		}
		if env.ValueFrom != nil {
			return fmt.Sprintf("variable %q comes from another object", env.Name)
		}
	}
	return ""
}

func ourVolumes(pod *corev1.Pod, in Input) string {
	if !equality.Semantic.DeepEqual(pod.Spec.Volumes, volumes(in)) {
		return "its volumes are not the operator's"
	}
	return ""
}

func ourMounts(pod *corev1.Pod, in Input) string {
	container := pod.Spec.Containers[0]
	if !equality.Semantic.DeepEqual(container.VolumeMounts, mounts(in)) || len(container.VolumeDevices) > 0 {
		return "the workspace container's mounts are not the operator's"
	}
	dir := in.workspaceDir()
	if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" {
		return fmt.Sprintf("the workspace's path %q is not an absolute folder", dir)
	}
	for _, taken := range []string{reservedRoot, tmpDir, "/proc", "/sys", "/dev", "/etc", "/run", "/var/run"} {
		if within(dir, taken) || within(taken, dir) {
			return fmt.Sprintf("the workspace's path %q is in or over %q", dir, taken)
		}
	}
	return ""
}

func within(dir, parent string) bool {
	return dir == parent || strings.HasPrefix(dir, parent+"/")
}

func installerIsOurs(pod *corev1.Pod, in Input) string {
	var want []corev1.Container
	if in.Injection == v1alpha1.InjectionInitContainer {
		want = []corev1.Container{installer(in, pod.Spec.Containers[0].Resources)}
	}
	if !equality.Semantic.DeepEqual(pod.Spec.InitContainers, want) {
		return "its init containers are not the operator's"
	}
	return ""
}

func hostIsApart(pod *corev1.Pod, in Input) string {
	spec := pod.Spec
	shared := spec.ShareProcessNamespace != nil && *spec.ShareProcessNamespace
	switch {
	case spec.HostPID, spec.HostIPC, spec.HostNetwork:
		return "it shares a namespace with the host"
	case shared:
		return "its containers share their processes, so agentd would not be process 1"
	case in.UserNamespace != (spec.HostUsers != nil && !*spec.HostUsers):
		return "its user namespace is not the one that was decided"
	case spec.NodeName != "":
		return "it chooses its node past the scheduler"
	case spec.ServiceAccountName != "" || spec.DeprecatedServiceAccount != "":
		return "it uses a service account"
	case spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken:
		return "it would get a service-account token"
	case spec.EnableServiceLinks == nil || *spec.EnableServiceLinks:
		return "it would get variables for every service"
	case len(spec.HostAliases) > 0, len(spec.ResourceClaims) > 0:
		return "it has host aliases or resource claims"
	case strings.HasPrefix(spec.PriorityClassName, "system-"):
		return fmt.Sprintf("priority class %q is not for sessions", spec.PriorityClassName)
	}
	return ""
}

// podIsKept: the operator decides when a session's pod ends.
func podIsKept(pod *corev1.Pod, _ Input) string {
	spec := pod.Spec
	grace := spec.TerminationGracePeriodSeconds
	switch {
	case spec.RestartPolicy != corev1.RestartPolicyAlways:
		return fmt.Sprintf("its restart policy is %q", spec.RestartPolicy)
	case grace == nil || *grace != graceSeconds:
		return fmt.Sprintf("its grace period is not %d seconds", graceSeconds)
	case spec.ActiveDeadlineSeconds != nil:
		return "it has a deadline"
	case len(spec.SchedulingGates) > 0, len(spec.ReadinessGates) > 0:
		return "it has gates"
	}
	return ""
}

func security(pod *corev1.Pod, _ Input) string {
	if !equality.Semantic.DeepEqual(pod.Spec.SecurityContext, podSecurity()) {
		return "its security context is not the operator's"
	}
	if !equality.Semantic.DeepEqual(pod.Spec.Containers[0].SecurityContext, containerSecurity()) {
		return "the security context of the workspace container is not the operator's"
	}
	return ""
}

// evaluator judges as a namespace with the restricted level would.
var evaluator, evaluatorErr = policy.NewEvaluator(policy.DefaultChecks(), nil)

func standard(pod *corev1.Pod, _ Input) string {
	if evaluatorErr != nil {
		return fmt.Sprintf("the pod security standard can not be evaluated: %v", evaluatorErr)
	}
	results := evaluator.EvaluatePod(psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}, &pod.ObjectMeta, &pod.Spec)
	if verdict := policy.AggregateCheckResults(results); !verdict.Allowed {
		return "it violates the restricted pod security standard: " + verdict.ForbiddenDetail()
	}
	return ""
}

// VerifyKeysOf reads agentd's --verify-key from a pod, empty if it has none.
func VerifyKeysOf(pod *corev1.Pod) string {
	for _, container := range pod.Spec.Containers {
		for _, arg := range container.Command {
			if keys, ok := strings.CutPrefix(arg, verifyKeyFlag); ok && container.Name == v1alpha1.ContainerWorkspace {
				return keys
			}
		}
	}
	return ""
}

// ImageOf tells in which image a pod's commands run.
func ImageOf(pod *corev1.Pod) string {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == v1alpha1.ContainerWorkspace {
			return pod.Spec.Containers[i].Image
		}
	}
	return ""
}

// InjectionOf tells how agentd came into a pod.
func InjectionOf(pod *corev1.Pod) v1alpha1.Injection {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == volumeAgent && volume.Image != nil {
			return v1alpha1.InjectionImageVolume
		}
	}
	return v1alpha1.InjectionInitContainer
}
