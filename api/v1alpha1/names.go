package v1alpha1

// Names that the operator gives to what belongs to a session. Labels, annotations
// and names beginning with "execsession" are the operator's.
const (
	// LabelSession is on a session's pod, volume claim and network policy and holds the session's UID.
	LabelSession = "execsession.dev/session-uid"
	// LabelManaged marks what the operator made, with the value ManagedValue.
	LabelManaged = "execsession.dev/managed"
	// LabelProfileKind and LabelProfileUID are on a profile's ConfigMap.
	LabelProfileKind = "execsession.dev/profile-kind"
	LabelProfileUID  = "execsession.dev/profile-uid"
	// AnnotationProfileName holds the name of the profile of a ConfigMap, which may be too long for a label.
	AnnotationProfileName = "execsession.dev/profile-name"
	// AnnotationSession holds the signed session document on a session's pod.
	AnnotationSession = "execsession.dev/session"

	// ManagedValue is the value of LabelManaged.
	ManagedValue = "true"
)

// ContainerWorkspace is the container of a session's pod in which commands run.
const ContainerWorkspace = "workspace"

// ConditionType values of an ExecSession. All but the last two are always present
// once the session was looked at; Reconciling and Stalled exist only while True.
const (
	// ConditionReady says that the declared state is reached.
	ConditionReady = "Ready"
	// ConditionScheduled mirrors the pod's own condition.
	ConditionScheduled = "Scheduled"
	// ConditionStorageReady says that the workspace's volume is there.
	ConditionStorageReady = "StorageReady"
	// ConditionAgentReady says that commands can run now.
	ConditionAgentReady = "AgentReady"
	// ConditionSandboxEnforced says that the node enforces all of the profile.
	ConditionSandboxEnforced = "SandboxEnforced"
	// ConditionProfileSynced says that the agent runs under the newest profile.
	ConditionProfileSynced = "ProfileSynced"
	// ConditionNetworkPolicyEnforced says whether the session's NetworkPolicy is there and the cluster
	// enforces it, which is Unknown unless the operator was told.
	ConditionNetworkPolicyEnforced = "NetworkPolicyEnforced"
	// ConditionReconciling says that the operator or the cluster is still at work.
	ConditionReconciling = "Reconciling"
	// ConditionStalled says that nothing will change until somebody acts.
	ConditionStalled = "Stalled"
)

// Reasons of conditions and events.
const (
	ReasonRunning     = "Running"
	ReasonProgressing = "Progressing"
	ReasonUnknown     = "Unknown"

	ReasonProfileNotFound   = "ProfileNotFound"
	ReasonProfileInvalid    = "ProfileInvalid"
	ReasonProfileSynced     = "Synced"
	ReasonProfileDelivering = "Delivering"
	ReasonProfileRejected   = "Rejected"

	ReasonStorageNotRequested = "NotRequested"
	ReasonStorageBound        = "Bound"
	ReasonStoragePending      = "Pending"
	ReasonStorageLost         = "Lost"
	ReasonStorageRefused      = "StorageRefused"
	ReasonNameTaken           = "NameTaken"

	ReasonPodPending       = "PodPending"
	ReasonPodTerminating   = "PodTerminating"
	ReasonPodFailed        = "PodFailed"
	ReasonPodRefused       = "PodRefused"
	ReasonPodSpecForbidden = "PodSpecForbidden"
	ReasonScheduled        = "Scheduled"
	ReasonUnschedulable    = "Unschedulable"
	ReasonImagePullFailed  = "ImagePullFailed"
	ReasonContainerFailed  = "ContainerFailed"

	ReasonAgentReady    = "AgentReady"
	ReasonAgentStarting = "AgentStarting"
	ReasonAgentStopping = "AgentStopping"
	ReasonAgentCrashed  = "AgentCrashed"
	ReasonAgentSilent   = "AgentSilent"
	ReasonPolicyInvalid = "PolicyInvalid"

	ReasonDeclared             = "Declared"
	ReasonNotDeclared          = "NotDeclared"
	ReasonNetworkPolicyRefused = "NetworkPolicyRefused"

	ReasonEnforced          = "Enforced"
	ReasonPartlyEnforced    = "PartlyEnforced"
	ReasonNotEnforceable    = "NotEnforceable"
	ReasonNotYetReported    = "NotYetReported"
	ReasonProfileValid      = "Valid"
	ReasonPodCreated        = "PodCreated"
	ReasonPodRecreated      = "PodRecreated"
	ReasonPodDeleted        = "PodDeleted"
	ReasonPolicyRestored    = "PolicyRestored"
	ReasonProfileDelivered  = "ProfileDelivered"
	ReasonAgentRestarted    = "AgentRestarted"
	ReasonVolumeClaimMade   = "VolumeClaimCreated"
	ReasonSigningKeyChanged = "SigningKeyChanged"
)
