package execsession

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	podsMade = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "execsession_pods_created_total",
		Help: "Pods made for sessions: their first, or again because one was gone.",
	}, []string{"occasion"})
	restored = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "execsession_policies_restored_total",
		Help: "Documents and labels that somebody else changed and the operator put right.",
	}, []string{"what"})
	readySeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "execsession_pod_ready_seconds",
		Help:    "Time from the creation of a pod to its agent's first being ready.",
		Buckets: []float64{0.5, 1, 2, 3, 5, 8, 13, 30, 60, 120, 300},
	})
)

func init() { metrics.Registry.MustRegister(podsMade, restored, readySeconds) }
