package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"execsession.dev/api/v1alpha1"
)

// LookAgain is how often the cluster's addresses are looked at. They change when nodes
// come and go, and with each change the documents of sessions with a proxy.
const LookAgain = 5 * time.Minute

// Cluster finds the cluster's own addresses. Fill in the exported fields.
type Cluster struct {
	// Live reads past the cache: nodes are too many and change too often to keep.
	Live client.Reader
	// Given are ranges that the operator was told.
	Given []netip.Prefix
	// APIServer is the URL by which the operator reaches one.
	APIServer string
	// Sessions lists the sessions to look at when something changed.
	Sessions client.Reader
	Clock    clock.WithDelayedExecution

	mu      sync.Mutex
	known   bool
	ranges  Ranges
	changes chan event.GenericEvent
	once    sync.Once
}

// Current are the cluster's addresses as they were found last.
func (c *Cluster) Current(ctx context.Context) (Ranges, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known {
		return c.ranges, nil
	}
	found, err := c.find(ctx)
	if err != nil {
		return Ranges{}, err
	}
	c.known, c.ranges = true, found
	return found, nil
}

// Changes tells of the sessions to look at after a change.
func (c *Cluster) Changes() <-chan event.GenericEvent { return c.channel() }

func (c *Cluster) channel() chan event.GenericEvent {
	c.once.Do(func() { c.changes = make(chan event.GenericEvent) })
	return c.changes
}

// Start looks at the cluster's addresses until the context ends. It implements manager.Runnable.
func (c *Cluster) Start(ctx context.Context) error {
	for {
		timer := c.Clock.NewTimer(LookAgain)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
		if err := c.look(ctx); err != nil && ctx.Err() == nil {
			ctrl.LoggerFrom(ctx).Error(err, "The cluster's addresses can not be looked at; those that were found last hold")
		}
	}
}

// look finds the addresses again, if somebody asked for them before, and tells of a change.
func (c *Cluster) look(ctx context.Context) error {
	c.mu.Lock()
	known, before := c.known, c.ranges
	c.mu.Unlock()
	if !known {
		return nil
	}
	found, err := c.find(ctx)
	if err != nil || reflect.DeepEqual(before, found) {
		return err
	}
	c.mu.Lock()
	c.ranges = found
	c.mu.Unlock()
	sessions := &v1alpha1.ExecSessionList{}
	if err := c.Sessions.List(ctx, sessions); err != nil {
		return fmt.Errorf("listing the sessions: %w", err)
	}
	for i := range sessions.Items {
		select {
		case c.channel() <- event.GenericEvent{Object: &sessions.Items[i]}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// find asks the API server. What it does not have, or does not let the operator read, is
// unknown and no error: it can be given.
func (c *Cluster) find(ctx context.Context) (Ranges, error) {
	found := Ranges{Given: c.Given}
	if endpoint, err := url.Parse(c.APIServer); err == nil {
		found.APIServers = appendAddress(found.APIServers, endpoint.Hostname())
	}
	var errs error
	for _, ask := range []func(context.Context, *Ranges) error{c.askNodes, c.askServices, c.askAPIServers} {
		err := ask(ctx, &found)
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			ctrl.LoggerFrom(ctx).Info("Some of the cluster's addresses are not known; they can be given as cluster-cidrs", "reason", err.Error())
			continue
		}
		errs = errors.Join(errs, err)
	}
	if errs != nil {
		return Ranges{}, fmt.Errorf("finding the cluster's addresses: %w", errs)
	}
	return found.tidy(), nil
}

func (c *Cluster) askNodes(ctx context.Context, found *Ranges) error {
	nodes := &corev1.NodeList{}
	if err := c.Live.List(ctx, nodes); err != nil {
		return err
	}
	for _, node := range nodes.Items {
		for _, cidr := range node.Spec.PodCIDRs {
			found.Pods = appendPrefix(found.Pods, cidr)
		}
		for _, address := range node.Status.Addresses {
			found.Nodes = appendAddress(found.Nodes, address.Address)
		}
	}
	return nil
}

func (c *Cluster) askServices(ctx context.Context, found *Ranges) error {
	ranges := &networkingv1.ServiceCIDRList{}
	if err := c.Live.List(ctx, ranges); err != nil {
		return err
	}
	for _, r := range ranges.Items {
		for _, cidr := range r.Spec.CIDRs {
			found.Services = appendPrefix(found.Services, cidr)
		}
	}
	return nil
}

// askAPIServers reads the endpoints that API servers write of themselves.
func (c *Cluster) askAPIServers(ctx context.Context, found *Ranges) error {
	slice := &discoveryv1.EndpointSlice{}
	if err := c.Live.Get(ctx, client.ObjectKey{Namespace: "default", Name: "kubernetes"}, slice); err != nil {
		return err
	}
	for _, endpoint := range slice.Endpoints {
		for _, address := range endpoint.Addresses {
			found.APIServers = appendAddress(found.APIServers, address)
		}
	}
	return nil
}

// appendAddress adds an address; a node may have names among its addresses.
func appendAddress(to []netip.Prefix, text string) []netip.Prefix {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return to
	}
	addr = addr.Unmap().WithZone("")
	return append(to, netip.PrefixFrom(addr, addr.BitLen()))
}

func appendPrefix(to []netip.Prefix, text string) []netip.Prefix {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix.Addr().Is4In6() {
		return to
	}
	return append(to, prefix.Masked())
}
