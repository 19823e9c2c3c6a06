package egress

import (
	"net/netip"
	"strings"
	"testing"
)

func TestEnviron(t *testing.T) {
	seen := map[string]string{}
	for _, entry := range Environ(netip.MustParseAddrPort("127.0.0.1:3128")) {
		name, value, found := strings.Cut(entry, "=")
		if _, twice := seen[name]; twice || !found || value == "" {
			t.Errorf("entry %q: a variable stands there once, with a value", entry)
		}
		seen[name] = value
	}
	for name, want := range map[string]string{
		"HTTP_PROXY": "http://127.0.0.1:3128", "http_proxy": "http://127.0.0.1:3128",
		"HTTPS_PROXY": "http://127.0.0.1:3128", "https_proxy": "http://127.0.0.1:3128",
		"ALL_PROXY": "http://127.0.0.1:3128", "all_proxy": "http://127.0.0.1:3128",
		"FTP_PROXY": "socks5h://127.0.0.1:3128", "ftp_proxy": "socks5h://127.0.0.1:3128",
		"WS_PROXY": "http://127.0.0.1:3128", "wss_proxy": "http://127.0.0.1:3128",
		"NO_PROXY": "localhost,127.0.0.1,::1", "no_proxy": "localhost,127.0.0.1,::1",
		"npm_config_proxy": "http://127.0.0.1:3128", "NPM_CONFIG_HTTPS_PROXY": "http://127.0.0.1:3128", "npm_config_noproxy": "localhost,127.0.0.1,::1",
		"PIP_PROXY": "http://127.0.0.1:3128", "CARGO_HTTP_PROXY": "http://127.0.0.1:3128", "RSYNC_PROXY": "127.0.0.1:3128",
		"YARN_HTTPS_PROXY": "http://127.0.0.1:3128", "BUNDLE_HTTP_PROXY": "http://127.0.0.1:3128", "DOCKER_HTTPS_PROXY": "http://127.0.0.1:3128",
		"NODE_USE_ENV_PROXY": "1", "ELECTRON_GET_USE_PROXY": "true",
	} {
		if seen[name] != want {
			t.Errorf("%s is %q, want %q", name, seen[name], want)
		}
	}
	if got := Environ(netip.MustParseAddrPort("[::1]:3128"))[0]; got != "HTTP_PROXY=http://[::1]:3128" {
		t.Errorf("for IPv6: %q", got)
	}
}
