package profile

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/agentd/config"
	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/signing"
	"execsession.dev/sandbox"
)

// Document is a profile for the pods of one namespace: signed, and with the hash by
// which sessions pin it.
type Document struct {
	Profile v1alpha1.ProfileStatus
	Sealed  []byte
	// Network is what the profile says of it, checked.
	Network sandbox.Network
	// Filesystem is the part of its policy that a pod is made by.
	Filesystem sandbox.Filesystem
	// namespace is the one that the document holds in.
	namespace string
}

// Build compiles a profile for a namespace and signs it. The result is the same for
// the same profile, guarded ranges and keys, so that an unchanged one costs no write.
func Build(p v1alpha1.Profile, namespace string, guarded []config.Range, keys signing.Keys) (Document, error) {
	policy, err := Compile(*p.ProfileSpec())
	if err != nil {
		return Document{}, err
	}
	if policy.Sandbox.Network.Mode != sandbox.ProxyNetwork {
		guarded = nil
	}
	doc := config.ProfileDocument{
		Version:   config.Version,
		Kind:      config.KindProfile,
		Namespace: namespace,
		Profile: config.ProfileRef{
			Kind: string(p.ProfileKind()), Name: p.GetName(), UID: string(p.GetUID()), Generation: p.GetGeneration(),
		},
		Policy:  policy,
		Guarded: guarded,
	}
	sealed, err := config.Seal(config.KindProfile, doc, keys.Private()...)
	if err != nil {
		return Document{}, err
	}
	hash, err := config.Hash(config.KindProfile, doc)
	if err != nil {
		return Document{}, err
	}
	return Document{
		Profile: v1alpha1.ProfileStatus{
			Kind: p.ProfileKind(), Name: p.GetName(), UID: p.GetUID(), Generation: p.GetGeneration(), Hash: hash,
		},
		Sealed:     sealed,
		Network:    policy.Sandbox.Network,
		Filesystem: policy.Sandbox.Filesystem,
		namespace:  namespace,
	}, nil
}

// ConfigMap is the object that pods read the document from.
func (d Document) ConfigMap() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.namespace,
			Name:      ConfigMapName(d.Profile.Kind, d.Profile.Name),
			Labels: map[string]string{
				v1alpha1.LabelManaged:     v1alpha1.ManagedValue,
				v1alpha1.LabelProfileKind: string(d.Profile.Kind),
				v1alpha1.LabelProfileUID:  string(d.Profile.UID),
			},
			Annotations: map[string]string{v1alpha1.AnnotationProfileName: d.Profile.Name},
		},
		Data: map[string]string{config.ProfileFile: string(d.Sealed)},
	}
}

// Restore makes found what wanted is and says what differed; other people's labels
// and annotations stay.
func Restore(found, wanted *corev1.ConfigMap) (differences []string) {
	if !maps.Equal(found.Data, wanted.Data) || len(found.BinaryData) > 0 {
		found.Data, found.BinaryData = wanted.Data, nil
		differences = append(differences, "data")
	}
	if fill(&found.Labels, wanted.Labels) {
		differences = append(differences, "labels")
	}
	if fill(&found.Annotations, wanted.Annotations) {
		differences = append(differences, "annotations")
	}
	return differences
}

func fill(found *map[string]string, wanted map[string]string) (changed bool) {
	for key, value := range wanted {
		if (*found)[key] == value {
			continue
		}
		if *found == nil {
			*found = map[string]string{}
		}
		(*found)[key] = value
		changed = true
	}
	return changed
}

// OfConfigMap tells whose document a ConfigMap holds.
func OfConfigMap(obj client.Object) (v1alpha1.ProfileReference, error) {
	ref := v1alpha1.ProfileReference{
		Kind: v1alpha1.ProfileKind(obj.GetLabels()[v1alpha1.LabelProfileKind]),
		Name: obj.GetAnnotations()[v1alpha1.AnnotationProfileName],
	}
	if ConfigMapName(ref.Kind, ref.Name) != obj.GetName() {
		return v1alpha1.ProfileReference{}, fmt.Errorf("the labels of ConfigMap %q do not say which profile it holds", obj.GetName())
	}
	return ref, nil
}
