package execsession

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"execsession.dev/api/v1alpha1"
)

// obstacle is why agentd does not run in a pod.
type obstacle struct {
	cause
	// stuck says that the kubelet will get no further by itself.
	stuck bool
}

// waitingReasons are the kubelet's reasons for a container that does not start, and ours for them.
var waitingReasons = map[string]string{
	"ErrImagePull":               v1alpha1.ReasonImagePullFailed,
	"ImagePullBackOff":           v1alpha1.ReasonImagePullFailed,
	"ErrImageNeverPull":          v1alpha1.ReasonImagePullFailed,
	"InvalidImageName":           v1alpha1.ReasonImagePullFailed,
	"ImageInspectError":          v1alpha1.ReasonImagePullFailed,
	"RegistryUnavailable":        v1alpha1.ReasonImagePullFailed,
	"SignatureValidationFailed":  v1alpha1.ReasonImagePullFailed,
	"CreateContainerConfigError": v1alpha1.ReasonContainerFailed,
	"CreateContainerError":       v1alpha1.ReasonContainerFailed,
	"RunContainerError":          v1alpha1.ReasonContainerFailed,
	"CrashLoopBackOff":           v1alpha1.ReasonAgentCrashed,
}

// running says since when the container of the agent runs, or what is in its way.
func running(pod *corev1.Pod) (since time.Time, in *obstacle) {
	if !pod.DeletionTimestamp.IsZero() {
		return time.Time{}, &obstacle{cause: cause{v1alpha1.ReasonPodTerminating, fmt.Sprintf("pod %q is ending", pod.Name)}}
	}
	if in := unscheduled(pod); in != nil {
		return time.Time{}, in
	}
	for _, status := range pod.Status.InitContainerStatuses {
		if in := notStarting(status); in != nil {
			return time.Time{}, in
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name != v1alpha1.ContainerWorkspace {
			continue
		}
		if status.State.Running != nil {
			return status.State.Running.StartedAt.Time, nil
		}
		if in := notStarting(status); in != nil {
			return time.Time{}, in
		}
		if ended := status.State.Terminated; ended != nil {
			return time.Time{}, &obstacle{cause: cause{v1alpha1.ReasonAgentCrashed, "agentd ended: " + endOfContainer(ended)}}
		}
	}
	return time.Time{}, &obstacle{cause: cause{v1alpha1.ReasonPodPending, fmt.Sprintf("the containers of pod %q are being created", pod.Name)}}
}

func unscheduled(pod *corev1.Pod) *obstacle {
	if pod.Spec.NodeName != "" {
		return nil
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return &obstacle{cause: cause{v1alpha1.ReasonUnschedulable, condition.Message}}
		}
	}
	return &obstacle{cause: cause{v1alpha1.ReasonPodPending, fmt.Sprintf("pod %q has no node yet", pod.Name)}}
}

func notStarting(status corev1.ContainerStatus) *obstacle {
	waiting := status.State.Waiting
	if waiting == nil {
		return nil
	}
	reason, bad := waitingReasons[waiting.Reason]
	if !bad {
		return nil
	}
	message := fmt.Sprintf("container %q with image %q: %s: %s", status.Name, status.Image, waiting.Reason, waiting.Message)
	if last := status.LastTerminationState.Terminated; last != nil && reason == v1alpha1.ReasonAgentCrashed {
		message = fmt.Sprintf("agentd ends again and again: %s", endOfContainer(last))
	}
	return &obstacle{cause: cause{reason, message}, stuck: true}
}

// endOfContainer does not show what agentd left in the termination message if that is
// its last status: it is for programs.
func endOfContainer(ended *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("%s (exit code %d)", ended.Reason, ended.ExitCode)
	if ended.Message != "" && !strings.HasPrefix(ended.Message, "{") {
		text += ": " + strings.TrimSpace(ended.Message)
	}
	return text
}
