package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"execsession.dev/api/v1alpha1"
)

// createFlags are the flags of create.
type createFlags struct {
	image, profile, storage, file string
	wait                          bool
	waitTimeout                   time.Duration
}

func (p *plugin) newCreate() *cobra.Command {
	f := &createFlags{}
	cmd := &cobra.Command{
		Use:   "create SESSION",
		Short: "Make a session",
		Long: `Make a session. What is left out has the cluster's default: the image, and the profile
"default" of the whole cluster.`,
		Example: `  kubectl execsession create hello --wait
  kubectl execsession create build --image registry.example/go:1 --storage 10Gi
  kubectl execsession create -f session.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			session, err := f.session(p, args)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return p.create(ctx, f, session)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.image, "image", "", "the image that commands run in")
	flags.StringVar(&f.profile, "profile", "", "NAME of a profile of the whole cluster, or SandboxProfile/NAME for one of the namespace")
	flags.StringVar(&f.storage, "storage", "", "size of a volume for the workspace, as 10Gi; without it the workspace ends with the pod")
	flags.StringVarP(&f.file, "filename", "f", "", "a file with the session's manifest (- is standard input) instead of the flags above")
	flags.BoolVar(&f.wait, "wait", false, "wait until commands can run")
	flags.DurationVar(&f.waitTimeout, "wait-timeout", time.Minute, "with --wait: how long")
	return cmd
}

func (f *createFlags) session(p *plugin, args []string) (*v1alpha1.ExecSession, error) {
	if len(args) > 1 {
		return nil, fmt.Errorf("unexpected argument %q", args[1])
	}
	if f.file != "" {
		if f.image != "" || f.profile != "" || f.storage != "" {
			return nil, errors.New("-f excludes --image, --profile and --storage")
		}
		return f.manifest(p, args)
	}
	if len(args) == 0 {
		return nil, errors.New("which SESSION? Name it, or give a manifest with -f")
	}
	session := &v1alpha1.ExecSession{ObjectMeta: metav1.ObjectMeta{Name: args[0]}}
	session.Spec.Workspace.Image = f.image
	if f.profile != "" {
		kind, name, qualified := strings.Cut(f.profile, "/")
		if !qualified {
			kind, name = string(v1alpha1.KindClusterSandboxProfile), f.profile
		}
		session.Spec.ProfileRef = v1alpha1.ProfileReference{Kind: v1alpha1.ProfileKind(kind), Name: name}
	}
	if f.storage != "" {
		size, err := resource.ParseQuantity(f.storage)
		if err != nil {
			return nil, fmt.Errorf("--storage %q: must be a size such as 10Gi", f.storage)
		}
		session.Spec.Workspace.Storage = &v1alpha1.WorkspaceStorage{Size: size}
	}
	return session, nil
}

func (p *plugin) create(ctx context.Context, f *createFlags, session *v1alpha1.ExecSession) error {
	c, err := p.cluster()
	if err != nil {
		return err
	}
	if session.Namespace != "" && session.Namespace != c.namespace {
		return fmt.Errorf("the manifest says namespace %q, the command line and kubeconfig %q", session.Namespace, c.namespace)
	}
	session.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ExecSession"}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(session)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", c.called(session.Name), err)
	}
	delete(fields, "status")
	request, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	_, err = c.sessions.Create(request, &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%s exists already", c.called(session.Name))
	}
	if err != nil {
		return c.explain(err, session.Name)
	}
	if _, err := fmt.Fprintf(p.Out, "execsession.execsession.dev/%s created\n", session.Name); err != nil || !f.wait {
		return err
	}
	_, err = c.awaitReady(ctx, session.Name, f.waitTimeout)
	return err
}
