package follower

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	streams = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "execsession_log_streams",
		Help: "Logs of agents that are followed now.",
	})
	unread = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "execsession_log_unreadable_lines_total",
		Help: "Lines in the logs of agents that are no records.",
	})
)

func init() { metrics.Registry.MustRegister(streams, unread) }
