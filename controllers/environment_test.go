package controllers_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers"
	"execsession.dev/controllers/signing"
	"execsession.dev/controllers/workspacepod"
)

// patience is for a machine that does much else beside.
const patience = 60 * time.Second

// cluster is the API server of all tests of this package, nil without binaries.
var cluster *rest.Config

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		fmt.Println("KUBEBUILDER_ASSETS is not set: tests with a real API server are skipped")
		return m.Run()
	}
	environment := &envtest.Environment{
		CRDDirectoryPaths:        []string{filepath.Join("..", "config", "crd")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 2 * time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	// Stopping is right after half a start too.
	defer func() {
		if err := environment.Stop(); err != nil {
			fmt.Println("stopping the API server:", err)
		}
	}()
	started, err := environment.Start()
	if err != nil {
		fmt.Println("starting the API server:", err)
		return 1
	}
	cluster = started
	cluster.QPS = -1
	return m.Run()
}

// bench is a namespace with a running operator and a hand on everything a cluster would do.
type bench struct {
	*testing.T
	client.Client
	namespace string
	logs      *fakeLogs
}

// in is the same bench for a subtest.
func (b *bench) in(t *testing.T) *bench {
	t.Helper()
	return &bench{T: t, Client: b.Client, namespace: b.namespace, logs: b.logs}
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s, err := controllers.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newBench makes a namespace without an operator.
func newBench(t *testing.T) *bench {
	t.Helper()
	if cluster == nil {
		t.Skip("KUBEBUILDER_ASSETS is not set: no API server to test against")
	}
	c, err := client.New(cluster, client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "session-"}}
	if err := c.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	return &bench{T: t, Client: c, namespace: namespace.Name, logs: newFakeLogs()}
}

// operator starts an operator for the bench; stop ends it and waits for that.
func (b *bench) operator(change ...func(*controllers.Options)) (stop func()) {
	b.Helper()
	// Operators of other tests leave sessions behind, and the API server is shared.
	cacheOptions := controllers.CacheOptions()
	cacheOptions.DefaultNamespaces = map[string]cache.Config{b.namespace: {}}
	mgr, err := ctrl.NewManager(cluster, ctrl.Options{
		Scheme:     scheme(b.T),
		Cache:      cacheOptions,
		Metrics:    server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
		Logger:     logr.Discard(),
	})
	if err != nil {
		b.Fatal(err)
	}
	options := controllers.Options{
		Settings: workspacepod.Settings{
			AgentImage: "agent:1", AgentPullPolicy: corev1.PullIfNotPresent, WorkspaceImage: "workspace:default",
			Injection: v1alpha1.InjectionImageVolume,
		},
		Keys:           keys(b.T, 1),
		UserNamespaces: new(false),
		Workers:        4,
		Logs:           b.logs,
	}
	for _, c := range change {
		c(&options)
	}
	if err := controllers.Add(b.Context(), mgr, options); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	var stopped bool
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				b.Errorf("the operator ended: %v", err)
			}
		case <-time.After(patience):
			b.Error("the operator did not end")
		}
	}
	b.Cleanup(stop)
	return stop
}

func keys(t *testing.T, fill byte) signing.Keys {
	t.Helper()
	seed := make([]byte, 32)
	for i := range seed {
		seed[i] = fill
	}
	k, err := signing.New(seed)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// eventually waits until look says nothing is wrong any more.
func (b *bench) eventually(reason string, look func() error) {
	b.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := look()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s: %v", reason, err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-b.Context().Done():
			b.Fatalf("%s: the test ended: %v", reason, err)
		}
	}
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
