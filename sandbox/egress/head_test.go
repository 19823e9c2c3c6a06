package egress

import (
	"net/http"
	"strings"
	"testing"
)

func TestCheckHead(t *testing.T) {
	const get = "GET http://a.example/ HTTP/1.1\r\nHost: a.example"
	cases := map[string]struct {
		reason string
		text   string
		status int // 0 for none
		says   string
	}{
		"plain":                {reason: "the common case", text: get},
		"1.0 without Host":     {reason: "older than the header", text: "GET http://a.example/ HTTP/1.0"},
		"length":               {reason: "one number", text: get + "\r\nContent-Length: 5"},
		"chunked":              {reason: "one coding", text: get + "\r\nTransfer-Encoding: Chunked"},
		"tab in a value":       {reason: "allowed", text: get + "\r\nX-A: a\tb"},
		"UTF-8 in a value":     {reason: "harmless and common", text: get + "\r\nX-A: \u00fc"},
		"empty":                {reason: "no request", text: "", status: 400, says: "request line"},
		"bare LF":              {reason: "a line end to some parsers", text: get + "\nX-A: b", status: 400, says: "CR LF"},
		"bare CR":              {reason: "a line end to some parsers", text: get + "\rX-A: b", status: 400, says: "CR LF"},
		"NUL":                  {reason: "an end to some parsers", text: get + "\r\nX-A: \x00", status: 400, says: "control"},
		"DEL":                  {reason: "no text", text: get + "\r\nX-A: \x7f", status: 400, says: "control"},
		"two spaces":           {reason: "split differently", text: "GET  http://a.example/ HTTP/1.1\r\nHost: a.example", status: 400, says: "request line"},
		"space in the target":  {reason: "split differently", text: "GET http://a.example/ x HTTP/1.1\r\nHost: a.example", status: 400, says: "request line"},
		"tab in the target":    {reason: "split differently", text: "GET http://a.example/\tx HTTP/1.1\r\nHost: a.example", status: 400, says: "request line"},
		"fragment":             {reason: "not part of a target, and a trick to end a host", text: "GET http://a.example#@b.example/ HTTP/1.1\r\nHost: a.example", status: 400, says: "request line"},
		"HTTP/0.9":             {reason: "no version", text: "GET http://a.example/", status: 400, says: "request line"},
		"HTTP/2":               {reason: "its preface", text: "PRI * HTTP/2.0", status: 505},
		"HTTP/1.2":             {reason: "unknown", text: "GET http://a.example/ HTTP/1.2\r\nHost: a.example", status: 505},
		"lower-case version":   {reason: "unknown", text: "GET http://a.example/ http/1.1\r\nHost: a.example", status: 505},
		"method":               {reason: "no token", text: "GE(T http://a.example/ HTTP/1.1\r\nHost: a.example", status: 400, says: "request line"},
		"continued line":       {reason: "joined by some parsers", text: get + "\r\n X-A: b", status: 400, says: "header line"},
		"space before a colon": {reason: "a name to some parsers", text: get + "\r\nContent-Length : 5", status: 400, says: "header line"},
		"no colon":             {reason: "no header", text: get + "\r\nX-A", status: 400, says: "header line"},
		"no name":              {reason: "no header", text: get + "\r\n: b", status: 400, says: "header line"},
		"two hosts":            {reason: "parsers choose", text: get + "\r\nhost: b.example", status: 400, says: "two Host"},
		"no host":              {reason: "required", text: "GET http://a.example/ HTTP/1.1", status: 400, says: "no Host"},
		"two lengths":          {reason: "parsers choose", text: get + "\r\nContent-Length: 5\r\nContent-Length: 6", status: 400, says: "two Content-Length"},
		"two equal lengths":    {reason: "some parsers add them to a list", text: get + "\r\nContent-Length: 5\r\nContent-Length: 5", status: 400, says: "two Content-Length"},
		"list of lengths":      {reason: "parsers choose", text: get + "\r\nContent-Length: 5, 5", status: 400, says: "no number"},
		"signed length":        {reason: "a number to some parsers", text: get + "\r\nContent-Length: +5", status: 400, says: "no number"},
		"hexadecimal length":   {reason: "a number to some parsers", text: get + "\r\nContent-Length: 0x5", status: 400, says: "no number"},
		"empty length":         {reason: "0 to some parsers", text: get + "\r\nContent-Length:", status: 400, says: "no number"},
		"long length":          {reason: "overflows", text: get + "\r\nContent-Length: 18446744073709551617", status: 400, says: "no number"},
		"length and chunked":   {reason: "the classic", text: get + "\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", status: 400, says: "and a Transfer-Encoding"},
		"chunked and length":   {reason: "the classic, turned round", text: get + "\r\nTransfer-Encoding: chunked\r\nContent-Length: 5", status: 400, says: "and a Transfer-Encoding"},
		"zero and chunked":     {reason: "the same", text: get + "\r\nContent-Length: 0\r\nTransfer-Encoding: chunked", status: 400, says: "and a Transfer-Encoding"},
		"two codings":          {reason: "parsers choose", text: get + "\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", status: 400, says: "Transfer-Encoding"},
		"list of codings":      {reason: "unknown to the proxy", text: get + "\r\nTransfer-Encoding: gzip, chunked", status: 400, says: "Transfer-Encoding"},
		"identity":             {reason: "not a coding any more", text: get + "\r\nTransfer-Encoding: identity", status: 400, says: "Transfer-Encoding"},
		"obfuscated coding":    {reason: "chunked to some parsers", text: get + "\r\nTransfer-Encoding: \x0bchunked", status: 400, says: "control"},
		"chunked in 1.0":       {reason: "has none", text: "POST http://a.example/ HTTP/1.0\r\nTransfer-Encoding: chunked", status: 400, says: "HTTP/1.0"},
		"CONNECT with a body":  {reason: "would be the first bytes of the tunnel", text: "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5", status: 400, says: "no body"},
		"CONNECT of nothing":   {reason: "some clients say so", text: "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h, bad := checkHead(c.text)
			switch {
			case bad == nil && c.status != 0:
				t.Fatalf("checkHead(%q) = %+v, want status %d (%s)", c.text, h, c.status, c.reason)
			case bad != nil && (bad.status != c.status || !strings.Contains(bad.message, c.says)):
				t.Errorf("checkHead(%q): %+v, want status %d with %q (%s)", c.text, bad, c.status, c.says, c.reason)
			}
		})
	}
}

