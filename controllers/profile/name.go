package profile

import (
	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/naming"
)

// ConfigMapName is the name of the ConfigMap for a profile. Profiles of the cluster
// and of the namespace may have the same name; one letter keeps them apart.
func ConfigMapName(kind v1alpha1.ProfileKind, name string) string {
	letter := "s"
	if kind == v1alpha1.KindClusterSandboxProfile {
		letter = "c"
	}
	return naming.Shorten("execsession-profile-"+letter+"-"+name, naming.MaxObjectName)
}
