package egress

import (
	"net/netip"
	"strings"
)

// Environ returns the variables, as NAME=value, that make common programs use the proxy at an address.
//
// All of them name it as an HTTP proxy, also ALL_PROXY: programs tunnel any protocol through CONNECT, while libraries that
// find a SOCKS proxy there and lack their optional part for it fail even for what they would not have sent through it.
// Only FTP, which no HTTP proxy of today carries, is told SOCKS. Loopback is left to the sandbox.
func Environ(proxy netip.AddrPort) []string {
	viaHTTP, viaSOCKS := "http://"+proxy.String(), "socks5h://"+proxy.String()
	const none = "localhost,127.0.0.1,::1"
	var environ []string
	for _, v := range []struct{ name, value string }{
		{"HTTP_PROXY", viaHTTP},
		{"HTTPS_PROXY", viaHTTP},
		{"ALL_PROXY", viaHTTP},
		{"WS_PROXY", viaHTTP},
		{"WSS_PROXY", viaHTTP},
		{"FTP_PROXY", viaSOCKS},
		{"NO_PROXY", none},
		{"NPM_CONFIG_PROXY", viaHTTP},
		{"NPM_CONFIG_HTTPS_PROXY", viaHTTP},
		{"NPM_CONFIG_NOPROXY", none},
	} {
		// Programs disagree about the case: curl reads http_proxy only, others the upper one only.
		lower := strings.ToLower(v.name)
		environ = append(environ, v.name+"="+v.value, lower+"="+v.value)
	}
	for _, v := range []struct{ name, value string }{
		{"YARN_HTTP_PROXY", viaHTTP},
		{"YARN_HTTPS_PROXY", viaHTTP},
		{"YARN_NO_PROXY", none},
		{"BUNDLE_HTTP_PROXY", viaHTTP},
		{"BUNDLE_HTTPS_PROXY", viaHTTP},
		{"BUNDLE_NO_PROXY", none},
		{"PIP_PROXY", viaHTTP},
		{"CARGO_HTTP_PROXY", viaHTTP},
		{"DOCKER_HTTP_PROXY", viaHTTP},
		{"DOCKER_HTTPS_PROXY", viaHTTP},
		{"DOCKER_NO_PROXY", none},
		{"RSYNC_PROXY", proxy.String()},
		// Programs that have to be told to look at the variables above.
		{"ELECTRON_GET_USE_PROXY", "true"},
		{"NODE_USE_ENV_PROXY", "1"},
	} {
		environ = append(environ, v.name+"="+v.value)
	}
	return environ
}
