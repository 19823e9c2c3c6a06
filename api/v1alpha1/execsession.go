package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ExecSession is a place where commands run: one sandboxed pod with a workspace,
// kept by the operator, in which agentd starts, feeds and ends processes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=execsessions,shortName=xs,categories={all,execsession}
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the declared state is reached"
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.status.conditions[?(@.type=="AgentReady")].reason`,description="Whether commands can run, or why not"
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.nodeName`,description="The node of the session's pod"
// +kubebuilder:printcolumn:name="Running",type=integer,JSONPath=`.status.processes.running`,description="Processes that run now"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Image",type=string,priority=1,JSONPath=`.status.image`,description="The image that commands run in"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 200",message="metadata.name may have at most 200 characters"
type ExecSession struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says what the session is. It is immutable.
	// +optional
	// +kubebuilder:default={}
	Spec ExecSessionSpec `json:"spec,omitzero"`
	// status says what was observed.
	// +optional
	Status ExecSessionStatus `json:"status,omitzero"`
}

// ExecSessionList is a list of sessions.
//
// +kubebuilder:object:root=true
type ExecSessionList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []ExecSession `json:"items"`
}

// ExecSessionSpec says what a session is.
//
// +kubebuilder:validation:XValidation:rule="has(self.profileRef) == has(oldSelf.profileRef) && (!has(self.profileRef) || self.profileRef == oldSelf.profileRef)",message="spec.profileRef is immutable: create another session"
// +kubebuilder:validation:XValidation:rule="has(self.source) == has(oldSelf.source) && (!has(self.source) || self.source == oldSelf.source)",message="spec.source is immutable: create another session"
// +kubebuilder:validation:XValidation:rule="has(self.workspace) == has(oldSelf.workspace) && (!has(self.workspace) || self.workspace == oldSelf.workspace)",message="spec.workspace is immutable: create another session"
// +kubebuilder:validation:XValidation:rule="has(self.pod) == has(oldSelf.pod) && (!has(self.pod) || self.pod == oldSelf.pod)",message="spec.pod is immutable: create another session"
// +kubebuilder:validation:XValidation:rule="has(self.execution) == has(oldSelf.execution) && (!has(self.execution) || self.execution == oldSelf.execution)",message="spec.execution is immutable: create another session"
type ExecSessionSpec struct {
	// profileRef names the profile that the session's commands run under.
	// +optional
	// +kubebuilder:default={}
	ProfileRef ProfileReference `json:"profileRef,omitzero"`
	// source says where the session's pod comes from.
	// +optional
	// +kubebuilder:default={}
	Source SessionSource `json:"source,omitzero"`
	// workspace is what commands find in the session.
	// +optional
	// +kubebuilder:default={}
	Workspace Workspace `json:"workspace,omitzero"`
	// pod adds to the session's pod what the operator does not decide.
	// +optional
	Pod *SessionPod `json:"pod,omitempty"`
	// execution says how commands are run.
	// +optional
	// +kubebuilder:default={}
	Execution Execution `json:"execution,omitzero"`
}

// ProfileKind is the kind of a profile.
//
// +kubebuilder:validation:Enum=SandboxProfile;ClusterSandboxProfile
type ProfileKind string

// The kinds of profiles.
const (
	// KindSandboxProfile is a profile in the session's namespace.
	KindSandboxProfile ProfileKind = "SandboxProfile"
	// KindClusterSandboxProfile is a profile of the whole cluster.
	KindClusterSandboxProfile ProfileKind = "ClusterSandboxProfile"
)

