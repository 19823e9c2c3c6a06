package workspacepod

import (
	corev1 "k8s.io/api/core/v1"

	"execsession.dev/api/v1alpha1"
	"execsession.dev/sandbox"
)

// Where agentd finds what it needs. agentd has these paths as defaults.
const (
	binDir     = "/execsession/bin"
	configDir  = "/execsession/config"
	journalDir = "/execsession/journal"
	homeDir    = "/execsession/home"
	tmpDir     = "/tmp"

	agentPath        = binDir + "/agentd"
	defaultWorkspace = "/workspace"

	// reservedPrefix begins every name, label and annotation that is the operator's.
	reservedPrefix = "execsession"
	// reservedRoot is the folder that nothing else may be mounted on, in or over.
	reservedRoot = "/execsession"
)

// Names of volumes.
const (
	volumeAgent     = "execsession-agentd"
	volumeConfig    = "execsession-config"
	volumeJournal   = "execsession-journal"
	volumeHome      = "execsession-home"
	volumeTmp       = "execsession-tmp"
	volumeWorkspace = "execsession-workspace"
)

const (
	// userID is any uid but 0: agentd needs no entry in the image's passwd.
	userID = 1000
	// graceSeconds is longer than the time that agentd takes to end its commands.
	graceSeconds = 30
)

// Settings are what every pod of an installation has in common.
type Settings struct {
	// AgentImage is the product's image, with agentd at its root.
	AgentImage string
	// AgentPullPolicy is how the kubelet gets it.
	AgentPullPolicy corev1.PullPolicy
	// WorkspaceImage is for sessions that name no image.
	WorkspaceImage string
	// Injection is how agentd comes into pods.
	Injection v1alpha1.Injection
}

// Input is what a pod is made of.
type Input struct {
	Settings
	Session *v1alpha1.ExecSession
	// Filesystem is what the profile says about files; some of it becomes mounts.
	Filesystem sandbox.Filesystem
	// ProfileConfigMap is the ConfigMap with the signed profile.
	ProfileConfigMap string
	// SessionDocument is the signed session document.
	SessionDocument string
	// VerifyKeys is agentd's --verify-key.
	VerifyKeys string
	// UserNamespace puts the pod into a user namespace of its own.
	UserNamespace bool
}

func (in Input) workspaceDir() string {
	if dir := in.Session.Spec.Workspace.MountPath; dir != "" {
		return dir
	}
	return defaultWorkspace
}

// Image is the image that commands of a session run in.
func (in Input) Image() string {
	if image := in.Session.Spec.Workspace.Image; image != "" {
		return image
	}
	return in.WorkspaceImage
}

func (in Input) command() []string {
	return []string{
		agentPath, "serve",
		"--namespace=" + in.Session.Namespace,
		"--session=" + in.Session.Name,
		"--session-uid=" + string(in.Session.UID),
		verifyKeyFlag + in.VerifyKeys,
		"--workspace=" + in.workspaceDir(),
	}
}

const verifyKeyFlag = "--verify-key="
