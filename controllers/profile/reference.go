package profile

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/api/v1alpha1"
)

// SessionsByProfile is the name of the index over sessions by IndexKey.
const SessionsByProfile = "spec.profileRef"

// IndexKey is what sessions are indexed by: the kind and the name of their profile.
func IndexKey(kind v1alpha1.ProfileKind, name string) string {
	return string(kind) + "/" + name
}

// Reference is the profile that a session names, defaults filled in.
func Reference(session *v1alpha1.ExecSession) v1alpha1.ProfileReference {
	return v1alpha1.ProfileReference{
		Kind: or(session.Spec.ProfileRef.Kind, v1alpha1.KindClusterSandboxProfile),
		Name: or(session.Spec.ProfileRef.Name, "default"),
	}
}

// IndexSession is the index function of SessionsByProfile.
func IndexSession(obj client.Object) []string {
	session, ok := obj.(*v1alpha1.ExecSession)
	if !ok {
		return nil
	}
	ref := Reference(session)
	return []string{IndexKey(ref.Kind, ref.Name)}
}

// Get reads the profile of a reference, from a session's namespace if it is a namespaced one.
func Get(ctx context.Context, c client.Reader, namespace string, ref v1alpha1.ProfileReference) (v1alpha1.Profile, error) {
	var obj v1alpha1.Profile
	key := types.NamespacedName{Name: ref.Name}
	switch ref.Kind {
	case v1alpha1.KindSandboxProfile:
		obj, key.Namespace = &v1alpha1.SandboxProfile{}, namespace
	case v1alpha1.KindClusterSandboxProfile:
		obj = &v1alpha1.ClusterSandboxProfile{}
	default:
		return nil, fmt.Errorf("reading profile %q: unknown kind %q", ref.Name, ref.Kind)
	}
	if err := c.Get(ctx, key, obj); err != nil {
		return nil, fmt.Errorf("reading %s %q: %w", ref.Kind, ref.Name, err)
	}
	return obj, nil
}

// Sessions lists the sessions that name a profile; an empty namespace is every namespace.
func Sessions(ctx context.Context, c client.Reader, namespace string, kind v1alpha1.ProfileKind, name string) ([]v1alpha1.ExecSession, error) {
	list := &v1alpha1.ExecSessionList{}
	err := c.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{SessionsByProfile: IndexKey(kind, name)})
	if err != nil {
		return nil, fmt.Errorf("listing the sessions of %s %q: %w", kind, name, err)
	}
	return list.Items, nil
}
