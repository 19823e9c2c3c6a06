package wire

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestVerdict(t *testing.T) {
	cases := map[string]struct {
		reason  string
		refusal string
		want    string
	}{
		"Accepted": {"a peer that is served", "", ""},
		"Refused":  {"a peer that is not", "it descends from agentd", "it descends from agentd"},
		"TwoLines": {"a line stays a line", "a\nb", "a b"},
		"Long":     {"a line is bounded", strings.Repeat("x", 1000), strings.Repeat("x", maxVerdict-len(verdictRefused)-1)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var conn bytes.Buffer
			if err := WriteVerdict(&conn, tc.refusal); err != nil {
				t.Fatal(err)
			}
			conn.WriteString("PRI")
			err := ReadVerdict(&conn)
			var refused *RefusedError
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("%s: got error %v", tc.reason, err)
			case tc.want != "" && (!errors.As(err, &refused) || refused.Reason != tc.want):
				t.Errorf("%s: got error %v, want refusal %q", tc.reason, err, tc.want)
			}
			if conn.String() != "PRI" {
				t.Errorf("ReadVerdict left %q of what follows the line, want %q", conn.String(), "PRI")
			}
		})
	}
}

func TestReadVerdictOfSomebodyElse(t *testing.T) {
	for _, text := range []string{"", "HTTP/1.1 200 OK\n", "execsession-agentd/1 accepted", strings.Repeat("x", 1000)} {
		var refused *RefusedError
		if err := ReadVerdict(strings.NewReader(text)); err == nil || errors.As(err, &refused) {
			t.Errorf("ReadVerdict(%.20q) = %v, want an error that is no refusal", text, err)
		}
	}
}
