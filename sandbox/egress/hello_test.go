package egress

import (
	"bytes"
	"context"
	"slices"
	"testing"
)

// checkServerName looks for a TLS name in what a server got.
func checkServerName(t *testing.T, events []Event, index int, got string) {
	t.Helper()
	var allowed []Event
	for _, e := range events {
		if e.Verdict == Allowed {
			allowed = append(allowed, e)
		}
	}
	if index >= len(allowed) || allowed[index].Protocol == ProtocolHTTP {
		return
	}
	name, found := tolerantName(t.Context(), []byte(got))
	if !found {
		return
	}
	tunnel, _ := parseHost(allowed[index].Host)
	if named, err := parseHost(name); name != "" && (err != nil || named != tunnel && !tunnel.addr.IsValid()) {
		t.Errorf("a TLS message for %q passed through the tunnel to %v", name, tunnel)
	}
}

// tolerantName is the name that the most tolerant server would find in what it got: one that passes over each record
// before the hello that is no error, takes any version and puts the hello's pieces together. It is "?" where it
// finds a hello that cannot be read.
func tolerantName(ctx context.Context, got []byte) (name string, found bool) {
	if len(got) > 3 && got[0] >= 0x80 && got[2] == 1 && got[3] >= 3 {
		return "?", true // the hello of SSL 2
	}
	var message []byte
	for len(got) > 5 && got[0] >= 20 && got[0] <= 24 && got[1] < 16 {
		size := int(got[3])<<8 | int(got[4])
		body := got[5:min(5+size, len(got))]
		switch {
		case got[0] == 22:
			message = append(message, body...)
		case size > 0 && body[0] != 1 && got[0] != 24:
			return "", false // an error, or data
		}
		if size > 0x4800 || len(message) > 0 && message[0] != 1 {
			return "", false
		}
		if len(message) >= 4 && len(message) >= 4+(int(message[1])<<16|int(message[2])<<8|int(message[3])) {
			return nameIn(ctx, message), true
		}
		got = got[5+len(body):]
	}
	return "", false
}

func nameIn(ctx context.Context, message []byte) string {
	var plain []byte
	for piece := range slices.Chunk(message, 1<<14) {
		plain = append(plain, 22, 3, 1, byte(len(piece)>>8), byte(len(piece)))
		plain = append(plain, piece...)
	}
	name, err := serverName(ctx, bytes.NewReader(plain))
	if err != nil {
		return "?"
	}
	return name
}
