package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"execsession.dev/agentd/client"
	"execsession.dev/agentd/podstream"
	"execsession.dev/api/v1alpha1"
)

const (
	// pollEvery is how often a session that is not ready yet is looked at again.
	pollEvery = 500 * time.Millisecond
	// requestWait bounds one request to the API server.
	requestWait = 30 * time.Second
	// pullPatience is how long an image that can not be pulled is hoped for.
	pullPatience = 10 * time.Second
	// dialWait bounds opening one connection to the agent.
	dialWait = 30 * time.Second
)

// noCluster is what the flags library takes for the cluster when nothing names one.
const noCluster = "http://localhost:8080"

var sessions = v1alpha1.GroupVersion.WithResource("execsessions")

// connectCommand is what the operator's pods let be exec'd.
var connectCommand = []string{"/execsession/bin/agentd", "connect"}

// cluster is the namespace of the cluster that the flags name.
type cluster struct {
	config    *rest.Config
	sessions  dynamic.ResourceInterface
	namespace string
}

func (p *plugin) cluster() (*cluster, error) {
	namespace, _, err := p.kube.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("finding the namespace: %w", err)
	}
	config, err := p.kube.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	if raw, err := p.kube.ToRawKubeConfigLoader().RawConfig(); err == nil && len(raw.Clusters) == 0 && config.Host == noCluster {
		return nil, errors.New("which cluster? No kubeconfig names one; --local and --socket need none")
	}
	config.WarningHandler = rest.NewWarningWriter(p.Err, rest.WarningWriterOptions{Deduplicate: true})
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("preparing requests to %q: %w", config.Host, err)
	}
	return &cluster{config: config, sessions: objects.Resource(sessions).Namespace(namespace), namespace: namespace}, nil
}

// openSession waits for the session's agent and connects to it.
func (p *plugin) openSession(ctx context.Context, name string, wait time.Duration) (*engine, error) {
	c, err := p.cluster()
	if err != nil {
		return nil, err
	}
	ready, err := c.awaitReady(ctx, name, wait)
	if err != nil {
		return nil, err
	}
	target := podstream.Target{
		Namespace: c.namespace, Pod: ready.Status.PodRef.Name,
		Container: v1alpha1.ContainerWorkspace, Command: connectCommand,
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialWait)
		defer cancel()
		conn, err := podstream.Dial(ctx, c.config, target)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			err = client.Permanent(err)
		}
		return conn, err
	}
	return &engine{Client: client.New(dial), name: c.called(name), flags: "-n " + c.namespace + " " + name}, nil
}

func (c *cluster) called(session string) string {
	return fmt.Sprintf("session %q in namespace %q", session, c.namespace)
}

func (c *cluster) get(ctx context.Context, name string) (*v1alpha1.ExecSession, error) {
	ctx, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	object, err := c.sessions.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, c.explain(err, name)
	}
	session := &v1alpha1.ExecSession{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, session); err != nil {
		return nil, fmt.Errorf("reading %s: %w", c.called(name), err)
	}
	return session, nil
}

// explain tells a session that is not there from a cluster that has no sessions at all.
func (c *cluster) explain(err error, name string) error {
	var answered apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &answered) {
		return fmt.Errorf("%s: %w", c.called(name), err)
	}
	if details := answered.Status().Details; details != nil && details.Name == name {
		return fmt.Errorf("%s does not exist", c.called(name))
	}
	return fmt.Errorf("the cluster at %q has no ExecSession objects: is ExecSession installed there?", c.config.Host)
}

// awaitReady looks at the session until commands can run in it, they never will, or the
// time is over. Looking needs no other right than get.
func (c *cluster) awaitReady(ctx context.Context, name string, wait time.Duration) (*v1alpha1.ExecSession, error) {
	overall, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		session, err := c.get(ctx, name)
		if err != nil {
			return nil, err
		}
		state, message := judge(session, time.Now())
		if state == sessionReady {
			return session, nil
		}
		if state == sessionHopeless {
			return nil, fmt.Errorf("%s %s", c.called(name), message)
		}
		select {
		case <-ticker.C:
		case <-overall.Done():
			if ctx.Err() != nil {
				return nil, fmt.Errorf("waiting for %s: %w", c.called(name), context.Cause(ctx))
			}
			return nil, fmt.Errorf("%s was not ready within %s: %s", c.called(name), wait, message)
		}
	}
}

type sessionState int

const (
	sessionComing sessionState = iota
	sessionReady
	sessionHopeless
)

// judge says whether commands can run in the session, and if not why.
func judge(session *v1alpha1.ExecSession, now time.Time) (sessionState, string) {
	status := &session.Status
	if session.DeletionTimestamp != nil {
		return sessionHopeless, "is being deleted"
	}
	if status.ObservedGeneration < session.Generation {
		return sessionComing, "the operator has not looked at it yet; does it run?"
	}
	if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionAgentReady) && status.PodRef != nil {
		return sessionReady, ""
	}
	if stalled := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionStalled); stalled != nil && stalled.Status == metav1.ConditionTrue {
		return sessionHopeless, fmt.Sprintf("is stalled: %s (%s)", stalled.Message, stalled.Reason)
	}
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return sessionComing, "the operator has not looked at it yet; does it run?"
	}
	message := fmt.Sprintf("%s (%s)", ready.Message, ready.Reason)
	// Ready is true of a session that is suspended or finished, as it was told to be.
	if ready.Status == metav1.ConditionTrue && ready.Reason != v1alpha1.ReasonRunning {
		return sessionHopeless, "runs no commands: " + message
	}
	if ready.Reason == v1alpha1.ReasonImagePullFailed && now.Sub(ready.LastTransitionTime.Time) > pullPatience {
		return sessionHopeless, "can not start: " + message
	}
	if ready.Status == metav1.ConditionTrue {
		agent := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAgentReady)
		if agent != nil {
			message = fmt.Sprintf("%s (%s)", agent.Message, agent.Reason)
		}
	}
	return sessionComing, message
}