// ProfileReference names a profile.
type ProfileReference struct {
	// kind is SandboxProfile (in the session's namespace) or ClusterSandboxProfile.
	// +optional
	// +kubebuilder:default=ClusterSandboxProfile
	Kind ProfileKind `json:"kind,omitempty"`
	// name is the name of the profile.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// SessionSourceType says where a session's pod comes from.
//
// +kubebuilder:validation:Enum=Own
type SessionSourceType string

// SourceOwn makes a pod for the session alone.
const SourceOwn SessionSourceType = "Own"

// SessionSource says where a session's pod comes from.
//
// +union
//
// Its type decides which of its other fields count.
type SessionSource struct {
	// type is Own: the operator makes a pod for this session.
	// +optional
	// +unionDiscriminator
	// +kubebuilder:default=Own
	Type SessionSourceType `json:"type,omitempty"`
}

// Workspace is what commands find in a session.
type Workspace struct {
	// image is the container image that commands run in. Empty is the operator's default.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.contains(' ')",message="an image has no spaces"
	Image string `json:"image,omitempty"`
	// mountPath is the folder of the workspace.
	// +optional
	// +kubebuilder:default=/workspace
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^(/[A-Za-z0-9][A-Za-z0-9._-]*)+$`
	// +kubebuilder:validation:XValidation:rule="!['/execsession', '/proc', '/sys', '/dev', '/etc', '/bin', '/sbin', '/lib', '/lib64', '/tmp', '/usr', '/var', '/run', '/boot'].exists(p, self == p) && !['/execsession/', '/proc/', '/sys/', '/dev/', '/etc/', '/tmp/', '/var/run/', '/run/'].exists(p, self.startsWith(p))",message="the workspace may not be in or instead of a folder of the system or of the agent"
	MountPath string `json:"mountPath,omitempty"`
	// storage keeps the workspace on a volume of its own; without it the workspace lives and dies with the pod.
	// +optional
	Storage *WorkspaceStorage `json:"storage,omitempty"`
}

// WorkspaceStorage is the volume of a workspace. It is deleted with the session.
type WorkspaceStorage struct {
	// size is the size of the volume.
	// +required
	// +kubebuilder:validation:XValidation:rule="quantity(self).isGreaterThan(quantity('0'))",message="size must be greater than zero"
	Size resource.Quantity `json:"size"`
	// storageClassName is the class of the volume. Absent is the cluster's default.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`
	// accessModes of the volume.
	// +optional
	// +listType=set
	// +kubebuilder:default={ReadWriteOnce}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	AccessModes []StorageAccessMode `json:"accessModes,omitempty"`
}

// StorageAccessMode is an access mode of a volume that commands can write to.
//
// +kubebuilder:validation:Enum=ReadWriteOnce;ReadWriteOncePod;ReadWriteMany
type StorageAccessMode string

// SessionPod adds to a session's pod what the operator does not decide. The
// operator's own part always wins, and the whole pod is checked before it is made.
type SessionPod struct {
	// labels of the pod. Keys beginning with "execsession" are the operator's.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('execsession') && size(k) <= 317)",message="label keys beginning with \"execsession\" are the operator's"
	Labels map[string]LabelValue `json:"labels,omitempty"`
	// annotations of the pod. Keys beginning with "execsession" are the operator's.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('execsession') && size(k) <= 317)",message="annotation keys beginning with \"execsession\" are the operator's"
	Annotations map[string]AnnotationValue `json:"annotations,omitempty"`
	// nodeSelector chooses nodes by their labels.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	NodeSelector map[string]LabelValue `json:"nodeSelector,omitempty"`
	// tolerations of the pod.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// affinity of the pod.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// topologySpreadConstraints of the pod.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
	// resources of the container that commands run in.
	// +optional
	Resources *ComputeResources `json:"resources,omitempty"`
	// env are variables of the container; the profile says which of them a command sees.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Env []EnvVar `json:"env,omitempty"`
	// imagePullSecrets names secrets of the namespace with which the kubelet pulls images.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	ImagePullSecrets []LocalReference `json:"imagePullSecrets,omitempty"`
	// priorityClassName of the pod. The system's own classes are refused.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('system-')",message="the system's own priority classes are not for sessions"
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// runtimeClassName of the pod.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	RuntimeClassName *string `json:"runtimeClassName,omitempty"`
}

// LabelValue is the value of a label.
//
// +kubebuilder:validation:MaxLength=63
type LabelValue string

// AnnotationValue is the value of an annotation.
//
// +kubebuilder:validation:MaxLength=4096
type AnnotationValue string

// ComputeResources are requests and limits of a container.
type ComputeResources struct {
	// requests by the name of the resource.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Requests corev1.ResourceList `json:"requests,omitempty"`
	// limits by the name of the resource.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Limits corev1.ResourceList `json:"limits,omitempty"`
}

// EnvVar is an environment variable with a plain value.
type EnvVar struct {
	// name of the variable. AGENTD_*, EXECSESSION_* and the variables that steer the agent's own runtime are refused.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_.-]*$`
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('AGENTD_') && !self.startsWith('EXECSESSION_') && !self.startsWith('GRPC_') && !(self in ['GODEBUG', 'GOTRACEBACK', 'GOMEMLIMIT', 'GOGC', 'GOMAXPROCS'])",message="this variable steers the agent itself; to give it to commands use the profile's environment.set"
	Name string `json:"name"`
	// value of the variable.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Value string `json:"value,omitempty"`
}

// LocalReference names an object of the session's namespace.
type LocalReference struct {
	// name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Execution says how commands are run.
type Execution struct {
	// shell runs the scripts that tools send.
	// +optional
	// +kubebuilder:default={}
	Shell Shell `json:"shell,omitzero"`
}

// Shell runs scripts.
type Shell struct {
	// path of the shell's program. Empty lets the agent look for one.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^(/[^/\x00]+)*$`
	Path string `json:"path,omitempty"`
	// login says whether a tool may ask for a login shell.
	// +optional
	// +kubebuilder:default=Allowed
	Login LoginShell `json:"login,omitempty"`
	// persistence says what one script leaves to the next.
	// +optional
	// +kubebuilder:default=None
	Persistence ShellPersistence `json:"persistence,omitempty"`
}

// LoginShell says whether a tool may ask for a login shell.
//
// +kubebuilder:validation:Enum=Allowed;Forbidden
type LoginShell string

// The choices of LoginShell.
const (
	LoginAllowed   LoginShell = "Allowed"
	LoginForbidden LoginShell = "Forbidden"
)

// ShellPersistence says what one script leaves to the next.
//
// +kubebuilder:validation:Enum=None
type ShellPersistence string

// PersistenceNone leaves nothing: every script starts from the same state.
const PersistenceNone ShellPersistence = "None"
