package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	corev1 "k8s.io/api/core/v1"

	"execsession.dev/api/v1alpha1"
)

// Config is how the operator was started.
type Config struct {
	// Namespace is the operator's own: of the signing key and the lease.
	Namespace      string
	AgentImage     string
	WorkspaceImage string
	PullPolicy     corev1.PullPolicy
	// Injection is empty to find out what the API server can do.
	Injection v1alpha1.Injection
	// UserNamespaces is nil to find out what the nodes can do.
	UserNamespaces *bool
	SigningSecret  string
	// ClusterCIDRs and DNSServers are told, beside what the API server knows.
	ClusterCIDRs []netip.Prefix
	DNSServers   []netip.Prefix
	// NetworkPolicyEnforced says that the cluster enforces NetworkPolicies.
	NetworkPolicyEnforced bool

	Workers       int
	MaxLogStreams int

	LeaderElect      bool
	LeaderElectionID string
	LeaseDuration    time.Duration
	RenewDeadline    time.Duration
	RetryPeriod      time.Duration

	MetricsAddress string
	ProbeAddress   string
	LogLevel       slog.Level
}

const (
	envPrefix = "EXECSESSION"
	// maxPrefixes bounds what every session's documents and policies repeat.
	maxPrefixes = 64
	auto        = "Auto"

	// namespaceFile is where a pod finds the name of its namespace.
	namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
)

// flags defines every setting; viper reads variables and the file under the same names.
func flags() *pflag.FlagSet {
	set := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	set.String("config", "", "file with these settings (yaml, json or toml)")
	set.String("namespace", "", "namespace of the operator itself; empty is that of its pod")
	set.String("agent-image", "execsession.dev/execsession:dev", "image with agentd at its root")
	set.String("workspace-image", "execsession.dev/workspace:dev", "image for sessions that name none")
	set.String("image-pull-policy", string(corev1.PullIfNotPresent), "how nodes get the agent image: Always, IfNotPresent or Never")
	set.String("injection", auto, "how agentd comes into pods: Auto, ImageVolume or InitContainer")
	set.String("user-namespaces", auto, "whether pods have user namespaces of their own: Auto, Always or Never")
	set.String("signing-secret", "execsession-signing-key", "Secret with the signing key; made if there is none")
	set.StringSlice("cluster-cidrs", nil, "addresses of the cluster (pods, services, nodes, API servers) beside those that the API server knows")
	set.StringSlice("dns-cidrs", nil, "addresses of DNS servers that are not the pods k8s-app=kube-dns of kube-system")
	set.Bool("network-policy-enforced", false, "say that the cluster enforces NetworkPolicies")
	set.Int("workers", 8, "sessions that are worked on at once")
	set.Int("max-log-streams", 500, "logs of agents that are followed at once; the others are polled")
	set.Bool("leader-elect", true, "let only one of several operators work")
	set.String("leader-election-id", "execsession-manager", "name of the lease")
	set.Duration("lease-duration", 15*time.Second, "how long the others wait for a leader that does not answer")
	set.Duration("renew-deadline", 10*time.Second, "how long a leader tries to keep its lease")
	set.Duration("retry-period", 2*time.Second, "pause between attempts")
	set.String("metrics-address", ":8080", "address of /metrics; 0 is none")
	set.String("probe-address", ":8081", "address of /healthz and /readyz; 0 is none")
	set.String("log-level", "info", "debug, info, warn or error")
	return set
}

