package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SandboxProfile says what commands may do in the sessions of its namespace that name it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=sandboxprofiles,categories={execsession}
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Filesystem",type=string,JSONPath=`.spec.filesystem.mode`
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.spec.network.mode`
// +kubebuilder:printcolumn:name="Sessions",type=integer,JSONPath=`.status.sessions.total`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SandboxProfile struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says what commands may do.
	// +optional
	// +kubebuilder:default={}
	Spec SandboxProfileSpec `json:"spec,omitzero"`
	// status says what was observed.
	// +optional
	Status SandboxProfileStatus `json:"status,omitzero"`
}

// SandboxProfileList is a list of profiles.
//
// +kubebuilder:object:root=true
type SandboxProfileList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []SandboxProfile `json:"items"`
}

// ClusterSandboxProfile is a profile for every namespace. Using one needs the verb
// "use" on it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=clustersandboxprofiles,scope=Cluster,categories={execsession}
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Filesystem",type=string,JSONPath=`.spec.filesystem.mode`
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.spec.network.mode`
// +kubebuilder:printcolumn:name="Sessions",type=integer,JSONPath=`.status.sessions.total`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterSandboxProfile struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says what commands may do.
	// +optional
	// +kubebuilder:default={}
	Spec SandboxProfileSpec `json:"spec,omitzero"`
	// status says what was observed.
	// +optional
	Status SandboxProfileStatus `json:"status,omitzero"`
}

// ClusterSandboxProfileList is a list of profiles.
//
// +kubebuilder:object:root=true
type ClusterSandboxProfileList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []ClusterSandboxProfile `json:"items"`
}

// SandboxProfileSpec says what commands may do. An edit reaches running sessions:
// commands that start afterwards run under it.
type SandboxProfileSpec struct {
	// filesystem says which files commands may use.
	// +optional
	// +kubebuilder:default={}
	Filesystem ProfileFilesystem `json:"filesystem,omitzero"`
	// network says what commands may reach.
	// +optional
	// +kubebuilder:default={}
	Network ProfileNetwork `json:"network,omitzero"`
	// process bounds each process.
	// +optional
	Process *ProfileProcess `json:"process,omitempty"`
	// environment says which variables commands see.
	// +optional
	// +kubebuilder:default={}
	Environment ProfileEnvironment `json:"environment,omitzero"`
	// limits bound a session's commands together.
	// +optional
	// +kubebuilder:default={}
	Limits ProfileLimits `json:"limits,omitzero"`
	// output says what is told about commands.
	// +optional
	// +kubebuilder:default={}
	Output ProfileOutput `json:"output,omitzero"`
	// enforcement says what happens where a node can not enforce all of this: Required runs nothing, BestEffort runs and reports what is missing.
	// +optional
	// +kubebuilder:default=Required
	Enforcement Enforcement `json:"enforcement,omitempty"`
	// minLandlockABI is the oldest version of Landlock that may enforce the profile; 0 leaves it to the agent.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=64
	MinLandlockABI int32 `json:"minLandlockABI,omitempty"`
}

// FilesystemMode says which files commands may write.
//
// +kubebuilder:validation:Enum=ReadOnly;WorkspaceWrite;FullAccess
type FilesystemMode string

// AbsolutePath is a path from the root, without "." and "..".
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=512
// +kubebuilder:validation:Pattern=`^/([^/\x00]+(/[^/\x00]+)*)?$`
// +kubebuilder:validation:XValidation:rule="!(self + '/').contains('/../') && !(self + '/').contains('/./')",message="a path has no \".\" and \"..\" elements"
type AbsolutePath string

// ProfileFilesystem says which files commands may use.
type ProfileFilesystem struct {
	// mode is ReadOnly, WorkspaceWrite (the workspace, the temporary folders and writableRoots) or FullAccess (what file permissions allow).
	// +optional
	// +kubebuilder:default=WorkspaceWrite
	Mode FilesystemMode `json:"mode,omitempty"`
	// writableRoots are more folders to write in.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	WritableRoots []AbsolutePath `json:"writableRoots,omitempty"`
	// readOnlyPaths can not be changed, renamed or removed. Below the workspace, the home and /tmp the operator makes read-only mounts of them,
	// with the pod: a path that is added later holds from the next pod on, and until then nothing runs. What does not exist becomes an empty folder.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	ReadOnlyPaths []AbsolutePath `json:"readOnlyPaths,omitempty"`
	// deniedPaths can not be read either. Below the workspace, the home and /tmp an empty read-only mount hides a folder, as for readOnlyPaths.
	// A path with *, ? or [ is a pattern, ** in it any number of folders; it is looked up when the profile takes effect, and is not enforceable where commands write.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	DeniedPaths []AbsolutePath `json:"deniedPaths,omitempty"`
}

