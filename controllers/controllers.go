package controllers

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/capability"
	"execsession.dev/controllers/execsession"
	"execsession.dev/controllers/follower"
	"execsession.dev/controllers/network"
	"execsession.dev/controllers/profile"
	"execsession.dev/controllers/sandboxprofile"
	"execsession.dev/controllers/signing"
	"execsession.dev/controllers/workspacepod"
)

// Options say how the operator works.
type Options struct {
	// Settings are what every session's pod has in common.
	Settings workspacepod.Settings
	// Keys sign what agents read.
	Keys signing.Keys
	// UserNamespaces overrides what nodes say about them; nil asks the nodes.
	UserNamespaces *bool
	// ClusterCIDRs are addresses of the cluster beside those that the API server knows.
	ClusterCIDRs []netip.Prefix
	// Network is what the operator was told about the cluster's network.
	Network execsession.NetworkSettings
	// Workers is how many sessions are worked on at once.
	Workers int
	// MaxLogStreams bounds the agents' logs that are followed at once.
	MaxLogStreams int
	// Logs opens the logs of agents; nil asks the API server for them.
	Logs follower.LogSource
	// Clock is the real one outside of tests.
	Clock clock.WithDelayedExecution
}

// Scheme holds every kind that the operator works with.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("adding Kubernetes' kinds: %w", err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("adding our kinds: %w", err)
	}
	return scheme, nil
}

// CacheOptions keep only the operator's own pods, claims, ConfigMaps and network policies in memory, and
// of them no managed fields. An object that lost its label is found past the cache.
func CacheOptions() cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelManaged: v1alpha1.ManagedValue})}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                   ours,
			&corev1.PersistentVolumeClaim{}: ours,
			&corev1.ConfigMap{}:             ours,
			&networkingv1.NetworkPolicy{}:   ours,
		},
	}
}

// Add registers everything that the operator runs.
func Add(ctx context.Context, mgr ctrl.Manager, opts Options) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.ExecSession{}, profile.SessionsByProfile, profile.IndexSession); err != nil {
		return fmt.Errorf("indexing sessions by profile: %w", err)
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.Logs == nil {
		logs, err := follower.NewPodLogs(mgr.GetConfig())
		if err != nil {
			return err
		}
		opts.Logs = logs
	}
	agents := &follower.Follower{
		Logs: opts.Logs, Clock: opts.Clock, MaxStreams: opts.MaxLogStreams, Log: mgr.GetLogger().WithName("follower"),
	}
	if err := mgr.Add(agents); err != nil {
		return fmt.Errorf("adding the follower: %w", err)
	}
	cluster := &network.Cluster{
		Live: mgr.GetAPIReader(), Sessions: mgr.GetClient(), Given: opts.ClusterCIDRs, APIServer: mgr.GetConfig().Host, Clock: opts.Clock,
	}
	if err := mgr.Add(cluster); err != nil {
		return fmt.Errorf("adding the look at the cluster's addresses: %w", err)
	}
	sessions := &execsession.Reconciler{
		Client:   mgr.GetClient(),
		Live:     mgr.GetAPIReader(),
		Recorder: mgr.GetEventRecorder("execsession"),
		Clock:    opts.Clock,
		Keys:     opts.Keys,
		Agents:   agents,
		Users:    &capability.UserNamespaces{Nodes: mgr.GetAPIReader(), Clock: opts.Clock, Fixed: opts.UserNamespaces},
		Cluster:  cluster,
		Network:  opts.Network,
		Settings: opts.Settings,
		Workers:  opts.Workers,
	}
	if err := sessions.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("adding the reconciler of sessions: %w", err)
	}
	for _, kind := range []v1alpha1.ProfileKind{v1alpha1.KindSandboxProfile, v1alpha1.KindClusterSandboxProfile} {
		profiles := &sandboxprofile.Reconciler{Client: mgr.GetClient(), Clock: opts.Clock, Kind: kind}
		if err := profiles.SetupWithManager(mgr); err != nil {
			return fmt.Errorf("adding the reconciler of %s: %w", kind, err)
		}
	}
	collector := &sandboxprofile.Collector{Client: mgr.GetClient(), Live: mgr.GetAPIReader()}
	if err := collector.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("adding the collector of profiles: %w", err)
	}
	return nil
}
