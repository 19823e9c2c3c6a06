// Kube-router is the firewall of kube-router, which enforces network policies, with its flags and nothing else of it:
// the ready-made command brings a BGP speaker and the client of a cloud, which take minutes to compile.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	config := options.NewKubeRouterConfig()
	config.AddFlags(pflag.CommandLine)
	pflag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, config); err != nil {
		fmt.Fprintln(os.Stderr, "kube-router:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, config *options.KubeRouterConfig) error {
	connection, err := clientcmd.BuildConfigFromFlags(config.Master, config.Kubeconfig)
	if err != nil {
		return fmt.Errorf("reading %s: %w", config.Kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(connection)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	iptables, ipsets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	var ipsetMutex sync.Mutex
	controller, err := netpol.NewNetworkPolicyController(client, config, pods, policies, namespaces, &ipsetMutex, iptables, ipsets)
	if err != nil {
		return err
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods:       controller.PodEventHandler,
		namespaces: controller.NamespaceEventHandler,
		policies:   controller.NetworkPolicyEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	serve(ctx, controller)
	return nil
}

// serve runs the controller to its end. Nobody asks for its heartbeats, and it would wait for whoever takes them.
func serve(ctx context.Context, controller *netpol.NetworkPolicyController) {
	heartbeats := make(chan *healthcheck.ControllerHeartbeat)
	var controllers, listener sync.WaitGroup
	listener.Go(func() {
		for range heartbeats {
			continue
		}
	})
	controllers.Add(1)
	go controller.Run(heartbeats, ctx.Done(), &controllers)
	controllers.Wait()
	close(heartbeats)
	listener.Wait()
}