// ProfileProcess bounds each process.
type ProfileProcess struct {
	// limits are resource limits of each process.
	// +optional
	Limits *ProcessLimits `json:"limits,omitempty"`
	// deniedSyscalls are system calls that fail beyond those that always do.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9_]+$`
	DeniedSyscalls []string `json:"deniedSyscalls,omitempty"`
}

// ProcessLimits are resource limits of each process.
type ProcessLimits struct {
	// openFiles is the most open file descriptors.
	// +optional
	// +kubebuilder:validation:Minimum=16
	OpenFiles *int64 `json:"openFiles,omitempty"`
	// fileSizeBytes is the most that one file may grow to.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FileSizeBytes *int64 `json:"fileSizeBytes,omitempty"`
	// cpuSeconds is the most processor time.
	// +optional
	// +kubebuilder:validation:Minimum=1
	CPUSeconds *int64 `json:"cpuSeconds,omitempty"`
	// addressSpaceBytes is the most virtual memory.
	// +optional
	// +kubebuilder:validation:Minimum=1048576
	AddressSpaceBytes *int64 `json:"addressSpaceBytes,omitempty"`
	// processes is the most processes and threads of the session's user; where the pod has no user namespace of its own,
	// those of all pods of the node that run as the same user.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Processes *int64 `json:"processes,omitempty"`
	// coreBytes is the largest core dump. There are none, so that only 0 can be asked for.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=0
	CoreBytes *int64 `json:"coreBytes,omitempty"`
}

// EnvironmentInherit says what commands inherit of the container's environment.
//
// +kubebuilder:validation:Enum=All;Core;None
type EnvironmentInherit string

// SecretExcludes says whether variables that look like secrets are kept from commands.
//
// +kubebuilder:validation:Enum=Enabled;Disabled
type SecretExcludes string

// The choices of SecretExcludes.
const (
	SecretExcludesEnabled  SecretExcludes = "Enabled"
	SecretExcludesDisabled SecretExcludes = "Disabled"
)

// NamePattern is a shell pattern over names of variables, regardless of case.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=256
type NamePattern string

// ProfileEnvironment says which variables commands see.
type ProfileEnvironment struct {
	// inherit is All, Core (HOME, PATH and their like) or None.
	// +optional
	// +kubebuilder:default=All
	Inherit EnvironmentInherit `json:"inherit,omitempty"`
	// secretExcludes drops variables whose names look like those of secrets.
	// +optional
	// +kubebuilder:default=Enabled
	SecretExcludes SecretExcludes `json:"secretExcludes,omitempty"`
	// exclude drops variables by name.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Exclude []NamePattern `json:"exclude,omitempty"`
	// set gives variables to every command.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Set []ProfileVariable `json:"set,omitempty"`
	// includeOnly drops, after all else, what matches none of these.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	IncludeOnly []NamePattern `json:"includeOnly,omitempty"`
}

// ProfileVariable is a variable that every command gets.
type ProfileVariable struct {
	// name of the variable.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	Name string `json:"name"`
	// value of the variable.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value,omitempty"`
}

// ProfileLimits bound a session's commands together.
//
// +kubebuilder:validation:XValidation:rule="!has(self.protectedProcesses) || !has(self.maxProcesses) || self.protectedProcesses < self.maxProcesses",message="protectedProcesses must be less than maxProcesses"
type ProfileLimits struct {
	// maxProcesses is how many commands may run at once; a further one ends the one that was used least recently.
	// +optional
	// +kubebuilder:default=64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	MaxProcesses int32 `json:"maxProcesses,omitempty"`
	// protectedProcesses is how many of the most recently used commands are never ended for a further one.
	// +optional
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1023
	ProtectedProcesses *int32 `json:"protectedProcesses,omitempty"`
	// backgroundPollMaxSeconds is the longest that one call may wait for output.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=3600
	BackgroundPollMaxSeconds int32 `json:"backgroundPollMaxSeconds,omitempty"`
}

// LedgerDetail says how much the container's log tells about commands.
//
// +kubebuilder:validation:Enum=Digest;Full
type LedgerDetail string

// ProfileOutput says what is told about commands.
type ProfileOutput struct {
	// ledger is Digest (the program's name and a digest of the command) or Full (the whole command). Everybody who may read logs can read it.
	// +optional
	// +kubebuilder:default=Digest
	Ledger LedgerDetail `json:"ledger,omitempty"`
}

// Enforcement says what happens where a node can not enforce all of a profile.
//
// +kubebuilder:validation:Enum=Required;BestEffort
type Enforcement string

// SandboxProfileStatus says what was observed of a profile.
type SandboxProfileStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready; Stalled only while True.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// hash of what the profile says.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Hash string `json:"hash,omitempty"`
	// sessions counts the sessions that name the profile.
	// +optional
	Sessions *SessionCounts `json:"sessions,omitempty"`
}

// SessionCounts counts the sessions of a profile.
type SessionCounts struct {
	// total counts the sessions that name the profile.
	Total int32 `json:"total"`
	// inSync counts those whose agent runs under its newest state.
	InSync int32 `json:"inSync"`
}
