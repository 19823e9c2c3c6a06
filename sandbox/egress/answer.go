package egress

import (
	"fmt"
	"io"
	"net/http"
	"strings"
)

// reasonHeader carries the reason of a refusal.
const reasonHeader = "X-Execsession-Reason"

// statusOf is the HTTP status of a reason, and 403 for whatever the policy decided.
func statusOf(reason Reason) int {
	switch reason {
	case ReasonInvalidRequest:
		return http.StatusBadRequest
	case ReasonTooManyConnections:
		return http.StatusServiceUnavailable
	case ReasonUnresolvable, ReasonUnreachable, ReasonConnectionRefused, ReasonBadAnswer:
		return http.StatusBadGateway
	case ReasonTimedOut:
		return http.StatusGatewayTimeout
	case ReasonInternal:
		return http.StatusInternalServerError
	default:
		return http.StatusForbidden
	}
}

// proxyError is the type of error that RFC 9209 has for a reason.
func proxyError(reason Reason) string {
	switch reason {
	case ReasonInvalidRequest:
		return "http_request_error"
	case ReasonTooManyConnections:
		return "connection_limit_reached"
	case ReasonUnresolvable:
		return "dns_error"
	case ReasonUnreachable:
		return "destination_ip_unroutable"
	case ReasonConnectionRefused:
		return "connection_refused"
	case ReasonTimedOut:
		return "connection_timeout"
	case ReasonBadAnswer:
		return "http_protocol_error"
	case ReasonInternal:
		return "proxy_internal_error"
	case ReasonAddress:
		return "destination_ip_prohibited"
	default:
		return "http_request_denied"
	}
}

// writeRefusal writes an answer of the proxy's own. The reason is in the status line too, since that is all
// that many programs show of a tunnel that was refused. The connection ends with it.
func writeRefusal(w io.Writer, e Event, status int) error {
	body := "execsession: " + e.Message + " (" + string(e.Reason) + ")\n"
	if e.Verdict == Refused {
		body = "execsession refused this request: " + e.Message + " (" + string(e.Reason) + ")\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s (%s)\r\n", status, http.StatusText(status), e.Reason)
	fmt.Fprintf(&b, "%s: %s\r\n", reasonHeader, e.Reason)
	fmt.Fprintf(&b, "Proxy-Status: execsession; error=%s; details=%s\r\n", proxyError(e.Reason), quoteField(e.Message))
	fmt.Fprintf(&b, "Content-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n", len(body))
	b.WriteString("Cache-Control: no-store\r\nConnection: close\r\n\r\n")
	if e.Method != http.MethodHead {
		b.WriteString(body)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// quoteField spells text as a string of a structured field (RFC 9651): printable ASCII in quotes.
func quoteField(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r > '~':
			b.WriteByte('?')
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
