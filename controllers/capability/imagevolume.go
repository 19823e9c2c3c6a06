package capability

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ImageVolumes says whether the API server keeps image volumes. It asks for a pod
// with one, in a dry run: a server without them drops the field or refuses the pod.
func ImageVolumes(ctx context.Context, c client.Client, namespace, image string) (bool, error) {
	pod := probePod(namespace, image)
	if err := c.Create(ctx, pod, client.DryRunAll); err != nil {
		return false, fmt.Errorf("trying an image volume in namespace %q: %w", namespace, err)
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.Image != nil && volume.Image.Reference == image {
			return true, nil
		}
	}
	return false, nil
}

func probePod(namespace, image string) *corev1.Pod {
	const volume = "probe"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "execsession-probe-"},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   new(true),
				RunAsUser:      ptr.To[int64](1000),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Volumes: []corev1.Volume{{Name: volume, VolumeSource: corev1.VolumeSource{
				Image: &corev1.ImageVolumeSource{Reference: image},
			}}},
			Containers: []corev1.Container{{
				Name:         volume,
				Image:        image,
				VolumeMounts: []corev1.VolumeMount{{Name: volume, MountPath: "/probe", ReadOnly: true}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}