func TestHeadAgrees(t *testing.T) {
	cases := map[string]struct {
		reason string
		host   string
		query  Query
		want   bool
	}{
		"same":          {reason: "the common case", host: "a.example", query: Query{Host: "a.example", Port: 80}, want: true},
		"with its port": {reason: "as CONNECT has it", host: "a.example:443", query: Query{Host: "a.example", Port: 443}, want: true},
		"without port":  {reason: "some clients leave it out", host: "a.example", query: Query{Host: "a.example", Port: 8080}, want: true},
		"other case":    {reason: "the same name", host: "A.example.", query: Query{Host: "a.EXAMPLE", Port: 80}, want: true},
		"same address":  {reason: "another spelling", host: "[::ffff:1.1.1.1]", query: Query{Host: "0x01010101", Port: 80}, want: true},
		"other name":    {reason: "two hosts", host: "b.example", query: Query{Host: "a.example", Port: 80}},
		"other port":    {reason: "two hosts", host: "a.example:81", query: Query{Host: "a.example", Port: 80}},
		"empty":         {reason: "no host", host: "", query: Query{Host: "a.example", Port: 80}},
		"two":           {reason: "no host", host: "a.example, b.example", query: Query{Host: "a.example", Port: 80}},
		"user":          {reason: "no host", host: "x@a.example", query: Query{Host: "a.example", Port: 80}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := (&head{host: c.host, hasHost: true}).agrees(c.query)
			if (err == nil) != c.want {
				t.Errorf("Host %q for %+v: %v, want agreement: %t (%s)", c.host, c.query, err, c.want, c.reason)
			}
		})
	}
}

func TestRemoveHopByHop(t *testing.T) {
	header := http.Header{
		"Connection":          {"close, X-Secret", "X-Other"},
		"Proxy-Connection":    {"keep-alive"},
		"Keep-Alive":          {"timeout=5"},
		"Proxy-Authorization": {"Basic eA=="},
		"Te":                  {"trailers"},
		"Upgrade":             {"h2c"},
		"X-Secret":            {"1"},
		"X-Other":             {"2"},
		"Authorization":       {"Bearer t"},
		"Accept":              {"*/*"},
	}
	removeHopByHop(header)
	if len(header) != 2 || header.Get("Authorization") == "" || header.Get("Accept") == "" {
		t.Errorf("left: %v, want Authorization and Accept", header)
	}
}