// load reads the settings and checks each one.
func load(args []string) (Config, error) {
	set := flags()
	if err := set.Parse(args); err != nil {
		return Config{}, err
	}
	if set.NArg() > 0 {
		return Config{}, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	v := viper.New()
	v.SetEnvPrefix(envPrefix)
	v.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	v.AutomaticEnv()
	if err := v.BindPFlags(set); err != nil {
		return Config{}, fmt.Errorf("binding flags: %w", err)
	}
	if file := v.GetString("config"); file != "" {
		if err := readFile(v, set, file); err != nil {
			return Config{}, err
		}
	}
	return decode(v)
}

// readFile refuses settings that do not exist: a misspelt one would silently be a default.
func readFile(v *viper.Viper, set *pflag.FlagSet, file string) error {
	only := viper.New()
	only.SetConfigFile(file)
	if err := only.ReadInConfig(); err != nil {
		return fmt.Errorf("reading %q: %w", file, err)
	}
	for _, key := range only.AllKeys() {
		if set.Lookup(key) == nil {
			return fmt.Errorf("reading %q: unknown setting %q", file, key)
		}
	}
	return v.MergeConfigMap(only.AllSettings())
}

func decode(v *viper.Viper) (Config, error) {
	c := Config{
		Namespace:        v.GetString("namespace"),
		AgentImage:       v.GetString("agent-image"),
		WorkspaceImage:   v.GetString("workspace-image"),
		PullPolicy:       corev1.PullPolicy(v.GetString("image-pull-policy")),
		SigningSecret:    v.GetString("signing-secret"),
		LeaderElectionID: v.GetString("leader-election-id"),
		MetricsAddress:   v.GetString("metrics-address"),
		ProbeAddress:     v.GetString("probe-address"),
	}
	numbers := reader{v: v}
	c.Workers = numbers.positive("workers")
	c.MaxLogStreams = numbers.positive("max-log-streams")
	c.ClusterCIDRs = numbers.prefixes("cluster-cidrs")
	c.DNSServers = numbers.prefixes("dns-cidrs")
	c.NetworkPolicyEnforced = numbers.boolean("network-policy-enforced")
	c.LeaderElect = numbers.boolean("leader-elect")
	c.LeaseDuration = numbers.duration("lease-duration")
	c.RenewDeadline = numbers.duration("renew-deadline")
	c.RetryPeriod = numbers.duration("retry-period")
	numbers.oneOf("image-pull-policy", "Always", "IfNotPresent", "Never")
	if injection := numbers.oneOf("injection", auto, string(v1alpha1.InjectionImageVolume), string(v1alpha1.InjectionInitContainer)); injection != auto {
		c.Injection = v1alpha1.Injection(injection)
	}
	if users := numbers.oneOf("user-namespaces", auto, "Always", "Never"); users != auto {
		c.UserNamespaces = new(users == "Always")
	}
	if err := c.LogLevel.UnmarshalText([]byte(v.GetString("log-level"))); err != nil {
		numbers.refuse("log-level", "debug, info, warn or error")
	}
	for _, name := range []string{"agent-image", "signing-secret", "leader-election-id"} {
		if v.GetString(name) == "" {
			numbers.refuse(name, "a value")
		}
	}
	if c.Namespace == "" {
		c.Namespace = podNamespace()
	}
	if c.Namespace == "" {
		numbers.refuse("namespace", "the operator's namespace, as it does not run in a pod")
	}
	return c, errors.Join(numbers.errs...)
}

func podNamespace() string {
	data, err := os.ReadFile(namespaceFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// reader reads values and collects what is wrong with them.
type reader struct {
	v    *viper.Viper
	errs []error
}

func (r *reader) refuse(name, want string) {
	r.errs = append(r.errs, fmt.Errorf("%s: %q is not allowed, want %s", name, r.v.GetString(name), want))
}

func (r *reader) positive(name string) int {
	n := r.v.GetInt(name)
	if n < 1 {
		r.refuse(name, "a number from 1")
	}
	return n
}

func (r *reader) duration(name string) time.Duration {
	d := r.v.GetDuration(name)
	if d <= 0 {
		r.refuse(name, "a duration like 15s")
	}
	return d
}

// prefixes reads a list of addresses and prefixes, at commas too: a variable is one text.
func (r *reader) prefixes(name string) []netip.Prefix {
	var found []netip.Prefix
	for _, text := range strings.FieldsFunc(strings.Join(r.v.GetStringSlice(name), ","), func(c rune) bool { return c == ',' || c == ' ' }) {
		if addr, err := netip.ParseAddr(text); err == nil {
			text = netip.PrefixFrom(addr, addr.BitLen()).String()
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil || prefix != prefix.Masked() || prefix.Addr().Is4In6() {
			r.errs = append(r.errs, fmt.Errorf("%s: %q is not allowed, want an address or a prefix such as 10.0.0.0/8, without bits behind its length", name, text))
			continue
		}
		found = append(found, prefix)
	}
	if len(found) > maxPrefixes {
		r.errs = append(r.errs, fmt.Errorf("%s: %d are too many, want at most %d", name, len(found), maxPrefixes))
	}
	return found
}

func (r *reader) boolean(name string) bool {
	switch strings.ToLower(r.v.GetString(name)) {
	case "true":
		return true
	case "false":
		return false
	}
	r.refuse(name, "true or false")
	return false
}

func (r *reader) oneOf(name string, allowed ...string) string {
	value := r.v.GetString(name)
	if !slices.Contains(allowed, value) {
		r.refuse(name, "one of "+strings.Join(allowed, ", "))
	}
	return value
}
