package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Profile is what SandboxProfile and ClusterSandboxProfile have in common, for those
// who serve both.
//
// +kubebuilder:object:generate=false
type Profile interface {
	metav1.Object
	runtime.Object
	// ProfileKind tells which of the two it is.
	ProfileKind() ProfileKind
	// ProfileSpec is the profile's spec itself, not a copy.
	ProfileSpec() *SandboxProfileSpec
	// ProfileStatus is the profile's status itself, not a copy.
	ProfileStatus() *SandboxProfileStatus
}

var (
	_ Profile = &SandboxProfile{}
	_ Profile = &ClusterSandboxProfile{}
)

// ProfileKind tells which kind of profile it is.
func (*SandboxProfile) ProfileKind() ProfileKind { return KindSandboxProfile }

// ProfileSpec is the profile's spec itself.
func (p *SandboxProfile) ProfileSpec() *SandboxProfileSpec { return &p.Spec }

// ProfileStatus is the profile's status itself.
func (p *SandboxProfile) ProfileStatus() *SandboxProfileStatus { return &p.Status }

// ProfileKind tells which kind of profile it is.
func (*ClusterSandboxProfile) ProfileKind() ProfileKind { return KindClusterSandboxProfile }

// ProfileSpec is the profile's spec itself.
func (p *ClusterSandboxProfile) ProfileSpec() *SandboxProfileSpec { return &p.Spec }

// ProfileStatus is the profile's status itself.
func (p *ClusterSandboxProfile) ProfileStatus() *SandboxProfileStatus { return &p.Status }
