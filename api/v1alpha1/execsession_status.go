package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ExecSessionStatus says what was observed of a session.
type ExecSessionStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready, Scheduled, StorageReady, AgentReady, SandboxEnforced, ProfileSynced and NetworkPolicyEnforced; Reconciling and Stalled only while True.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// podRef is the session's pod. No other pod is trusted.
	// +optional
	PodRef *PodReference `json:"podRef,omitempty"`
	// nodeName is the node of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
	// image is what commands run in, be it the session's choice or the operator's default.
	// +optional
	Image string `json:"image,omitempty"`
	// profile is the profile that was last delivered to the pod.
	// +optional
	Profile *ProfileStatus `json:"profile,omitempty"`
	// sandbox is what the node enforces.
	// +optional
	Sandbox *SandboxStatus `json:"sandbox,omitempty"`
	// agent is the agentd that runs in the pod.
	// +optional
	Agent *AgentStatus `json:"agent,omitempty"`
	// processes counts the commands of the agent's present run.
	// +optional
	Processes *ProcessCounts `json:"processes,omitempty"`
	// lastActivityTime is when a command last started, ended, read or wrote, to the minute.
	// +optional
	LastActivityTime *metav1.Time `json:"lastActivityTime,omitempty"`
}

// PodReference names one pod, and no later one of the same name.
type PodReference struct {
	// name of the pod.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the pod.
	// +required
	UID types.UID `json:"uid"`
}

// ProfileStatus is a profile in the state in which it was delivered.
type ProfileStatus struct {
	// kind of the profile.
	// +required
	Kind ProfileKind `json:"kind"`
	// name of the profile.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the profile: another profile of the same name has another one.
	// +required
	UID types.UID `json:"uid"`
	// generation of the profile's spec.
	// +required
	Generation int64 `json:"generation"`
	// hash of the document that the pod got.
	// +required
	// +kubebuilder:validation:MaxLength=128
	Hash string `json:"hash"`
}

// Injection says how agentd comes into a pod.
//
// +kubebuilder:validation:Enum=ImageVolume;InitContainer
type Injection string

// The ways of injection.
const (
	// InjectionImageVolume mounts the product's image.
	InjectionImageVolume Injection = "ImageVolume"
	// InjectionInitContainer copies agentd from the product's image.
	InjectionInitContainer Injection = "InitContainer"
)

// SandboxStatus is what the node enforces.
type SandboxStatus struct {
	// landlockABI is the version of Landlock on the node; 0 is none.
	// +optional
	LandlockABI int32 `json:"landlockABI,omitempty"`
	// seccomp says whether commands run behind a filter of system calls.
	// +optional
	Seccomp bool `json:"seccomp,omitempty"`
	// network is the network mode that holds.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Network string `json:"network,omitempty"`
	// injection says how agentd came into the pod.
	// +optional
	Injection Injection `json:"injection,omitempty"`
	// notEnforced lists what of the profile the node does not enforce.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=512
	NotEnforced []string `json:"notEnforced,omitempty"`
}

// AgentStatus is the agentd that runs in the pod.
type AgentStatus struct {
	// version of agentd.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version,omitempty"`
	// bootID is another one after every start of agentd.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	BootID string `json:"bootID,omitempty"`
	// startTime of agentd.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
}

// ProcessCounts counts commands.
type ProcessCounts struct {
	// running counts the commands that run.
	Running int32 `json:"running"`
	// exited counts the commands that ended since agentd started.
	Exited int64 `json:"exited"`
}
