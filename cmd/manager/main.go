package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers"
	"execsession.dev/controllers/capability"
	"execsession.dev/controllers/execsession"
	"execsession.dev/controllers/signing"
	"execsession.dev/controllers/workspacepod"
)

// version is the version of this build; the linker sets it.
var version = "dev"

func main() {
	err := run(ctrl.SetupSignalHandler(), os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, pflag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 1 && args[0] == "version" {
		_, err := fmt.Fprintln(stdout, version)
		return err
	}
	config, err := load(args)
	if err != nil {
		return err
	}
	log := logr.FromSlogHandler(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: config.LogLevel}))
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	log.Info("Starting", "version", version)

	cluster, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the cluster: %w", err)
	}
	// The API server's own fairness paces us better than a guess of ours.
	cluster.QPS = -1
	cluster.UserAgent = "execsession-manager/" + version
	scheme, err := controllers.Scheme()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(cluster, options(config, scheme))
	if err != nil {
		return fmt.Errorf("making the manager: %w", err)
	}
	if err := errors.Join(
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("caches", cachesSynced(mgr)),
	); err != nil {
		return fmt.Errorf("adding probes: %w", err)
	}
	// The manager's client reads through caches that do not run yet.
	direct, err := client.New(cluster, client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	keys, err := signing.Ensure(ctx, direct, types.NamespacedName{Namespace: config.Namespace, Name: config.SigningSecret})
	if err != nil {
		return err
	}
	err = controllers.Add(ctx, mgr, controllers.Options{
		Settings: workspacepod.Settings{
			AgentImage:      config.AgentImage,
			AgentPullPolicy: config.PullPolicy,
			WorkspaceImage:  config.WorkspaceImage,
			Injection:       injection(ctx, log, direct, config),
		},
		Keys:           keys,
		UserNamespaces: config.UserNamespaces,
		ClusterCIDRs:   config.ClusterCIDRs,
		Network:        execsession.NetworkSettings{DNSServers: config.DNSServers, PoliciesEnforced: config.NetworkPolicyEnforced},
		Workers:        config.Workers,
		MaxLogStreams:  config.MaxLogStreams,
	})
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func options(config Config, scheme *runtime.Scheme) ctrl.Options {
	return ctrl.Options{
		Scheme:                        scheme,
		Cache:                         controllers.CacheOptions(),
		Metrics:                       metricsserver.Options{BindAddress: config.MetricsAddress},
		HealthProbeBindAddress:        config.ProbeAddress,
		LeaderElection:                config.LeaderElect,
		LeaderElectionID:              config.LeaderElectionID,
		LeaderElectionNamespace:       config.Namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &config.LeaseDuration,
		RenewDeadline:                 &config.RenewDeadline,
		RetryPeriod:                   &config.RetryPeriod,
	}
}

// injection asks the API server if nobody decided. Where it can not be asked, the init
// container works everywhere.
func injection(ctx context.Context, log logr.Logger, c client.Client, config Config) v1alpha1.Injection {
	if config.Injection != "" {
		return config.Injection
	}
	supported, err := capability.ImageVolumes(ctx, c, config.Namespace, config.AgentImage)
	if err != nil {
		log.Error(err, "Image volumes could not be tried; an init container copies agentd")
	}
	choice := v1alpha1.InjectionInitContainer
	if supported {
		choice = v1alpha1.InjectionImageVolume
	}
	log.Info("Decided how agentd comes into pods", "injection", choice)
	return choice
}
