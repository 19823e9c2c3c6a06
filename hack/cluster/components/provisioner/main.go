// Provisioner makes a folder on the node for every claim of the cluster's default storage class and removes it with
// the claim. The volumes are of kind local, for which the kubelet honours fsGroup, so a pod that is not root can write
// into them; the API server's in-tree host path provisioner makes folders that only root can enter.
//
// It lives in the module of the components because it then shares every compiled package with them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// provisionerName is what the storage class names.
const provisionerName = "cluster.execsession.dev/directory"

// directories provisions volumes as folders below root on one node.
type directories struct {
	root, node string
}

// Provision makes the folder; asked again for the same volume it finds it made.
func (d directories) Provision(_ context.Context, options controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	path := filepath.Join(d.root, options.PVName)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, controller.ProvisioningFinished, fmt.Errorf("making the folder of the volume: %w", err)
	}
	// Not left to the umask: without an fsGroup the pod's user is "other".
	if err := os.Chmod(path, 0o777); err != nil { //nolint:gosec // any user of a pod has to write here
		return nil, controller.ProvisioningFinished, fmt.Errorf("opening the folder of the volume: %w", err)
	}
	return d.volume(path, options), controller.ProvisioningFinished, nil
}

func (d directories) volume(path string, options controller.ProvisionOptions) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: options.PVName},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			AccessModes:                   options.PVC.Spec.AccessModes,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: options.PVC.Spec.Resources.Requests[corev1.ResourceStorage]},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{d.node},
				}},
			}}}},
		},
	}
}

// Delete removes the folder, and refuses a path that it would not have made.
func (d directories) Delete(_ context.Context, volume *corev1.PersistentVolume) error {
	local := volume.Spec.Local
	if local == nil || local.Path != filepath.Join(d.root, volume.Name) {
		return fmt.Errorf("removing volume %s: its path is not one of %s", volume.Name, d.root)
	}
	return os.RemoveAll(local.Path)
}

func run(ctx context.Context, kubeconfig string, d directories) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("reading kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	controller.NewProvisionController(ctx, client, provisionerName, d, controller.LeaderElection(false)).Run(ctx)
	// Run returns when ctx ends; anything else would be a provisioner that silently stopped.
	if ctx.Err() == nil {
		return errors.New("the provisioning controller stopped")
	}
	return nil
}

func main() {
	var d directories
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the provisioner")
	flag.StringVar(&d.root, "root", "", "folder that holds the volumes")
	flag.StringVar(&d.node, "node", "", "name of this node")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, *kubeconfig, d)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "provisioner:", err)
		os.Exit(1)
	}
}
