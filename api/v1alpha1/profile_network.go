package v1alpha1

// NetworkMode says what commands may reach.
//
// +kubebuilder:validation:Enum=None;Loopback;Proxy;Open
type NetworkMode string

// The modes that what the cluster's addresses are is of interest to.
const (
	// NetworkModeProxy takes lists of domains.
	NetworkModeProxy NetworkMode = "Proxy"
	// NetworkModeOpen reaches everything that the session's NetworkPolicy lets through.
	NetworkModeOpen NetworkMode = "Open"
)

// NetworkMethods says what commands may do with the hosts that they reach through the proxy.
//
// +kubebuilder:validation:Enum=Limited;Full
type NetworkMethods string

// The choices of NetworkMethods.
const (
	// NetworkMethodsLimited is reading by plain HTTP.
	NetworkMethodsLimited NetworkMethods = "Limited"
	// NetworkMethodsFull is everything.
	NetworkMethodsFull NetworkMethods = "Full"
)

// ProfileNetwork says what commands may reach.
//
// +kubebuilder:validation:XValidation:rule="self.mode == 'Proxy' || !has(self.allowedDomains) || size(self.allowedDomains) == 0",message="allowedDomains are for mode Proxy"
// +kubebuilder:validation:XValidation:rule="self.mode == 'Proxy' || !has(self.deniedDomains) || size(self.deniedDomains) == 0",message="deniedDomains are for mode Proxy"
// +kubebuilder:validation:XValidation:rule="self.mode == 'Proxy' || !has(self.methods)",message="methods are for mode Proxy"
type ProfileNetwork struct {
	// mode is None (Unix sockets only), Loopback, Proxy (the agent's filtering proxy) or Open.
	// +optional
	// +kubebuilder:default=None
	Mode NetworkMode `json:"mode,omitempty"`
	// allowedDomains are what mode Proxy reaches: example.com, *.example.com (every name below it), **.example.com (both), * (every name), an address or a prefix, each with an optional :port. Empty reaches nothing.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:XValidation:rule="self.all(d, [(d.startsWith('[') ? d.find(r'[^\\[\\]]+') : d.matches(r'^[^:]*:[^:]*$') ? d.find(r'^[^:]+') : d)].all(h, isIP(h) ? !(cidr('0.0.0.0/8').containsIP(h) || cidr('224.0.0.0/4').containsIP(h) || cidr('255.255.255.255/32').containsIP(h) || cidr('::/128').containsIP(h) || cidr('ff00::/8').containsIP(h)) : !isCIDR(h) || !(cidr('0.0.0.0/8').containsCIDR(h) || cidr('224.0.0.0/4').containsCIDR(h) || cidr('255.255.255.255/32').containsCIDR(h) || cidr('::/128').containsCIDR(h) || cidr('ff00::/8').containsCIDR(h))))",message="an unspecified, multicast or broadcast address can not be connected to"
	AllowedDomains []Domain `json:"allowedDomains,omitempty"`
	// deniedDomains are what mode Proxy refuses whatever allowedDomains say.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:XValidation:rule="self.all(d, !d.matches(r'^\\*(:[^:]*)?$'))",message="denying * would refuse every name: leave the allowed entries out instead"
	DeniedDomains []Domain `json:"deniedDomains,omitempty"`
	// methods is Full, which is the default of mode Proxy, or Limited (GET, HEAD and OPTIONS by plain HTTP; HTTPS hides its methods and is refused).
	// +optional
	Methods NetworkMethods `json:"methods,omitempty"`
}

// Domain is an entry of a list of hosts. The rules accept what the agent's proxy accepts; of names in Unicode and in punycode the proxy alone
// can tell, and the profile's conditions say what it thinks of them.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=300
// +kubebuilder:validation:XValidation:rule="!self.contains('://')",message="a domain or an address, not a URL"
// +kubebuilder:validation:XValidation:rule="self.matches(r'[^\\x00-\\x7f]') || self.matches(r'^(\\*\\*?\\.)?[^*]+$') || self.matches(r'^\\*(:[^:]*)?$')",message="a wildcard is only the first label: *. or **., or * alone"
// +kubebuilder:validation:XValidation:rule="self.matches(r'[^\\x00-\\x7f]') || self.matches(r'^\\[[^\\[\\]]+\\](:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?$') || self.matches(r'^[^\\[:]+(:0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?$') || !self.startsWith('[') && self.matches(r':.*:')",message="a port is a number from 1 to 65535, and an IPv6 address with a port stands in brackets"
// +kubebuilder:validation:XValidation:rule="self.matches(r'[^\\x00-\\x7f]') || self.matches(r'^\\*(:[^:]*)?$') || (self.matches(r'^(\\*\\*?\\.)?[a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_])?(\\.[a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_])?)*\\.?(:[^:]*)?$') && size(self.find(r'[a-zA-Z0-9_][^:]*')) <= (self.matches(r'\\.(:[^:]*)?$') ? 254 : 253) && !self.matches(r'(^|\\.)([0-9]+|0[xX][0-9a-fA-F]*)\\.?(:[^:]*)?$')) || [(self.startsWith('[') ? self.find(r'[^\\[\\]]+') : self.matches(r'^[^:]*:[^:]*$') ? self.find(r'^[^:]+') : self)].all(host, isCIDR(host) ? cidr(host).masked() == cidr(host) : isIP(host) && (host.contains(':') || !self.startsWith('[')))",message="must be a domain (example.com, *.example.com, **.example.com), an address in its usual spelling or a prefix without bits behind its length (10.0.0.0/8), each with an optional :port"
type Domain string
