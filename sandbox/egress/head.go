package egress

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
)

// badRequest is a request that no policy has to be asked about.
type badRequest struct {
	status  int
	message string
}

func malformed(message string) *badRequest {
	return &badRequest{status: http.StatusBadRequest, message: message}
}

// head is what the checks of a request's head found, beside what net/http parses of it.
type head struct {
	size                    int // in bytes, with the empty line
	method, target, version string
	host                    string
	hasHost                 bool
	length                  string // of Content-Length, empty if there is none
	chunked                 bool
	close                   bool // the client wants no further request on the connection
}

func (h *head) hasBody() bool { return h.chunked || strings.Trim(h.length, "0") != "" }

// readHead waits for the whole head of a request and leaves it in the reader. The error
// is that of the connection, io.EOF where it ended before the head began.
func (c *client) readHead() (head, *badRequest, error) {
	searched := 0
	for {
		buffered, _ := c.reader.Peek(c.reader.Buffered())
		if i := bytes.Index(buffered[searched:], []byte("\r\n\r\n")); i >= 0 {
			h, bad := checkHead(string(buffered[:searched+i]))
			h.size = searched + i + len("\r\n\r\n")
			return h, bad, nil
		}
		if len(buffered) >= maxHead {
			return head{}, &badRequest{status: http.StatusRequestHeaderFieldsTooLarge, message: "the head of the request is too large"}, nil
		}
		searched = max(0, len(buffered)-3)
		if _, err := c.reader.Peek(len(buffered) + 1); err != nil {
			switch {
			case len(buffered) == 0:
				return head{}, nil, err
			case errors.Is(err, os.ErrDeadlineExceeded):
				return head{}, &badRequest{status: http.StatusRequestTimeout, message: "the head of the request did not come in time"}, nil
			case errors.Is(err, io.EOF):
				return head{}, malformed("the request ended within its head"), nil
			}
			return head{}, nil, err
		}
	}
}

// checkHead checks what parsers are lenient about in different ways, so that what is forwarded means the same
// to every reader: line ends, spaces, and everything that says where a body ends. The text has no empty line at its end.
func checkHead(text string) (head, *badRequest) {
	for i := range len(text) {
		if c := text[i]; (c < ' ' && c != '\r' && c != '\n' && c != '\t') || c == 0x7f {
			return head{}, malformed("the head of the request has a control character")
		}
	}
	lines := strings.Split(text, "\r\n")
	for _, line := range lines {
		if strings.ContainsAny(line, "\r\n") {
			return head{}, malformed("a line of the head does not end with CR LF")
		}
	}
	h, bad := checkRequestLine(lines[0])
	if bad != nil {
		return h, bad
	}
	for _, line := range lines[1:] {
		name, value, found := strings.Cut(line, ":")
		if !found || !isToken(name) {
			return h, malformed("a header line is malformed")
		}
		if bad := h.note(strings.ToLower(name), strings.Trim(value, " \t")); bad != nil {
			return h, bad
		}
	}
	bad = h.checkBody()
	return h, bad
}

func checkRequestLine(line string) (head, *badRequest) {
	parts := strings.Split(line, " ")
	if len(parts) != 3 || !isToken(parts[0]) || parts[1] == "" {
		return head{}, malformed("the request line is malformed")
	}
	h := head{method: parts[0], target: parts[1], version: parts[2]}
	if strings.ContainsAny(h.target, "\t#") {
		return h, malformed("the request line is malformed")
	}
	if h.version != "HTTP/1.1" && h.version != "HTTP/1.0" {
		return h, &badRequest{status: http.StatusHTTPVersionNotSupported, message: "the proxy speaks HTTP/1.1 and HTTP/1.0"}
	}
	return h, nil
}

// note keeps the headers that say whom the request is for and where its body ends.
func (h *head) note(name, value string) *badRequest {
	switch name {
	case "host":
		if h.hasHost {
			return malformed("the request has two Host headers")
		}
		h.host, h.hasHost = value, true
	case "content-length":
		if h.length != "" {
			return malformed("the request has two Content-Length headers")
		}
		if value == "" || len(value) > 18 || strings.Trim(value, "0123456789") != "" {
			return malformed("the Content-Length is no number")
		}
		h.length = value
	case "transfer-encoding":
		if h.chunked || !strings.EqualFold(value, "chunked") {
			return malformed("the only Transfer-Encoding is chunked, once")
		}
		h.chunked = true
	case "connection", "proxy-connection":
		for token := range strings.SplitSeq(value, ",") {
			h.close = h.close || strings.EqualFold(strings.TrimSpace(token), "close")
		}
	}
	return nil
}

func (h *head) checkBody() *badRequest {
	switch {
	case h.chunked && h.length != "":
		return malformed("the request has a Content-Length and a Transfer-Encoding")
	case h.chunked && h.version == "HTTP/1.0":
		return malformed("HTTP/1.0 has no Transfer-Encoding")
	case h.method == http.MethodConnect && h.hasBody():
		return malformed("a CONNECT request has no body")
	case !h.hasHost && h.version == "HTTP/1.1":
		return malformed("the request has no Host header")
	}
	return nil
}

// isToken tells whether a text is a token of HTTP, such as a method or the name of a header.
func isToken(text string) bool {
	for i := range len(text) {
		c := text[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return text != ""
}
